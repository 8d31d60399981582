"""What a run keeps: the best model with the heads of that update, whatever validation says and whenever it dies."""

import numpy as np
import pytest
import torch
from torch import nn

from restd.errors import TrainingError
from restd.train import loop as loops
from restd.train import model_writer, read_log
from restd.train.checkpoint import TrainerState, read_checkpoint, write_checkpoint
from restd.train.estimate import Estimate
from restd.train.run import make_loop
from tests.training import job, make_index, run, same_weights, weights, write_world

BEST = ("train.epochs=4", "train.keep=best", "train.checkpoint=4")
PER_EPOCH = 4


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return make_index(data, folder / "index"), data


def scored(*scores):
    """A validation that gives these scores, one after another."""
    values = iter(scores)
    return lambda backbone: next(values)


def train(world, out, *settings, scores=(1.0, 3.0, 2.0, 2.5), **options):
    options = {"updates": None, "objective": "restd", **options}
    return run(*world, out, *settings, validate=scored(*scores), **options)


@pytest.fixture(scope="module")
def best(world, tmp_path_factory):
    """A run whose second of four epochs is the best."""
    return train(world, tmp_path_factory.mktemp("best") / "run", *BEST).folder.parent


def test_heads_are_those_of_the_best_update(world, best, tmp_path, monkeypatch):
    heads = []
    original = model_writer.write_heads

    def watched(folder, module, *, update, **options):
        original(folder, module, update=update, **options)
        heads.append((update, weights(folder)))

    monkeypatch.setattr(model_writer, "write_heads", watched)
    again = train(world, tmp_path / "run", *BEST).folder.parent
    kept = weights(again / "heads")
    at_best = dict(heads)[2 * PER_EPOCH]
    assert kept.keys() == at_best.keys()
    assert all(np.array_equal(kept[name], at_best[name]) for name in kept)
    assert same_weights(again / "heads", best / "heads")
    last = train(world, tmp_path / "last", "train.epochs=4").folder.parent
    assert not same_weights(last / "heads", best / "heads")
    assert sorted(path.name for path in best.iterdir() if path.is_dir()) == ["cache", "heads", "model"]


@pytest.mark.parametrize("keep", ["best", "last"])
@pytest.mark.parametrize("moment", ["heads", "model"])
def test_a_run_that_dies_at_its_end_has_model_and_heads_in_the_end(world, best, tmp_path, monkeypatch, keep, moment):
    """Whatever is written last, a finished run has heads, and they are those of its model."""
    settings = (*BEST[:1], f"train.keep={keep}", *BEST[2:])
    whole = best if keep == "best" else train(world, tmp_path / "whole", *settings).folder.parent
    out = tmp_path / "run"

    def dies(name):
        original = getattr(model_writer, name)

        def dying(first, second, **options):
            target = second if name == "replace_folder" else first
            if target == out / moment:
                raise KeyboardInterrupt
            return original(first, second, **options)

        return dying

    def dying_model(folder, *given, **options):
        if folder == out / moment:
            raise KeyboardInterrupt
        return write_model(folder, *given, **options)

    write_model = model_writer.write_model
    with monkeypatch.context() as patched:
        for name in ("replace_folder", "write_heads"):
            patched.setattr(model_writer, name, dies(name))
        patched.setattr(model_writer, "write_model", dying_model)
        with pytest.raises(KeyboardInterrupt):
            train(world, out, *settings)
    assert not (out / "model" / "manifest.json").exists()
    train(world, out, *settings, scores=())
    assert same_weights(out / "model", whole / "model")
    assert same_weights(out / "heads", whole / "heads")


def test_a_validation_that_is_nan_is_never_the_best(world, tmp_path):
    made = train(world, tmp_path / "run", *BEST, scores=(1.0, float("nan"), 0.5, 2.0))
    assert made.summary == {"updates": 4 * PER_EPOCH, "validation": 2.0}
    first = train(world, tmp_path / "first", *BEST, scores=(float("nan"), 1.0, 0.5, 0.2))
    assert first.summary == {"updates": 2 * PER_EPOCH, "validation": 1.0}
    with pytest.raises(TrainingError, match=r"No validation of the run .* gave a number.*keep=last"):
        train(world, tmp_path / "never", *BEST, scores=(float("nan"),) * 4)


def test_patience_ends_a_run_of_updates_that_keeps_the_last(world, tmp_path):
    made = train(
        world, tmp_path / "run", "train.patience=2", "train.keep=last", updates=10 * PER_EPOCH, scores=(3.0, 2.0, 1.0)
    )
    assert made.summary == {"updates": 3 * PER_EPOCH, "validation": 3.0}
    records = read_log(tmp_path / "run" / "log.jsonl")
    assert [record["validation"] for record in records if "validation" in record] == [3.0, 2.0, 1.0]


def test_the_scale_of_float16_losses_is_part_of_a_checkpoint(tmp_path):
    """A run that continues with the first scale skips other updates than one that was not interrupted."""

    def parts():
        module = nn.Linear(2, 2)
        return module, torch.optim.AdamW(module.parameters()), torch.amp.GradScaler("cpu", init_scale=8.0)

    module, optimizer, scaler = parts()
    for gradient in (torch.inf, 1.0):  # an overflow halves the scale
        scaler.scale(module(torch.ones(1, 2)).sum() * gradient).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 4.0
    write_checkpoint(tmp_path / "c", module, optimizer, TrainerState(2), identity="x", write=True, scaler=scaler)
    fresh, fresh_optimizer, fresh_scaler = parts()
    state = read_checkpoint(tmp_path / "c", fresh, fresh_optimizer, identity="x", scaler=fresh_scaler)
    assert state == TrainerState(2)
    assert fresh_scaler.state_dict() == scaler.state_dict()
    without = tmp_path / "without"
    write_checkpoint(without, module, optimizer, TrainerState(2), identity="x", write=True)
    assert read_checkpoint(without, *parts()[:2], identity="x") == TrainerState(2)


def test_a_run_keeps_and_restores_its_scaler(world, tmp_path, monkeypatch):
    monkeypatch.setattr(loops, "estimate_cost", lambda loop: Estimate(0.0, 0, "cpu"))
    monkeypatch.setattr(loops.Loop, "_updates", lambda self, state, log: state)
    (tmp_path / "run").mkdir()
    one, other = (make_loop(job(*world, tmp_path / "run", updates=400)) for _ in range(2))
    one.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=32.0)
    other.accelerator.scaler = torch.amp.GradScaler("cpu")
    one._saved(TrainerState(200))
    assert other.run() == TrainerState(200)
    assert other.accelerator.scaler.get_scale() == 32.0
