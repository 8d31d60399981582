"""Candidates of a hybrid search: every item that some part proposes, scored by every part."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

GENERATOR, HEADS = "generator", "heads"
"""Parts that come from the model itself; the others are the snapshot's companions, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateTable:
    """Candidates of many queries, one row per query.

    Args:
        rows: rows of the items in the snapshot; -1 where a query has fewer candidates than others.
        scores: of every candidate, by part.
        proposed: which candidates are in a part's own list, by part.
    """

    rows: Int64[np.ndarray, "query candidate"]
    scores: Mapping[str, Float[np.ndarray, "query candidate"]]
    proposed: Mapping[str, Bool[np.ndarray, "query candidate"]]

    def among(self, parts: Iterable[str]) -> Bool[np.ndarray, "query candidate"]:
        """Candidates that one of these parts proposes."""
        among = np.zeros(self.rows.shape, bool)
        for part in parts:
            among |= self.proposed[part]
        return among & (self.rows >= 0)

    def features(
        self, parts: Sequence[str]
    ) -> tuple[Float[np.ndarray, "query candidate part"], Bool[np.ndarray, "query candidate"]]:
        """Scores of some parts, each scaled to [0, 1] per query, and which candidates these parts have."""
        among = self.among(parts)
        scaled = np.stack([unit_range(self.scores[part], among) for part in parts], axis=-1)
        return scaled, among

    def fused(self, weights: Mapping[str, float]) -> Float[np.ndarray, "query candidate"]:
        """Weighted sums of scaled scores, -inf for no candidate; a part of weight 0 has no say and proposes nothing."""
        parts = [part for part, weight in weights.items() if weight]
        scaled, among = self.features(parts)
        total = scaled @ np.array([weights[part] for part in parts], np.float64)
        return np.where(among, total, -np.inf)


def unit_range(
    scores: Float[np.ndarray, "query candidate"], among: Bool[np.ndarray, "query candidate"]
) -> Float[np.ndarray, "query candidate"]:
    """Scores of each query's candidates scaled to [0, 1]; 0 for an impossible one, and where all are equal.

    >>> unit_range(np.array([[3.0, 1.0, 2.0, 9.0]]), np.array([[True, True, True, False]])).tolist()
    [[1.0, 0.0, 0.5, 0.0]]
    """
    real = among & np.isfinite(scores)
    least = np.where(real, scores, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    most = np.where(real, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    spread = np.where(most > least, most - least, 1.0)
    return np.where(real, (np.where(real, scores, 0.0) - np.where(real, least, 0.0)) / spread, 0.0)


def best_candidates(
    rows: Int64[np.ndarray, "query candidate"], scores: Float[np.ndarray, "query candidate"], k: int
) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
    """The k best candidates of each query, ties in the order of rows; -1 where there are fewer.

    >>> best_candidates(np.array([[7, 3, 5]]), np.array([[1.0, 1.0, -np.inf]]), 4)[0].tolist()
    [[3, 7, -1, -1]]
    """
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    ranked = np.take_along_axis(scores, order, axis=1)
    best = np.where(ranked > -np.inf, np.take_along_axis(rows, order, axis=1), -1)
    missing = k - order.shape[1]
    if missing <= 0:
        return best, ranked
    padding = ((0, 0), (0, missing))
    return np.pad(best, padding, constant_values=-1), np.pad(ranked, padding, constant_values=-np.inf)
