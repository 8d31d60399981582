"""Ranking losses and their gradients against sums written out, and the table that negatives are looked up in."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.errors import ConfigError
from restd.train import Negatives, RankSettings
from restd.train.negatives import NegativeTable
from restd.train.rank_losses import (
    Contrast,
    ddro_losses,
    ltrgr_losses,
    prefix_lengths,
    prefix_shares,
    ripor_losses,
)


def sigmoid(value):
    return 1 / (1 + torch.exp(-value))


def naive_ltrgr(positive, negatives, positive_score, scores, settings, progress):
    total = 0.0
    for pair in range(len(positive)):
        margins = (settings.margin, settings.sampled_margin)
        for negative, margin in enumerate(margins):
            gap = sum(negatives[pair, negative]) - sum(positive[pair]) + margin
            total = total + (0.5 * gap if gap > 0 else 0.0)
    return total


def naive_ripor(positive, negatives, positive_score, scores, settings, progress):
    pairs, count, levels = negatives.shape
    lengths = [i for i in range(1, levels + 1) if i <= max(1, math.ceil(levels * progress / settings.curriculum))]
    total = 0.0
    for pair in range(pairs):
        for negative in range(count):
            for length in lengths:
                share = 1.0 if length == levels else 1 - 2.0**-length
                ahead = sum(positive[pair, :length]) - sum(negatives[pair, negative, :length])
                wanted = share * settings.nats * (positive_score[pair] - scores[pair, negative])
                total = total + (ahead - wanted) ** 2 / (count * len(lengths))
    return total


def naive_ddro(positive, negatives, positive_score, scores, settings, progress):
    pairs, count, _ = negatives.shape
    total = 0.0
    for pair in range(pairs):
        for negative in range(count):
            chosen = sum(positive[pair]) - positive_score[pair]
            other = sum(negatives[pair, negative]) - scores[pair, negative]
            total = total - torch.log(sigmoid(settings.beta * (chosen - other))) / count
    return total


@pytest.mark.parametrize(
    ("losses", "naive", "settings"),
    [
        (ltrgr_losses, naive_ltrgr, RankSettings(margin=1.5, sampled_margin=3.0)),
        (ripor_losses, naive_ripor, RankSettings(curriculum=0.8, nats=3.0)),
        (ddro_losses, naive_ddro, RankSettings(beta=0.7)),
    ],
)
@pytest.mark.parametrize("progress", [0.1, 0.5, 1.0])
def test_losses_and_gradients_are_those_of_the_sums(losses, naive, settings, progress):
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(shape, generator=generator).double() for shape in ((5, 4), (5, 2, 4), (5,), (5, 2))]
    leaves = [value.clone().requires_grad_() for value in values[:2]]
    losses(Contrast(*leaves, *values[2:]), settings, progress).sum().backward()
    others = [value.clone().requires_grad_() for value in values[:2]]
    expected = naive(*others, *values[2:], settings, progress)
    expected.backward()
    mine = losses(Contrast(*values), settings, progress).sum()
    assert float(mine) == pytest.approx(expected.item(), rel=1e-9)
    for leaf, other in zip(leaves, others, strict=True):
        assert torch.allclose(leaf.grad, other.grad, atol=1e-12)
        assert leaf.grad.abs().sum() > 0


def test_prefixes_share_the_teachers_margin_as_in_the_paper_and_grow():
    assert prefix_shares(4) == [0.5, 0.75, 0.875, 1.0]
    assert prefix_shares(1) == [1.0]
    lengths = [prefix_lengths(step / 100, levels=3, curriculum=0.6) for step in range(1, 101)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 1
    assert lengths[59] == lengths[-1] == 3
    assert prefix_lengths(0.01, levels=3, curriculum=0.0) == 3


@given(st.integers(1, 400), st.floats(0, 0.99), st.floats(0.01, 3), st.integers(1, 90))
def test_the_first_search_is_before_the_first_update_of_the_phase(total, start, refresh, per_epoch):
    phase = RankSettings(start=start, refresh=refresh).phase(total=total, per_epoch=per_epoch)
    searches = [update for update in range(total) if phase.searches(update)]
    assert [phase.number(update) for update in searches] == list(range(len(searches)))
    assert all(phase.strength(update) == (update >= phase.start) for update in range(total))
    assert searches == list(range(phase.start, total, max(1, round(refresh * per_epoch))))


def table(**options):
    negatives = Negatives(
        np.array([1, 3, 4]),
        np.array([[7, 5, -1], [-1, -1, -1], [2, 0, 9]]),
        np.array([1, 1, 3, 4]),
        np.array([3, 8, 6, 1]),
        **options,
    )
    return NegativeTable.of(negatives, texts=6, items=10, device=torch.device("cpu"))


def test_only_kept_negatives_are_drawn_and_the_best_one_first():
    made = table(scores=np.arange(9, dtype=np.float32).reshape(3, 3))
    assert made.place.tolist() == [-1, 0, -1, -1, 2, -1]  # query 3 was searched, and has none
    queries = torch.tensor([1, 4, 1] * 50)
    torch.manual_seed(0)
    items, scores = made.draw(queries, 2, best_first=True)
    assert items[:, 0].tolist() == [7, 2, 7] * 50
    for query, own in ((1, {7: 0, 5: 1}), (4, {2: 6, 0: 7, 9: 8})):
        rows = queries == query
        assert set(items[rows, 1].tolist()) == set(own)
        assert scores[rows, 1].tolist() == [own[item] for item in items[rows, 1].tolist()]


def test_positives_are_found_by_query_and_item():
    made = table(scores=np.zeros((3, 3), np.float32), positive_scores=np.array([0.5, 1.0, 2.0, 4.0], np.float32))
    assert made.scores_of(torch.tensor([4, 1, 1]), torch.tensor([1, 8, 3])).tolist() == [4.0, 1.0, 0.5]
    assert table().scores_of(torch.tensor([4]), torch.tensor([1])) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"negatives": 0}, r"rank\.negatives must be at least 1, got 0"),
        ({"queries": -1}, r"rank\.queries must be at least 0, got -1"),
        ({"weight": -0.1}, r"rank\.weight must be at least 0, got -0\.1"),
        ({"refresh": 0.0}, r"rank\.refresh must be above 0, got 0\.0"),
        ({"grades": 1.5}, r"rank\.grades must be from 0 to 1, got 1\.5"),
        ({"start": 1.0}, r"rank\.start must be at least 0 and below 1, got 1\.0"),
    ],
)
def test_impossible_settings_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        RankSettings(**values)
