"""Scores of all items made into lists, for rankers that read histories."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int64

from restd.data import Runs
from restd.errors import ConfigError

_TOGETHER = 512
"""Queries whose scores of all items are held at a time."""


def ranked(
    runs: Runs, k: int, score: Callable[[Runs], Float[np.ndarray, "run item"]], *, seen: bool
) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
    """Rank all items for each run, a few hundred runs at a time; an item of score -∞ is in no list.

    Args:
        runs: what was taken.
        k: length of the lists.
        score: of every item for each run.
        seen: whether items of the run itself may be in its list.
    """
    refuse_nothing(k)
    rows, scores = np.full((len(runs), k), -1, np.int64), np.full((len(runs), k), -np.inf)
    for start in range(0, len(runs), _TOGETHER):
        part = runs.pick(slice(start, start + _TOGETHER))
        values = score(part)
        if not seen:
            values[part.owner, part.flat] = -np.inf
        for query, found in enumerate(best_rows(values, k), start):
            rows[query, : len(found)] = found
            scores[query, : len(found)] = values[query - start, found]
    return rows, scores


def refuse_nothing(k: int) -> None:
    """Refuse a wish for no items."""
    if k < 1:
        raise ConfigError(f"k = {k} was asked for; wanted at least 1.")


def best_rows(scores: Float[np.ndarray, "query item"], k: int) -> list[Int64[np.ndarray, "_"]]:
    """Each query's best items, ties in the order of rows; none of score -∞.

    >>> [found.tolist() for found in best_rows(np.array([[1.0, 3.0, 1.0], [-np.inf, 2.0, -np.inf]]), 2)]
    [[1, 0], [1]]
    """
    least = torch.from_numpy(scores).topk(min(k, scores.shape[1]), sorted=False).values.amin(dim=1).numpy()
    found = []
    for held, bound in zip(scores, least, strict=True):
        rows = np.flatnonzero((held >= bound) & (held > -np.inf))
        found.append(rows[np.argsort(-held[rows], kind="stable")[:k]])
    return found
