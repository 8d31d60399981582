"""Ranking metrics, on the percent scale, one value a query."""

import numpy as np
from jaxtyping import Bool, Float, Int


def recall(
    relevant: Bool[np.ndarray, "query rank"], positives: Int[np.ndarray, "query"], *, k: int
) -> Float[np.ndarray, "query"]:
    """Share of a query's positives among its first k results; the denominator is all of them, not min(k, all).

    >>> recall(np.array([[True, False, True]]), np.array([4]), k=3).tolist()
    [50.0]
    """
    return 100.0 * relevant[:, :k].sum(1) / positives


def ndcg(
    relevant: Bool[np.ndarray, "query rank"], positives: Int[np.ndarray, "query"], *, k: int
) -> Float[np.ndarray, "query"]:
    """Binary discounted gain of the first k results over the best possible; a rank that is not filled scores nothing.

    >>> ndcg(np.array([[True, False], [False, True]]), np.array([1, 1]), k=2).round(2).tolist()
    [100.0, 63.09]
    """
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    gained = relevant[:, :k] @ discounts[: relevant.shape[1]]
    best = np.concatenate([[0.0], np.cumsum(discounts)])[np.minimum(positives, k)]
    return 100.0 * gained / best
