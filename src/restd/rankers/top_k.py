"""Scores of all items made into lists, for rankers that read histories."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int64

from restd.data import EventSpans
from restd.errors import ConfigError

_BATCH = 512
"""Queries whose scores of all items are in memory at a time."""


def rank_by_scores(
    spans: EventSpans, k: int, score: Callable[[EventSpans], Float[np.ndarray, "run item"]], *, seen: bool
) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
    """Rank all items for each history, a few hundred histories at a time; an item of score -∞ is in no list.

    Args:
        spans: the histories.
        k: length of the lists.
        score: gives the score of every item for each history.
        seen: whether items of the history itself may be in its list.
    """
    if k < 1:
        raise ConfigError(f"k = {k}: expected at least 1.")
    rows, scores = np.full((len(spans), k), -1, np.int64), np.full((len(spans), k), -np.inf)
    for start in range(0, len(spans), _BATCH):
        part = spans.pick(slice(start, start + _BATCH))
        values = score(part)
        if not seen:
            values[part.owner, part.flat] = -np.inf
        for query, best in enumerate(best_rows(values, k), start):
            rows[query, : len(best)] = best
            scores[query, : len(best)] = values[query - start, best]
    return rows, scores


def best_rows(scores: Float[np.ndarray, "query item"], k: int) -> list[Int64[np.ndarray, "_"]]:
    """Each query's best items, ties in the order of rows; none of score -∞.

    >>> [rows.tolist() for rows in best_rows(np.array([[1.0, 3.0, 1.0], [-np.inf, 2.0, -np.inf]]), 2)]
    [[1, 0], [1]]
    """
    least = torch.from_numpy(scores).topk(min(k, scores.shape[1]), sorted=False).values.amin(dim=1).numpy()
    lists = []
    for values, bound in zip(scores, least, strict=True):
        rows = np.flatnonzero((values >= bound) & (values > -np.inf))
        lists.append(rows[np.argsort(-values[rows], kind="stable")[:k]])
    return lists
