"""Temperatures: what each mode finds, and that a level with nothing to teach is reported."""

import math

import pytest
import torch

from restd.distill import (
    Geometry,
    TemperatureConfig,
    find_temperatures,
    report_teaching,
)
from restd.distill.temperature import normalised_entropies, sample_rows
from restd.errors import ConfigError


def shrinking(seed=0, items=600):
    """A geometry whose residuals shrink with depth, as a real index's do."""
    generator = torch.Generator().manual_seed(seed)
    books = torch.stack([torch.randn(16, 6, generator=generator) / 3**level for level in range(4)])
    sids = torch.randint(16, (items, 4), generator=generator)
    latents = sum(books[level][sids[:, level]] for level in range(4)) + 0.02 * torch.randn(
        items, 6, generator=generator
    )
    return Geometry.of(books, latents, sids)


def test_fixed_temperature_is_the_papers():
    geometry = shrinking()
    assert find_temperatures(geometry, TemperatureConfig("fixed")).tolist() == pytest.approx([0.2] * 4)
    assert find_temperatures(geometry, TemperatureConfig("fixed", factor=0.5)).tolist() == pytest.approx([0.1] * 4)
    assert find_temperatures(geometry, TemperatureConfig(), quantizer="rqvae").tolist() == pytest.approx([0.2] * 4)


def test_per_level_gives_level_one_its_entropy_and_follows_the_residuals():
    geometry = shrinking()
    temperatures = find_temperatures(geometry, TemperatureConfig("per_level"))
    assert torch.equal(temperatures, find_temperatures(geometry, TemperatureConfig(), quantizer="kmeans"))
    residuals = geometry.residuals(torch.arange(600))
    assert float(normalised_entropies(geometry, residuals, temperatures)[:, 0].mean()) == pytest.approx(0.57, abs=1e-3)
    squares = residuals.square().sum(-1).mean(0)
    assert (temperatures / temperatures[0]).tolist() == pytest.approx((squares / squares[0]).tolist(), rel=1e-4)
    fixed = report_teaching(geometry, torch.full((4,), float(temperatures[0])))
    ours = report_teaching(geometry, temperatures)
    assert ours.levels[3].normalised_entropy < fixed.levels[3].normalised_entropy


def test_global_temperature_averages_over_levels():
    geometry = shrinking()
    temperatures = find_temperatures(geometry, TemperatureConfig("global", entropy=0.6))
    assert len(set(temperatures.tolist())) == 1
    entropies = normalised_entropies(geometry, geometry.residuals(torch.arange(600)), temperatures).mean(0)
    assert float(entropies.mean()) == pytest.approx(0.6, abs=1e-3)


def test_a_level_that_teaches_nothing_is_reported():
    report = report_teaching(shrinking(), torch.full((4,), 50.0))
    assert len(report.warnings) == 4
    assert "Level 4 teaches nothing" in report.warnings[3]
    assert report.levels[0].near_uniform > 0.9
    sharp = report_teaching(shrinking(), torch.full((4,), 1e-3))
    assert sharp.warnings == ()
    assert sharp.levels[0].top1 > 0.8
    assert sharp.levels[0].top1 <= sharp.levels[0].top5
    assert sharp.levels[0].entropy < 0.1


def test_a_tie_is_no_preference():
    """Two codewords in one place: a teacher that cannot tell the stored code from its twin does not prefer it."""
    books = torch.tensor([[[0.0], [0.0], [5.0]]])
    geometry = Geometry.of(books, torch.tensor([[0.0], [5.0]]), torch.tensor([[1], [2]]))
    level = report_teaching(geometry, torch.tensor([1.0])).levels[0]
    assert level.top1 == 0.5
    assert level.top5 == 1.0
    assert level.mean_reciprocal_rank == 0.75


def test_padding_never_ties_with_a_stored_code_without_mass():
    books = torch.tensor([[[0.0], [90.0], [0.0], [0.0]]])
    geometry = Geometry.of(books, torch.tensor([[0.0]]), torch.tensor([[1]]), sizes=(2,))
    level = report_teaching(geometry, torch.tensor([0.01])).levels[0]
    assert level.mean_reciprocal_rank == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"value": 0.0}, "above 0"), ({"value": -1.0}, "above 0"), ({"entropy": 1.5}, "share of ln K")],
)
def test_impossible_temperatures(settings, message):
    with pytest.raises(ConfigError, match=message):
        TemperatureConfig("fixed", **settings)


def line(*books, latents=((0.0,),), sids=((0, 0),)):
    """Codewords, latents and SIDs on a line."""
    longest = max(map(len, books))
    padded = torch.tensor([[[word] for word in (*book, *[0.0] * (longest - len(book)))] for book in books])
    return Geometry.of(padded, torch.tensor(latents), torch.tensor(sids), sizes=tuple(map(len, books)))


def test_a_report_by_hand():
    """One item at 0, stored at the further of two codewords 1 apart: Q = (σ(1), σ(-1)) at temperature 1."""
    report = report_teaching(line((0.0, 1.0), sids=((1,),)), torch.tensor([1.0]))
    (level,) = report.levels
    entropy = -(0.7310586 * math.log(0.7310586) + 0.2689414 * math.log(0.2689414))
    assert (level.level, level.temperature, level.top1, level.top5) == (1, 1.0, 0.0, 1.0)
    assert (level.mean_reciprocal_rank, level.near_uniform) == (0.5, 0.0)
    assert level.entropy == pytest.approx(entropy, rel=1e-5)
    assert level.normalised_entropy == pytest.approx(entropy / math.log(2), rel=1e-5)
    assert report.warnings == ()
    assert report.to_dict()["levels"][0]["top5"] == 1.0


def test_the_sixth_is_not_among_the_first_five():
    words = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    for code, found in ((4, 1.0), (5, 0.0)):
        (level,) = report_teaching(line(words, sids=((code,),)), torch.tensor([1.0])).levels
        assert (level.top5, level.mean_reciprocal_rank) == (found, pytest.approx(1 / (code + 1)))


def test_nearly_uniform_is_above_ninety_seven_hundredths():
    """Two codewords at distance 0 and 1: the odds are exp(1/τ)."""
    for tau, found in ((2.42, 0.0), (2.45, 1.0)):  # 0.96985 and 0.97057 of ln 2
        report = report_teaching(line((0.0, 1.0), sids=((0,),)), torch.tensor([tau]))
        assert report.levels[0].near_uniform == found
        assert len(report.warnings) == found


def test_levels_of_one_code_are_not_asked_for_entropy():
    mixed = line((0.0,), (0.0, 1.0), sids=((0, 0),))
    temperatures = find_temperatures(mixed, TemperatureConfig("global", entropy=0.5))
    found = normalised_entropies(mixed, mixed.residuals(torch.tensor([0])), temperatures)[0]
    assert found.tolist() == pytest.approx([0.0, 0.5], abs=1e-4)
    for mode, geometry in (("per_level", mixed), ("global", line((0.0,), (0.0,)))):
        with pytest.raises(ConfigError, match="codebooks of a single code"):
            find_temperatures(geometry, TemperatureConfig(mode))


def test_levels_without_residuals_get_the_least_temperature():
    geometry = line((0.0, 1.0), (0.0, 1.0), latents=((1.0,),), sids=((1, 0),))  # nothing is left for level 2
    first, second = find_temperatures(geometry, TemperatureConfig("per_level")).tolist()
    assert second / first == pytest.approx(1e-6)


def test_samples_are_drawn_without_replacement():
    many = line((0.0, 1.0), latents=((0.0,),) * 5_000, sids=((0,),) * 5_000)
    drawn = sample_rows(many, seed=0)
    assert len(drawn) == len(drawn.unique()) == 4_096
    assert not torch.equal(drawn, sample_rows(many, seed=1))
    assert sample_rows(many, seed=0, count=6_000).sort().values.tolist() == list(range(5_000))


@pytest.mark.parametrize("mode", ["global", "per_level"])
def test_items_that_are_codewords_leave_no_residuals_and_still_have_temperatures(mode):
    geometry = Geometry.of(torch.zeros(2, 4, 3), torch.zeros(10, 3), torch.zeros(10, 2, dtype=torch.int64))
    temperatures = find_temperatures(geometry, TemperatureConfig(mode))
    assert (temperatures > 0).all()
    assert torch.isfinite(temperatures).all()
