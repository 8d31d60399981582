"""Shape-matched swap: items with the same code and nearly the same probability profile exchange their teachers."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from restd.distill.controls import DonorTeacher, own_donors
from restd.distill.targets import ResidualTeacher

_EXACT = 4_096
"""Largest group whose pairs are all compared."""
_WINDOW = 64
"""Beyond it, how far an item looks to either side in the order of (stored probability, entropy)."""


@dataclass(frozen=True, slots=True)
class MatchingQuality:
    """How alike swapped teachers are (eq. teacher-matching-quality), over recipients with another item's teacher."""

    entropy_gap: float
    """Median |ΔH| in nats."""
    stored_gap: float
    """Median |Δq_y|."""
    shape_median: float
    """Median L1 distance of the shape vectors."""
    shape_p90: float
    coverage: float
    """Share of training item-level targets that were swapped."""


def shape_swap(base: ResidualTeacher, train: Int64[Tensor, "train"]) -> tuple[DonorTeacher, MatchingQuality]:
    """Pair training items of the same level and code by nearest shape and swap their teachers.

    Pairs are taken in ascending order of their L1 distance, ties by (smaller, larger) row; each item is used once, and
    one of an odd group keeps its own. Groups beyond 4,096 items compare near neighbours only.
    """
    geometry = base.geometry
    ordered = train.sort().values
    donors = own_donors(geometry)
    gaps: list[np.ndarray] = []
    for level in range(geometry.levels):
        stored = geometry.stored(ordered)[:, level]
        for code in stored.unique():
            members = ordered[stored == code]
            if len(members) < 2:
                continue
            shapes = torch.cat(list(_shapes(base, members, level))).cpu()
            first, second = match(shapes)
            donors[members[first], level], donors[members[second], level] = members[second], members[first]
            gaps.append(_gaps(shapes[first], shapes[second]))
    teacher = DonorTeacher(base, donors, train)
    entropy_gaps, stored_gaps, shape_gaps = np.concatenate(gaps, axis=1) if gaps else np.full((3, 1), np.nan)
    quality = MatchingQuality(
        entropy_gap=float(np.median(entropy_gaps)),
        stored_gap=float(np.median(stored_gaps)),
        shape_median=float(np.median(shape_gaps)),
        shape_p90=float(np.quantile(shape_gaps, 0.9)),
        coverage=teacher.replaced,
    )
    return teacher, quality


def _shapes(
    base: ResidualTeacher, members: Int64[Tensor, "member"], level: int
) -> Iterator[Float[Tensor, "part code"]]:
    """Shape vectors [Q̃(y), the other probabilities in descending order] (eq. teacher-shape-vector)."""
    for rows in members.split(_EXACT):
        teacher = base.targets(rows).values[:, level]
        at = base.geometry.stored(rows)[:, level, None]
        others = teacher.scatter(-1, at, -1.0).sort(dim=-1, descending=True).values[:, :-1]
        yield torch.cat([teacher.gather(-1, at), others], dim=-1)


def _gaps(ours: Float[Tensor, "pair code"], theirs: Float[Tensor, "pair code"]) -> Float[np.ndarray, "measure pair"]:
    entropy = (torch.special.entr(ours).sum(-1) - torch.special.entr(theirs).sum(-1)).abs()
    stored = (ours[:, 0] - theirs[:, 0]).abs()
    return torch.stack([entropy, stored, (ours - theirs).abs().sum(-1)]).numpy()


def match(shapes: Float[Tensor, "item code"]) -> tuple[Int64[Tensor, "pair"], Int64[Tensor, "pair"]]:
    """Greedy nearest pairs without replacement.

    >>> match(torch.tensor([[0.0], [1.0], [1.1], [0.3], [9.0]]))
    (tensor([0, 1]), tensor([3, 2]))
    """
    if len(shapes) <= _EXACT:
        places = np.arange(len(shapes))
        pairs = _dominant_pairs(torch.cdist(shapes, shapes, p=1).numpy())
    else:
        entropy = torch.special.entr(shapes).sum(-1).numpy()
        places = np.lexsort((entropy, shapes[:, 0].numpy()))
        pairs = _window_pairs(shapes[torch.from_numpy(places)])
    matched = np.sort(places[pairs], axis=1)
    matched = matched[np.argsort(matched[:, 0])]
    return torch.from_numpy(matched[:, 0].copy()), torch.from_numpy(matched[:, 1].copy())


def _dominant_pairs(distances: Float[np.ndarray, "item item"]) -> Int[np.ndarray, "pair 2"]:
    """Pairs of the greedy order, found many at a time.

    Two items that are each other's nearest are paired by the greedy order sooner or later, whatever else it does first,
    so all of them can be taken at once, and again among those left. The first of equal distances is the smaller row,
    which is the order's own tie-break.
    """
    np.fill_diagonal(distances, np.inf)
    alive = np.arange(len(distances))
    pairs = []
    while len(alive) > 1:
        nearest = distances.argmin(axis=1)
        mutual = np.flatnonzero(nearest[nearest] == np.arange(len(alive)))
        first = mutual[mutual < nearest[mutual]]
        pairs.append(np.stack([alive[first], alive[nearest[first]]], axis=1))
        keep = np.ones(len(alive), bool)
        keep[first] = keep[nearest[first]] = False
        alive, distances = alive[keep], distances[np.ix_(keep, keep)]
    return np.concatenate(pairs) if pairs else np.empty((0, 2), np.int64)


def _window_pairs(shapes: Float[Tensor, "item code"]) -> Int[np.ndarray, "pair 2"]:
    """Greedy pairs among items near in order; those left over when their window is used up pair with each other."""
    count = len(shapes)
    edges = []
    for step in range(1, _WINDOW + 1):
        gap = (shapes[step:] - shapes[:-step]).abs().sum(-1).numpy()
        left = np.arange(count - step)
        edges.append(np.stack([gap, left, left + step]))
    distance, left, right = np.concatenate(edges, axis=1)
    used = np.zeros(count, bool)
    pairs = []
    for edge in np.lexsort((right, left, distance)):
        one, other = int(left[edge]), int(right[edge])
        if not (used[one] or used[other]):
            used[one] = used[other] = True
            pairs.append((one, other))
    rest = np.flatnonzero(~used)
    pairs.extend(zip(rest[0::2].tolist(), rest[1::2].tolist(), strict=False))
    return np.array(pairs, np.int64).reshape(-1, 2)
