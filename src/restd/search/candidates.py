"""Candidates of a hybrid search: every item that some part proposes, scored by every part."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

GENERATOR, HEADS = "generator", "heads"
"""Parts that come from the model itself; the others are the snapshot's companions, by name."""
LEARNED_FROM_PAIRS = frozenset({GENERATOR, "popularity"})
"""Parts that know an item by its training pairs alone: their score of an item without any is ignorance, not evidence
against it. The heads learned from pairs too, but score an item by its latent, which a new item has."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateTable:
    """Candidates of many queries, one row per query.

    Args:
        rows: rows of the items in the snapshot; -1 where a query has fewer candidates than others.
        scores: of every candidate, by part.
        proposed: which candidates are in a part's own list, by part.
        new: which candidates were added after the model was trained; None where none were.
    """

    rows: Int64[np.ndarray, "query candidate"]
    scores: Mapping[str, Float[np.ndarray, "query candidate"]]
    proposed: Mapping[str, Bool[np.ndarray, "query candidate"]]
    new: Bool[np.ndarray, "query candidate"] | None = None

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
        """Weighted sums of scaled scores, -inf for no candidate; a part of weight 0 has no say and proposes nothing.

        Of items that are new to the model, parts in `LEARNED_FROM_PAIRS` have no say: the other parts share their
        weight in proportion. Where no other part has weight, they keep it.

        >>> rows, all_three = np.array([[3, 4, 5]]), np.ones((1, 3), bool)
        >>> scores = {"generator": np.array([[1.0, 0.0, 0.0]]), "bm25": np.array([[0.0, 1.0, 1.0]])}
        >>> table = CandidateTable(rows, scores, dict.fromkeys(scores, all_three), rows == 5)
        >>> table.fused({"generator": 2.0, "bm25": 1.0}).tolist()
        [[2.0, 1.0, 3.0]]
        """
        parts, values, values_of_new = usable_weights(weights)
        scaled, among = self.features(parts)
        total = scaled @ values
        if self.new is not None and not np.array_equal(values, values_of_new):
            total = np.where(self.new, scaled @ values_of_new, total)
        return np.where(among, total, -np.inf)


def usable_weights(
    weights: Mapping[str, float],
) -> tuple[list[str], Float[np.ndarray, "part"], Float[np.ndarray, "part"]]:
    """Parts that have a say, their weights, and their weights for items that are new to the model.

    >>> parts, known, new = usable_weights({"generator": 2.0, "bm25": 1.0, "dense": 0.0})
    >>> parts, known.tolist(), new.tolist()
    (['generator', 'bm25'], [2.0, 1.0], [0.0, 3.0])
    """
    parts = [part for part, weight in weights.items() if weight]
    values = np.array([weights[part] for part in parts], np.float64)
    informed = np.array([part not in LEARNED_FROM_PAIRS for part in parts])
    if not informed.any() or informed.all():
        return parts, values, values
    return parts, values, np.where(informed, values * (values.sum() / values[informed].sum()), 0.0)


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
