"""CaLIR's losses against arithmetic."""

import math

import numpy as np
import pytest
import torch

from restd.data.pairs import Pairs
from restd.models import Categories
from restd.models.calir_losses import hsr_loss, qre_loss, query_groups


def by_hand(embedded, prototypes, groups, temperature):
    unit = torch.nn.functional.normalize
    scores = (unit(embedded, dim=-1) @ unit(prototypes, dim=-1).T / temperature).tolist()
    losses = []
    for row, group in enumerate(groups.tolist()):
        mine = [category for category in group if category >= 0]
        others = [
            category
            for place, other in enumerate(groups.tolist())
            for category in other
            if place != row and category >= 0 and category not in mine
        ]
        total = sum(math.exp(scores[row][category]) for category in mine + others)
        losses += [math.log(total) - scores[row][category] for category in mine]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("seed", range(5))
def test_contrast_masks_padding_and_the_same_category(seed):
    generator = torch.Generator().manual_seed(seed)
    embedded, prototypes = (torch.randn(count, 6, generator=generator) for count in (5, 4))
    groups = torch.randint(-1, 4, (5, 3), generator=generator)
    groups[:, 0] = groups[:, 0].clamp_min(0)  # every query has a category
    found = qre_loss(embedded, prototypes, groups, temperature=0.1)
    assert found.item() == pytest.approx(by_hand(embedded, prototypes, groups, 0.1), rel=1e-4)


def test_rows_of_one_category_have_no_negatives():
    embedded, prototypes = torch.randn(4, 6), torch.randn(3, 6)
    groups = torch.tensor([[1, -1], [1, -1], [1, -1], [1, -1]])
    assert qre_loss(embedded, prototypes, groups, temperature=0.1).item() == pytest.approx(0.0, abs=1e-5)


def test_naming_is_summed_over_steps():
    scores = [torch.randn(4, 3), torch.randn(4, 5)]
    wanted = torch.tensor([[0, 4], [1, 3], [2, 2], [0, 1]])
    expected = sum(torch.nn.functional.cross_entropy(held, wanted[:, step]) for step, held in enumerate(scores))
    assert hsr_loss(scores, wanted).item() == pytest.approx(expected.item(), rel=1e-6)


def test_groups_are_the_first_distinct_paths():
    categories = Categories.of_paths([["a", "x"], ["a", "y"], ["a", "x"], ["b", "z"], ["c", "w"]], depth=2)
    pairs = Pairs(("q", "r"), np.array([0, 0, 0, 0, 0, 1]), np.array([0, 1, 2, 3, 4, 4]), 2)
    groups = query_groups(pairs, categories, paths=3)
    assert groups[0, :, 0].tolist() == [0, 0, 1]  # two paths below "a" count twice, and a fourth does not count
    assert [categories.names[1][number] for number in groups[0, :, 1]] == ["a > x", "a > y", "b > z"]
    assert groups[1].tolist() == [[2, 3], [-1, -1], [-1, -1]]
