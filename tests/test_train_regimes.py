"""What the search for a small-scale regime turns: few pairs, no cap, supervised output, temperatures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.data.pairs import Pairs, read_pairs
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.train import DistillSettings, TrainConfig, read_log
from restd.train.objectives import AuxiliaryConfig
from tests.training import job, make_index, run, same_weights, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return make_index(data, folder / "index"), data


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_few_pairs_an_item(seed, most):
    rng = np.random.default_rng(seed)
    both = np.unique(rng.integers(0, [[12], [9]], (2, 40)), axis=1).astype(np.int64)
    numbers, text = np.unique(both[0], return_inverse=True)
    whole = Pairs(tuple(f"query {number}" for number in numbers), text, both[1], len(numbers))
    part = whole.at_most(most)
    counts, before = np.bincount(part.item, minlength=9), np.bincount(whole.item, minlength=9)
    assert (counts == np.minimum(before, most)).all()  # nobody loses more than must be
    held = {(whole.texts[t], i) for t, i in zip(whole.text, whole.item, strict=True)}
    assert {(part.texts[t], i) for t, i in zip(part.text, part.item, strict=True)} <= held
    assert set(part.text) == set(range(len(part.texts)))  # a query left without a pair is gone
    fewer = whole.at_most(max(most - 1, 1))
    kept = {(part.texts[t], i) for t, i in zip(part.text, part.item, strict=True)}
    assert {(fewer.texts[t], i) for t, i in zip(fewer.text, fewer.item, strict=True)} <= kept  # a smaller lot is a part


def test_a_validation_may_take_some_queries(world, tmp_path):
    """Whole queries with all their pairs, the same every time; also where categories count queries."""
    _, valid, _ = read_pairs(world[1], SidIndex.load(world[0]).table.ids)
    part = valid.some(4)
    assert part.queries == len(part.texts) == 4
    for number, text in enumerate(part.texts):
        own = set(valid.item[valid.text == valid.texts.index(text)].tolist())
        assert set(part.item[part.text == number].tolist()) == own
    assert list(valid.some(4).texts) == list(part.texts)
    assert valid.some(0) is valid is valid.some(10_000)
    done = run(*world, tmp_path / "run", "train.judged=4", backbone="calir", updates=4)
    assert 0 <= done.summary["category_recall@3"] <= 100


def test_the_same_pairs_at_every_seed(world, tmp_path):
    messages = []
    for seed in (1, 2):
        run(*world, tmp_path / str(seed), "train.pairs_per_item=1", f"train.seed={seed}", notify=messages.append)
    sentences = [sentence for sentence in messages if "pairs of" in sentence]
    assert sentences[0] == sentences[1]
    pairs, _, _ = read_pairs(world[1], SidIndex.load(world[0]).table.ids)
    assert f"{len(np.unique(pairs.item)):,} pairs" in sentences[0]


def test_no_cap_lets_the_weight_stand(world, tmp_path):
    settings = ("distill.weight=5.0", "distill.warm_up=0")
    run(*world, tmp_path / "capped", *settings, objective="restd")
    run(*world, tmp_path / "free", *settings, "distill.cap=none", objective="restd")
    capped, free = (read_log(tmp_path / name / "log.jsonl") for name in ("capped", "free"))
    assert all(record["capped"] == 1.0 and record["weight"] < 5.0 for record in capped)
    assert all(record["capped"] == 0.0 and record["weight"] == 5.0 for record in free)
    assert DistillSettings(cap="none").auxiliary(AuxiliaryConfig(), total=10, joint=True).cap is None


def test_heads_and_output_together(world, tmp_path):
    settings = ("distill.weight=1.0", "distill.output_weight=0.25", "distill.cap=none", "distill.warm_up=0")
    made = run(*world, tmp_path / "both", *settings, objective="restd-output")
    record = read_log(tmp_path / "both" / "log.jsonl")[-1]
    wanted = record["sid_loss"] + record["weight"] * record["kl"] + record["output_weight"] * record["output_kl"]
    assert record["loss"] == pytest.approx(wanted, rel=1e-4)
    assert (record["weight"], record["output_weight"]) == (1.0, 0.25)
    assert (tmp_path / "both" / "heads").is_dir()
    silent = ("distill.weight=1.0", "distill.output_weight=0.0", "distill.cap=none", "distill.warm_up=0")
    alone = run(*world, tmp_path / "alone", *silent[::2], "distill.warm_up=0", objective="restd")
    quiet = run(*world, tmp_path / "quiet", *silent, objective="restd-output")
    assert same_weights(alone.folder, quiet.folder)  # an output of no weight leaves ResTD as it is
    assert not same_weights(made.folder, quiet.folder)


def test_the_mean_teacher_on_the_output(world, tmp_path):
    """With one positive a query, the mean over its positives is the item's own teacher."""
    free = ("distill.weight=1.0", "distill.cap=none", "distill.warm_up=0")
    one = run(*world, tmp_path / "one", *free, objective="full-output-kd")
    mean = run(*world, tmp_path / "mean", *free, objective="output-mean")
    assert not same_weights(one.folder, mean.folder)  # two positives a query here


def test_temperature_settings_reach_the_teacher():
    held = DistillSettings(factor=2.5, entropy=0.4).config(levels=3, horizon=None, auxiliary=AuxiliaryConfig())
    assert (held.temperature.factor, held.temperature.entropy) == (2.5, 0.4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("train.pairs_per_item=-1",), "pairs_per_item must be at least 0, got -1"),
        (("distill.cap=never",), "cap"),
        (("train.patience=-2",), "patience must be at least 0, got -2"),
    ],
)
def test_impossible_settings(world, tmp_path, settings, said):
    with pytest.raises(ConfigError, match=said):
        job(*world, tmp_path / "run", *settings)
    assert TrainConfig().pairs_per_item == 0
