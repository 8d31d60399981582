"""Settings at the edge of what is allowed, and the paper's values where nothing is said."""

import pytest
import torch

from restd.distill import Correction, DistillConfig, HorizonHeads, ResidualTeacher, TemperatureConfig
from restd.distill.distiller import AuxiliaryConfig
from restd.distill.equations import cells
from restd.distill.heads import FOLDER, KIND, SCHEMA
from restd.distill.targets import level_slots
from restd.errors import ConfigError
from tests.test_distill_equations import made

ALLOWED = [
    (Correction, {"floor": 0.0, "margin": 0.0}),
    (Correction, {"floor": 0.99, "margin": 0.99}),
    (AuxiliaryConfig, {"weight": 0.0, "warm_up": 0, "cap": 1e-9, "positions": 1}),
    (DistillConfig, {"horizon": 1, "discount": 1.0}),
    (DistillConfig, {"discount": 1e-9}),
    (TemperatureConfig, {"value": 1e-9, "factor": 1e-9, "entropy": 0.99}),
    (TemperatureConfig, {"entropy": 0.01}),
]
REFUSED = [
    (Correction, {"floor": 1.0}),
    (Correction, {"floor": -0.1}),
    (Correction, {"margin": 1.0}),
    (Correction, {"margin": -0.1}),
    (AuxiliaryConfig, {"weight": -0.1}),
    (AuxiliaryConfig, {"warm_up": -1}),
    (AuxiliaryConfig, {"cap": 0.0}),
    (AuxiliaryConfig, {"cap": -1.0}),
    (AuxiliaryConfig, {"positions": 0}),
    (DistillConfig, {"horizon": 0}),
    (DistillConfig, {"discount": 0.0}),
    (DistillConfig, {"discount": 1.01}),
    (TemperatureConfig, {"value": 0.0}),
    (TemperatureConfig, {"factor": 0.0}),
    (TemperatureConfig, {"entropy": 0.0}),
    (TemperatureConfig, {"entropy": 1.0}),
]


@pytest.mark.parametrize(("kind", "settings"), ALLOWED)
def test_allowed(kind, settings):
    kind(**settings)


@pytest.mark.parametrize(("kind", "settings"), REFUSED)
def test_refused(kind, settings):
    with pytest.raises(ConfigError, match="must be"):
        kind(**settings)


def test_the_papers_values_are_the_defaults():
    config = DistillConfig()
    assert (config.horizon, config.discount, config.seed) == (4, 0.7, 0)
    assert config.auxiliary == AuxiliaryConfig(weight=0.1, warm_up=120, cap=0.05, positions=1)
    assert config.correction == Correction(floor=0.1, margin=0.001, enabled=True)
    assert config.temperature == TemperatureConfig(mode="auto", value=0.2, entropy=0.57, factor=1.0)


def test_the_smallest_heads():
    assert HorizonHeads(1, 1, horizon=1)(torch.ones(2, 1, 1)).shape == (1, 2, 1)
    for width, dim, horizon in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ConfigError, match=f"got {width}, {dim} and {horizon}"):
            HorizonHeads(width, dim, horizon=horizon)


def test_the_residual_teacher_has_a_slot_per_level_and_replaces_nothing():
    assert level_slots(3).tolist() == [[0, 1, 2], [1, 2, 2], [2, 2, 2]]
    assert ResidualTeacher(made(0), torch.ones(3)).replaced == 0.0


def test_looking_ahead_from_one_state_is_what_training_projects():
    heads = HorizonHeads(6, 2, horizon=3, seed=4)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    states = torch.randn(5, 3, 6, generator=generator)
    together = heads(states)
    for cell, (state, offset) in enumerate(cells(3, 3)):
        assert torch.allclose(heads.ahead(states[:, state])[offset], together[cell], atol=1e-5)


def test_saved_heads_are_known_by_kind_and_schema():
    assert (KIND, SCHEMA, FOLDER) == ("horizon-heads", 1, "heads")
