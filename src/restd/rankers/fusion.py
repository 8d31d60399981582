"""Lists of several rankers made into one."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

DAMPING = 60.0


def fuse(
    lists: Sequence[Int[np.ndarray, "query _"]], k: int, *, weights: Sequence[float] | None = None
) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
    """Reciprocal rank fusion: an item scores Σ w / (60 + its rank) over the lists that have it; ties by row.

    >>> rows, scores = fuse([np.array([[4, 5]]), np.array([[5, 6]])], 3)
    >>> rows.tolist()
    [[5, 4, 6]]
    """
    shares = weights or [1.0] * len(lists)
    queries = len(lists[0])
    rows = np.full((queries, k), -1, np.int64)
    scores = np.full((queries, k), -np.inf, np.float64)
    for query in range(queries):
        score_of: dict[int, float] = {}
        for ranked, weight in zip(lists, shares, strict=True):
            for rank, row in enumerate(ranked[query].tolist()):
                if row >= 0:
                    score_of[row] = score_of.get(row, 0.0) + weight / (DAMPING + rank + 1)
        best = sorted(score_of.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        rows[query, : len(best)] = [row for row, _ in best]
        scores[query, : len(best)] = [score for _, score in best]
    return rows, scores
