"""Training and decoding off the CPU: every tensor of a training step and of a decoder step is on the model's device.

There is no GPU here. Fake tensors carry a device without memory on it, and an operation that mixes devices raises.
"""

from contextlib import nullcontext
from inspect import unwrap

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from restd.train.run import make_loop
from tests.training import TINY, add_walks, job, make_index, write_world

GPU = torch.device("lazy:0")
"""Stands for any other device: builds without CUDA cannot index fake tensors of the type `cuda`."""
ROWS, BEAMS = 4, 2


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    add_walks(data)
    return make_index(data, folder / "index"), data, folder / "run"


@pytest.fixture
def gpu(monkeypatch):
    """Fake tensors. What is asked of their values is answered with no: whether nothing is masked, for example."""
    monkeypatch.setattr(FakeTensor, "__bool__", lambda self: False, raising=False)
    monkeypatch.setattr(torch, "autocast", lambda *words, **options: nullcontext())  # it knows real devices alone
    return FakeTensorMode(allow_non_fake_inputs=True)


def moved(module):
    """Put weights and buffers on the device, in place."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                empty = torch.empty_like(weight, device=GPU)
                part._parameters[name] = nn.Parameter(empty, requires_grad=weight.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.empty_like(buffer, device=GPU)


def move_teacher(module):
    """Put what a teacher reads on the device, as it is when the teacher is made there."""
    if "trajectory" in module.objectives:
        teacher = module.objectives["trajectory"].distiller.teacher
        for name in ("geometry", "temperatures"):
            object.__setattr__(teacher, name, getattr(teacher, name).to(GPU))


@pytest.mark.parametrize("objective", ["base", "restd"])
@pytest.mark.parametrize("backbone", list(TINY))
def test_a_training_step_stays_where_the_model_is(world, gpu, backbone, objective):
    loop = make_loop(job(*world, backbone=backbone, objective=objective))
    module, batch = loop.training_module, loop.train.batch(np.arange(ROWS))
    with gpu:
        moved(module)
        move_teacher(module)
        with pytest.raises(RuntimeError, match="device"):
            module(batch, 3)
        loss, parts = module(batch.to(GPU), 3)
        loss.backward()
        gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
        assert {tensor.device.type for tensor in (loss, *parts.values(), *gradients)} == {"lazy"}
        assert ("kl" in parts) == (objective == "restd")


@pytest.mark.parametrize("normalizer", ["full_vocab", "level_codes"])
@pytest.mark.parametrize("backbone", list(TINY))
def test_decoder_steps_stay_where_the_model_is(world, gpu, backbone, normalizer):
    loop = make_loop(job(*world, backbone=backbone))
    model, inputs = loop.training_module.backbone.eval(), loop.train.batch(np.arange(ROWS)).inputs
    with gpu, torch.no_grad():
        moved(model)
        stepper = model.stepper(normalizer=normalizer)
        start, step = (unwrap(getattr(type(stepper), name)) for name in ("start", "step"))  # without inference mode
        first, cache = start(stepper, model.encode(inputs.to(GPU)))
        parents = torch.zeros(ROWS, BEAMS, dtype=torch.int64, device=GPU)
        scores, cache = step(stepper, cache, parents, parents)
        assert {first.device.type, scores.device.type, cache.first.device.type} == {"lazy"}
        assert scores.shape == (ROWS, BEAMS, 8)
