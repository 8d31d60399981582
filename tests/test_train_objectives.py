"""Objectives by registration: a new one joins with one entry and trains."""

import pytest
import torch
from torch import nn

from restd.errors import ConfigError
from restd.train import OBJECTIVES, ObjectiveSpec, read_log
from restd.train.objectives import build_distillation
from restd.train.teachers import TEACHERS
from tests.training import job, make_index, run, same_weights, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return make_index(data, folder / "index"), data


class Shrink(nn.Module):
    """Pulls the states towards a learned point: a loss with a parameter of its own."""

    def __init__(self, width):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(width))

    def forward(self, batch, forward, *, step):
        loss = 0.01 * (forward.output.states - self.point).square().mean()
        return loss, {"shrink": loss.detach()}


@pytest.fixture
def shrink():
    def build(spec, context):
        assert context.index.sids.shape[1] == 3
        return {"shrink": Shrink(context.backbone.width)}

    OBJECTIVES.add(ObjectiveSpec("shrink", "States near a point.", build, teacher=None, heads=False))
    yield
    OBJECTIVES.remove("shrink")


def test_a_new_objective_is_one_registration(world, shrink, tmp_path):
    base = run(*world, tmp_path / "base")
    made = run(*world, tmp_path / "run", objective="shrink")
    records = read_log(tmp_path / "run" / "log.jsonl")
    assert all(record["loss"] == pytest.approx(record["sid_loss"] + record["shrink"], rel=1e-4) for record in records)
    assert not same_weights(made.folder, base.folder)
    assert not (tmp_path / "run" / "heads").exists()
    assert OBJECTIVES.describe()["shrink"] == "States near a point."


def test_two_objectives_with_the_same_teacher_are_the_same_run(world, tmp_path):
    """A spec is all there is to a distillation objective."""
    OBJECTIVES.add(ObjectiveSpec("ours", "As restd.", build_distillation, teacher="residual"))
    try:
        one, other = (run(*world, tmp_path / name, objective=name) for name in ("restd", "ours"))
    finally:
        OBJECTIVES.remove("ours")
    assert same_weights(one.folder, other.folder)
    assert same_weights(tmp_path / "restd" / "heads", tmp_path / "ours" / "heads")


def test_base_is_an_entry_and_unknown_names_list_the_known():
    assert next(iter(OBJECTIVES)) == "base"
    assert OBJECTIVES["base"].teacher is None
    with pytest.raises(ConfigError, match=r"Unknown objective 'restdd'\. Did you mean 'restd'\? Known: base, rbd"):
        OBJECTIVES["restdd"]


def test_every_objective_names_a_teacher_that_exists_and_says_what_it_is():
    for spec in OBJECTIVES.entries():
        assert spec.summary.endswith(".")
        assert spec.teacher is None or spec.teacher in TEACHERS
        assert (spec.heads or spec.output is not None) == (spec.teacher is not None)
    assert {spec.teacher for spec in OBJECTIVES.entries()} == {None, *TEACHERS}


def test_only_an_objective_with_a_teacher_needs_residuals(tmp_path):
    from restd.index import import_index

    data = write_world(tmp_path / "data")
    codes = tmp_path / "codes.csv"
    ids = [f"{color}-oak-desk" for color in ("red", "blue", "green", "black")]
    codes.write_text("id,sid_1,sid_2\n" + "".join(f"{name},{row // 2},{row % 2}\n" for row, name in enumerate(ids)))
    import_index(codes).save(tmp_path / "index")
    settings = ("compact.encoder=minilm", "train.batch=4")
    assert run(tmp_path / "index", data, tmp_path / "base", *settings, updates=1).summary["updates"] == 1
    with pytest.raises(ConfigError, match=r"residuals|codebooks"):
        run(tmp_path / "index", data, tmp_path / "restd", *settings, updates=1, objective="restd")
    assert job(tmp_path / "index", data, tmp_path / "x").task == "search"
