"""The moving average of weights: what is saved, what validates, and that training never notices."""

import numpy as np
import pytest
import torch
from torch import nn

from restd.errors import ConfigError, Interrupted
from restd.train import TrainConfig, read_log
from restd.train.average import WeightAverage
from restd.train.loop import Loop
from restd.train.run import make_loop
from tests.training import job, make_index, run, same_weights, weights, write_world

EMA = "train.ema=0.9"
UPDATES = 12


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return make_index(data, folder / "index"), data


@pytest.fixture(scope="module")
def plain(world, tmp_path_factory):
    return run(*world, tmp_path_factory.mktemp("plain") / "run", objective="restd", updates=UPDATES).folder.parent


@pytest.fixture(scope="module")
def averaged(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("averaged") / "run"
    return run(*world, out, EMA, objective="restd", updates=UPDATES).folder.parent


def losses(folder):
    return [record["loss"] for record in read_log(folder / "log.jsonl")]


def test_training_is_the_same_and_what_is_saved_is_not(plain, averaged):
    assert losses(averaged) == losses(plain)
    for part in ("model", "heads"):
        assert not same_weights(averaged / part, plain / part)


def test_the_saved_model_and_heads_are_the_average_of_the_weights(world, averaged, tmp_path, monkeypatch):
    """Against a sum that is written out, over the weights after every update."""
    steps = []
    original = Loop.update

    def watched(self, rows, update):
        record = original(self, rows, update)
        state = self.training_module.state_dict()
        steps.append({name: value.clone().double() for name, value in state.items()})
        return record

    monkeypatch.setattr(Loop, "update", watched)
    loop = make_loop(job(*world, tmp_path / "run", EMA, objective="restd", updates=UPDATES))
    expected = {name: value.clone().double() for name, value in loop.training_module.state_dict().items()}
    loop.run()
    for number, step in enumerate(steps, start=1):
        decay = min(0.9, (1 + number) / (10 + number))
        expected = {name: decay * value + (1 - decay) * step[name] for name, value in expected.items()}
    prefixes = {"model": "backbone.", "heads": "objectives.trajectory.distiller.heads."}
    for folder, prefix in prefixes.items():
        saved = weights(averaged / folder)
        wanted = {f"{folder}:{name.removeprefix(prefix)}": value for name, value in expected.items() if prefix in name}
        saved = {name.replace(".safetensors", ""): value for name, value in saved.items()}
        assert wanted
        assert wanted.keys() <= saved.keys()
        assert all(np.allclose(saved[name], value.numpy(), atol=1e-5) for name, value in wanted.items())


def test_validation_sees_the_average_and_training_goes_on_with_its_own_weights(world, tmp_path):
    seen = []

    def validate(backbone):
        seen.append({name: value.clone().numpy() for name, value in backbone.state_dict().items()})
        return (1.0, 3.0, 2.0)[len(seen) - 1]

    settings = ("train.epochs=3", "train.keep=best", "train.checkpoint=100")
    options = {"objective": "restd", "updates": None}
    best = run(*world, tmp_path / "best", EMA, *settings, validate=validate, **options)
    kept = {name.partition(":")[2]: value for name, value in weights(best.folder).items()}
    trained = [name for name in kept if name in seen[1]]
    assert trained
    assert all(np.array_equal(kept[name], seen[1][name]) for name in trained)
    assert any(not np.array_equal(kept[name], seen[2][name]) for name in trained)
    again = run(*world, tmp_path / "plain", *settings[:1], validate=lambda backbone: 1.0, **options)
    assert losses_of_updates(best.folder.parent) == losses_of_updates(again.folder.parent)


def losses_of_updates(folder):
    return [record["loss"] for record in read_log(folder / "log.jsonl") if "loss" in record]


@pytest.mark.parametrize("moment", [5, UPDATES])
def test_an_interrupted_run_ends_with_the_same_average(world, averaged, tmp_path, monkeypatch, moment):
    original = Loop._stop_signal
    place = (*world, tmp_path / "run", EMA)
    with monkeypatch.context() as patched:
        patched.setattr(Loop, "update", stopping(Loop.update, moment))
        patched.setattr(Loop, "_stop_signal", lambda self: self._stop[0] if self._stop else original(self))
        with pytest.raises(Interrupted):
            run(*place, objective="restd", updates=UPDATES)
    whole = run(*place, objective="restd", updates=UPDATES)
    for part in ("model", "heads"):
        assert same_weights(whole.folder.parent / part, averaged / part)


def stopping(update, moment):
    def stopped(self, rows, number):
        record = update(self, rows, number)
        if number + 1 == moment:
            self._stop.append(15)
        return record

    return stopped


def test_weights_are_back_bit_for_bit_even_after_an_error():
    layer = nn.Linear(3, 2)
    frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    layer.register_parameter("frozen", frozen)
    average = WeightAverage.of(layer, decay=0.5)
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1e-3)
    moved = layer.weight.detach().clone()
    with average.in_place():
        assert torch.equal(layer.weight, before)
    with pytest.raises(ZeroDivisionError), average.in_place():
        _ = 1 / 0
    assert torch.equal(layer.weight, moved)
    assert torch.equal(average.averages[0], before)
    assert len(average.averages) == 2  # nothing of what is frozen


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_outside_its_range_is_refused(decay):
    with pytest.raises(ConfigError, match=r"train\.ema must be at least 0 and below 1"):
        TrainConfig(ema=decay)
