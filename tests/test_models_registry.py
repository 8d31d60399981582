"""Backbones by registration: a fifth one joins with one class and one entry, and goes all the way to a search."""

import json
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from restd.cli.train import configure
from restd.data.pairs import Pairs
from restd.encode import Ragged
from restd.errors import ConfigError
from restd.models import (
    BACKBONES,
    Backbone,
    BackboneKind,
    CalirConfig,
    CategorySettings,
    CompactConfig,
    Memory,
    ModelConfig,
    Output,
    T5Backbone,
    T5Config,
    backbones_for,
    kind_of,
    load_weights,
    open_model,
    task_of,
)
from restd.models.contract import code_loss, code_mask, seeded
from restd.search import Retriever
from restd.train import Job, TrainConfig, train_retriever
from restd.train.config import default_training
from tests.models import QUERIES, memory_of, some_sids, tiny_compact, tiny_t5
from tests.training import FAST, make_index, plain_beam, same_weights, write_world


@dataclass(frozen=True, slots=True)
class BagConfig:
    """Settings of a backbone that this file adds."""

    width: int = 16
    buckets: int = 64


class BagBackbone(Backbone):
    """Hashed words in, their mean, and a recurrent decoder: nothing that the package has."""

    kind = "bag"

    def __init__(self, sizes: tuple[int, ...], config: BagConfig, *, seed: int) -> None:
        super().__init__(sizes, config.width, config)
        with seeded(seed):
            self.words = nn.Embedding(config.buckets, config.width)
            self.codes = nn.ModuleList(nn.Embedding(size, config.width) for size in sizes)
            self.cell = nn.GRUCell(config.width, config.width)
            self.out = nn.Parameter(0.1 * torch.randn(len(sizes), max(sizes), config.width))
        self.register_buffer("code_mask", code_mask(sizes), persistent=False)

    def prepare(self, texts: Any, *, role: str = "query", cache: Path | None = None) -> Ragged:
        return Ragged.of([np.array([crc32(w.encode()) % 64 for w in text.split()] or [0], np.int64) for text in texts])

    def encode(self, inputs: Any) -> Memory:
        states = self.words(inputs.values).masked_fill(~inputs.mask[..., None], 0.0)
        mean = states.sum(dim=1, keepdim=True) / inputs.mask.sum(dim=1)[:, None, None]
        return Memory(mean, torch.ones_like(inputs.mask[:, :1]))

    def states(self, memory: Memory, sids: torch.Tensor) -> Output:
        state, states = memory.states[:, 0], [memory.states[:, 0]]
        for level, codes in enumerate(sids[:, : len(self.sizes) - 1].unbind(1)):
            state = self.cell(self.codes[level](codes), state)
            states.append(state)
        return Output(torch.stack(states, dim=1))

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("rlw,lcw->rlc", states, self.out[: states.shape[1]])
        return scores.masked_fill(~self.code_mask[: states.shape[1]], -torch.inf)

    def sid_loss(self, output: Output, sids: torch.Tensor) -> torch.Tensor:
        return code_loss(self.logits(output.states), sids)


def read_bag(artifact: Any, description: Mapping[str, Any]) -> BagBackbone:
    config = BagConfig(**description["config"])
    return load_weights(BagBackbone(tuple(description["sizes"]), config, seed=0), artifact)


BAG = BackboneKind(
    name="bag",
    summary="A bag of hashed words and a recurrent decoder.",
    config=BagConfig,
    task="search",
    make=lambda config, context: BagBackbone(context.index.sizes, config.section("bag"), seed=context.seed),
    read=read_bag,
    base_training={"updates": 0, "epochs": 5, "lr": 0.01},
)


@pytest.fixture
def bag():
    BACKBONES.add(BAG)
    yield
    BACKBONES.remove("bag")


@pytest.mark.parametrize("objective", ["base", "restd"])
def test_a_fifth_backbone_is_trained_saved_opened_and_searched(bag, tmp_path, objective):
    data = write_world(tmp_path / "data")
    index = make_index(data, tmp_path / "index")
    model, config = configure(None, [*FAST, "bag.width=24", "train.epochs=8"], backbone="bag", objective=objective)
    assert model.section("bag") == BagConfig(width=24)
    trained = train_retriever(Job(index, data, tmp_path / "run", model, config))
    backbone, artifact = open_model(tmp_path / "run")
    assert isinstance(backbone, BagBackbone)
    assert task_of(tmp_path / "run") == "search"
    assert artifact.manifest.settings["backbone"]["kind"] == "bag"
    assert artifact.manifest.settings["told"]["model"] == {"backbone": "bag", "bag": {"width": 24, "buckets": 64}}
    assert trained.folder == artifact.folder

    retriever = Retriever.load(tmp_path / "run")
    queries = ["steel kettle", "oak desk", "glass lamp"]
    rows = retriever.rank(queries, 5)[0]
    assert rows.tolist() == plain_beam(backbone, retriever.index, queries, width=100, k=5)
    titles = [hit.title for hit in retriever.search("steel kettle", k=2)]
    assert set(titles) == {"red steel kettle", "blue steel kettle"}

    again, continued = configure(None, FAST, objective="base", continued_from=tmp_path / "run", options={"updates": 2})
    train_retriever(Job(index, data, tmp_path / "on", again, continued, tmp_path / "run"))
    assert not same_weights(tmp_path / "on" / "model", tmp_path / "run" / "model")


def test_a_backbone_that_is_gone_is_named_with_those_that_are_there(bag):
    assert "bag" in BACKBONES
    BACKBONES.remove("bag")
    with pytest.raises(ConfigError, match=r"Unknown backbone 'bag'.*Known: compact, t5, calir, tiger"):
        configure(None, [], backbone="bag")
    with pytest.raises(ConfigError, match=r"Unknown section \[bag\]"):
        configure(None, ["bag.width=8"])
    with pytest.raises(ConfigError, match="Unknown backbone 'bag'"):
        kind_of({"kind": "bag", "body": "bag"})


def test_its_settings_are_checked_as_ours_are(bag):
    with pytest.raises(ConfigError, match=r"\[bag\] has no setting 'depth'; it has: width, buckets"):
        configure(None, ["bag.depth=2"], backbone="bag")
    with pytest.raises(ConfigError, match=r"\[bag\] width = 'wide'"):
        configure(None, ["bag.width=wide"], backbone="bag")
    with pytest.raises(ConfigError, match="settings of bag as BagConfig, got CompactConfig"):
        ModelConfig("bag", bag=CompactConfig())
    with pytest.raises(ConfigError, match=r"got 'bag'"):
        CalirConfig(body="bag")
    assert default_training("bag", continued=False)["epochs"] == 5
    assert default_training("bag", continued=True) == default_training("t5", continued=True)
    assert TrainConfig(**default_training("bag", continued=False)).lr == 0.01


def test_a_package_joins_by_an_entry_point(tmp_path, monkeypatch):
    package = tmp_path / "bag_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from restd.models import BACKBONES\nfrom tests.test_models_registry import BAG\nBACKBONES.add(BAG)\n"
    )
    info = tmp_path / "bag_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bag-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[restd.backbones]\nbag = bag_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(BACKBONES, "_complete", False)  # as in a new process
    try:
        assert backbones_for("search") == ("compact", "t5", "calir", "bag")
        assert BACKBONES.describe()["bag"] == BAG.summary
        assert configure(None, ["bag.width=8"], backbone="bag")[0].body == "bag"
    finally:
        BACKBONES.remove("bag")
        sys.modules.pop("bag_package", None)


def test_a_configuration_is_written_and_read_as_plain_values(bag):
    adapter = TypeAdapter(ModelConfig)
    for config in (
        ModelConfig(),
        ModelConfig("bag", bag=BagConfig(width=8), compact=CompactConfig(width=64)),
        ModelConfig("calir", calir=CalirConfig(depth=2, branching=(3, 2)), t5=T5Config(model="fresh")),
    ):
        values = json.loads(adapter.dump_json(config))
        assert values.keys() >= config.used.keys()
        assert adapter.validate_python(values) == config == pickle.loads(pickle.dumps(config)), "jobs go to processes"
    # as it was written when every backbone had a field
    before = {"backbone": "t5", "compact": {"width": 256}, "t5": {"max_tokens": 12}, "calir": {"depth": 3}, "tiger": {}}
    assert adapter.validate_python(before) == ModelConfig("t5", t5=T5Config(max_tokens=12))
    assert ModelConfig("t5", t5=T5Config()) == ModelConfig("t5") != ModelConfig("compact")
    with pytest.raises(ConfigError, match="Unknown backbone 'bert'"):
        adapter.validate_python({"backbone": "compact", "bert": {}})


def test_every_kind_says_what_it_is():
    for kind in BACKBONES.entries():
        assert kind.summary.endswith(".")
        assert kind.name == kind.config.__name__.removesuffix("Config").lower()
        assert hasattr(kind.config(), "steps") == kind.latent_steps
        for continued in (False, True):
            body = ModelConfig(kind.name).body
            TrainConfig(**default_training(body, continued=continued))
    assert {kind.name for kind in BACKBONES.entries() if kind.routes} == {"calir"}


@pytest.mark.parametrize(
    ("description", "kind", "task"),
    [
        ({"body": "compact"}, "compact", "search"),
        ({"body": "t5"}, "t5", "search"),
        ({"body": "t5", "calir": {}}, "calir", "search"),
        ({"body": "tiger"}, "tiger", "recommend"),
        ({"body": "t5", "kind": "calir", "calir": {}}, "calir", "search"),
    ],
)
def test_manifests_written_before_there_were_kinds_are_understood(description, kind, task):
    assert (kind_of(description).name, kind_of(description).task) == (kind, task)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("make", [tiny_compact, tiny_t5])
def test_decoding_without_a_cache_gives_what_a_cache_gives(make, steps):
    """Two independent ways to decode: whole prefixes anew, or keys and values kept."""
    model = make(steps=steps)
    slow, fast = Backbone.stepper(model), model.stepper(normalizer="level_codes")
    assert slow.sizes == fast.sizes == model.sizes
    memory = memory_of(model)
    (scores, cache), (expected, kept) = slow.start(memory), fast.start(memory)
    generator = torch.Generator().manual_seed(0)
    for size in model.sizes[:-1]:
        assert torch.allclose(scores, expected, atol=1e-5)
        assert torch.allclose(cache.first, kept.first, atol=1e-5)
        parents = torch.randint(scores.shape[1], (len(QUERIES), 4), generator=generator)
        codes = torch.randint(size, (len(QUERIES), 4), generator=generator)
        (scores, cache), (expected, kept) = slow.step(cache, parents, codes), fast.step(kept, parents, codes)
    assert torch.allclose(scores, expected, atol=1e-5)


def test_a_stepper_without_a_cache_is_a_copy_without_dropout():
    model = tiny_compact(dropout=0.5).train()
    slow = Backbone.stepper(model)
    first, second = (slow.start(memory_of(model.eval()))[0] for _ in range(2))
    assert torch.equal(first, second)
    memory = memory_of(model)
    before = slow.start(memory)[0]
    with torch.no_grad():
        model.decoder.out.add_(1.0)
        model.decoder.start.add_(1.0)
    assert torch.equal(slow.start(memory)[0], before)


def test_capabilities_that_are_not_there_say_so():
    model = tiny_t5()
    assert isinstance(model, T5Backbone)
    assert (model.routes, model.knows_users, model.unused_parameters, model.rates) == (False, False, False, {})
    assert model.extra_loss(Pairs(("q",), np.array([0]), np.array([0]), 1), CategorySettings()) is None
    trainable = [parameter.requires_grad for parameter in model.parameters()]
    model.start_continuation()
    assert [parameter.requires_grad for parameter in model.parameters()] == trainable
    output = model.states(memory_of(model), some_sids())
    assert output.latents is None
