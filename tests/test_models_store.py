"""Backbones made from settings, described, written and read again to the last bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from restd.artifacts import create
from restd.data import Catalog
from restd.errors import ArtifactError, ConfigError
from restd.index import IndexConfig, build_index, import_index, with_shape
from restd.models import (
    BuildContext,
    CalirBackbone,
    CalirConfig,
    Categories,
    CompactBackbone,
    ModelConfig,
    T5Backbone,
    induce,
    make_backbone,
    open_model,
    refuse_other_layout,
    route_texts,
    task_of,
)
from restd.models.query_encoder import find_encoder
from tests.models import (
    COMPACT,
    FRESH,
    PATHS,
    QUERIES,
    TEXTS,
    memory_of,
    scores,
    stored,
    tiny_compact,
    tiny_sentence_model,
    tiny_t5,
    untied,
)

INDEX = with_shape(IndexConfig(encoder="tfidf-svd"), levels=3, codes=(9, 8, 7), dim=8)
CALIR = CalirConfig(body="compact", depth=2, branching=(4, 3))
MODELS = {
    "compact": ModelConfig("compact", compact=COMPACT),
    "compact with steps": ModelConfig("compact", compact=replace(COMPACT, steps=2)),
    "t5": ModelConfig("t5", t5=replace(FRESH, dropout=0.2, max_tokens=12)),
    "calir on compact": ModelConfig("calir", compact=COMPACT, calir=CALIR),
    "calir on t5": ModelConfig("calir", t5=FRESH, calir=replace(CALIR, body="t5", dropout=0.3)),
}


@pytest.fixture
def folder(items_csv, tmp_path):
    build_index(Catalog(items_csv), tmp_path / "out", INDEX)
    return tmp_path / "out"


@pytest.fixture
def index(folder, items_csv):
    return build_index(Catalog(items_csv), folder, INDEX)


@pytest.fixture
def categories(index):
    return induce(np.asarray(index.latents, np.float32), branching=CALIR.branching)


def made(config, index, *, folder=None, texts=(), categories=None, seed=0):
    """A new backbone, where texts and categories are known already."""
    given = None if categories is None else lambda depth, branching: categories
    return make_backbone(config, BuildContext(index, seed, folder, lambda: texts, given))


def shaken(model):
    """Move every weight, so that a forgotten one would be noticed."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_backbone_is_made_written_and_read_to_the_last_bit(name, index, folder, categories, tmp_path):
    config = MODELS[name]
    model = made(config, index, folder=folder, texts=TEXTS, categories=categories, seed=1).eval()
    kinds = {"compact": CompactBackbone, "t5": T5Backbone, "calir": CalirBackbone}
    assert isinstance(model, kinds[config.backbone])
    assert model.sizes == index.sizes == (9, 8, 7)
    first = scores(model)
    shaken(model)
    again = stored(model, tmp_path / "model", index.table.ids)
    assert type(again) is type(model)
    assert torch.equal(scores(again), scores(model))
    assert not torch.equal(scores(again), first)
    assert again.describe() == model.describe()
    wanted, found = model.state_dict(), again.state_dict()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[key], found[key]) for key in wanted)
    if isinstance(model, CalirBackbone):
        assert np.array_equal(route_texts(again, QUERIES, width=2), route_texts(model, QUERIES, width=2))
        assert np.array_equal(again.categories.of_item, categories.of_item)
        assert (again.categories.names, again.categories.induced) == (categories.names, True)
        assert again.states(memory_of(again), torch.zeros(4, 3, dtype=torch.int64)).latents.shape[1] == 2


@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_makes_the_same_model_and_draws_nothing_else(name, index, folder, categories):
    before = torch.get_rng_state()
    given = {"folder": folder, "texts": TEXTS, "categories": categories}
    first, second, other = (made(MODELS[name], index, **given, seed=seed).eval() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(scores(first), scores(second))
    assert not torch.equal(scores(first), scores(other))


@pytest.mark.parametrize("kind", ["compact", "t5", "mt5", "calir"])
def test_the_state_given_is_what_is_written(tmp_path, kind):
    if kind == "calir":
        categories = Categories.of_paths(PATHS, depth=2)
        model = CalirBackbone(tiny_t5(steps=2), categories, replace(CALIR, body="t5"), seed=0).eval()
    elif kind == "mt5":
        model = T5Backbone.made((5, 3, 4), untied(tmp_path / "mt5", kind)[1], seed=0).eval()
    else:
        model = tiny_compact() if kind == "compact" else tiny_t5()
    state = {name: 1.5 * value for name, value in model.state_dict().items()}
    again = stored(model, tmp_path / "model", [f"i{number}" for number in range(len(PATHS))], state=state)
    found = again.state_dict()
    assert state.keys() == found.keys()
    assert all(torch.equal(state[name], found[name]) for name in state)
    assert not torch.equal(scores(again), scores(model))
    tied = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in again.named_parameters()] == tied, "what was tied is, and what was not is not"


def test_writing_a_t5_prints_nothing(tmp_path, capfd):
    from transformers.utils.logging import enable_progress_bar

    model = made(MODELS["t5"], import_small(tmp_path), texts=TEXTS, seed=0)
    enable_progress_bar()
    stored(model, tmp_path / "model", ["a", "b"])
    assert capfd.readouterr() == ("", "")


def import_small(tmp_path):
    path = tmp_path / "codes.csv"
    path.write_text("id,sid_1,sid_2\na,0,1\nb,1,2\n")
    return import_index(path)


def test_the_indexs_own_encoder(index, folder):
    encoder = find_encoder("index", index, folder)
    assert encoder.identity == index.origin["encoder"]
    for missing in (None, folder / "index"):
        with pytest.raises(ConfigError, match="name the folder restd index made"):
            find_encoder("index", index, missing)
    with pytest.raises(ConfigError, match=r"take compact\.encoder=index"):
        find_encoder("tfidf-svd", index, folder)


def test_an_encoder_fitted_to_something_else_is_refused(index, folder, items_csv):
    items_csv.write_text(items_csv.read_text().replace("kettle", "teapot"))
    build_index(Catalog(items_csv), folder, INDEX)
    with pytest.raises(ArtifactError, match="make index and model again"):
        find_encoder("index", index, folder)


def test_an_imported_index_knows_no_encoder(tmp_path, items_csv, rng):
    with pytest.raises(ConfigError, match=r"has no encoder for queries, because .*; name one, as in --set"):
        made(MODELS["compact"], import_small(tmp_path), seed=0)
    np.save(tmp_path / "v.npy", rng.normal(size=(300, 6)).astype(np.float32))
    brought = build_index(Catalog(items_csv), tmp_path / "brought", INDEX, vectors=tmp_path / "v.npy")
    with pytest.raises(ConfigError, match="vectors were brought from elsewhere"):
        made(MODELS["compact"], brought, folder=tmp_path / "brought", seed=0)


@pytest.mark.parametrize("tune", [False, True])
def test_a_sentence_encoder_frozen_or_trained_is_found_again(tmp_path, tune):
    name = tiny_sentence_model(tmp_path)
    config = ModelConfig("compact", compact=replace(COMPACT, encoder=name, tune_encoder=tune))
    model = shaken(made(config, import_small(tmp_path), seed=0).eval())
    again = stored(model, tmp_path / "stored", ["a", "b"])
    assert torch.equal(scores(again), scores(model))
    assert any(key.startswith("encoder.") for key in again.state_dict()) == tune


def test_a_sentence_encoder_that_changed_is_refused(tmp_path):
    name = tiny_sentence_model(tmp_path)
    model = made(ModelConfig("compact", compact=replace(COMPACT, encoder=name)), import_small(tmp_path), seed=0)
    model.sentence_encoder._content = "another"
    with pytest.raises(ArtifactError, match="Install the original"):
        stored(model, tmp_path / "stored", ["a", "b"])


def test_an_index_made_with_a_sentence_encoder(tmp_path, items_csv):
    name = tiny_sentence_model(tmp_path)
    index = build_index(Catalog(items_csv), tmp_path / "out", replace(INDEX, encoder=name))
    model = made(MODELS["compact"], index, seed=0)
    assert model.sentence_encoder.identity == index.origin["encoder"]
    changed = replace(index, origin={"encoder": {**index.origin["encoder"], "weights": "old"}})
    with pytest.raises(ArtifactError, match="make index and model again"):
        made(MODELS["compact"], changed, seed=0)


def test_calir_wants_categories_and_its_own_steps(tmp_path):
    index = import_small(tmp_path)
    with pytest.raises(ConfigError, match="needs categories"):
        made(MODELS["calir on t5"], index, texts=TEXTS, seed=0)
    config = ModelConfig("calir", t5=replace(FRESH, steps=1), calir=replace(CALIR, body="t5"))
    categories = Categories.of_paths([["a", "b"], ["c"]], depth=2)
    with pytest.raises(ConfigError, match=r"t5\.steps = 1 contradicts calir\.depth = 2"):
        made(config, index, texts=TEXTS, categories=categories, seed=0)
    same = config.with_section("t5", replace(FRESH, steps=2))
    assert made(same, index, texts=TEXTS, categories=categories, seed=0).body.config.steps == 2


def test_a_trained_model_opens_from_either_folder_and_knows_its_index(index, folder, items_csv, tmp_path):
    model = made(MODELS["compact"], index, folder=folder, seed=0).eval()
    settings = {"backbone": model.describe(), "layout": index.layout()}
    with create(tmp_path / "run" / "model", kind="model", schema=1, settings=settings) as writer:
        model.write(writer, model.state_dict(), index.table.ids)
    for place in (tmp_path / "run", tmp_path / "run" / "model"):
        again, artifact = open_model(place)
        assert torch.equal(scores(again.eval()), scores(model))
    refuse_other_layout(artifact, index)
    refuse_other_layout(artifact, index.remove(["i7"]))
    other = build_index(Catalog(items_csv), tmp_path / "seed", with_shape(INDEX, seed=1))
    with pytest.raises(ArtifactError, match=r"trained for codebooks .*, but the index has"):
        refuse_other_layout(artifact, other)
    with pytest.raises(ArtifactError, match=r"levels of \[9, 8, 7\] codes, but the index has \[2, 3\]"):
        refuse_other_layout(artifact, import_small(tmp_path))
    with pytest.raises(ArtifactError, match="is not an artefact"):
        open_model(tmp_path / "nothing")


def test_only_settings_that_matter_are_told():
    assert MODELS["compact"].used.keys() == {"backbone", "compact"}
    assert MODELS["calir on t5"].used.keys() == {"backbone", "calir", "t5"}
    assert MODELS["calir on t5"].used["calir"]["branching"] == [4, 3]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_saved_before_kinds_had_names_still_opens(name, index, folder, categories, tmp_path):
    model = shaken(made(MODELS[name], index, folder=folder, texts=TEXTS, categories=categories).eval())
    description = model.describe()
    kind = description.pop("kind")
    assert set(description) <= {"body", "config", "sizes", "encoder", "calir", "induced"}, "the fields of that time"
    settings = {"backbone": description, "layout": index.layout()}
    with create(tmp_path / "old", kind="model", schema=1, settings=settings) as writer:
        model.write(writer, model.state_dict(), index.table.ids)
    again, _ = open_model(tmp_path / "old")
    assert (again.kind, task_of(tmp_path / "old")) == (kind, "search")
    assert torch.equal(scores(again.eval()), scores(model))
