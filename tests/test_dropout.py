"""Dropout with randomness of its own: the right share, the right scale, the right gradient."""

import pytest
import torch

from restd.models.dropout import Dropout


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(317, 1001), (7, 3, 15_001)])
def test_a_share_is_dropped_and_the_mean_stays(rate, shape):
    torch.manual_seed(3)
    found = Dropout(rate)(torch.ones(shape))
    assert float((found == 0).double().mean()) == pytest.approx(rate, abs=0.004)
    assert found.max().item() == pytest.approx(1 / (1 - rate))
    assert float(found.double().mean()) == pytest.approx(1, abs=0.03)


def test_places_are_dropped_apart():
    torch.manual_seed(0)
    found = Dropout(0.5)(torch.ones(4, 50_000)) > 0
    together = torch.corrcoef(torch.cat([found, found.roll(1, dims=1), found.roll(4, dims=1)]).float())
    assert float((together - torch.eye(12)).abs().max()) < 0.02


def test_gradients_pass_where_values_did():
    torch.manual_seed(0)
    values = torch.randn(200, 30, requires_grad=True)
    drop = Dropout(0.4)
    found = drop(values)
    found.sum().backward()
    assert torch.equal(values.grad != 0, found != 0)
    torch.testing.assert_close(values.grad, (found / values).detach())
    again = drop(torch.ones(200, 30))
    assert not torch.equal(again != 0, found != 0)  # the next one is another


def test_adding_is_dropping_and_adding():
    total, values = torch.randn(2, 50, 20)
    torch.manual_seed(1)
    one = Dropout(0.2).add(total, values)
    torch.manual_seed(1)
    other = total + Dropout(0.2)(values)
    torch.testing.assert_close(one, other)


def test_a_rate_of_zero_changes_and_draws_nothing():
    before = torch.get_rng_state()
    values = torch.randn(3, generator=torch.Generator().manual_seed(0))
    assert Dropout(0.0)(values) is values
    assert torch.equal(Dropout(0.0).add(values, values), 2 * values)
    assert torch.equal(torch.get_rng_state(), before)
