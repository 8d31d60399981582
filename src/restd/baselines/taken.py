"""Popularity among histories: the same items for everybody, those that were taken most."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

from restd.baselines.asked import best_rows, refuse_nothing
from restd.data import Histories, Query
from restd.data.histories import trained_events


@dataclass(frozen=True, slots=True, eq=False)
class TakenPopularity:
    """Training events of every item.

    >>> from restd.data import History
    >>> rows, scores = TakenPopularity(np.array([2.0, 5.0, 2.0])).rank([History(("anything",))], 4)
    >>> rows.tolist(), scores.tolist()
    ([[1, 0, 2, -1]], [[5.0, 2.0, 2.0, -inf]])
    """

    counts: Float[np.ndarray, "item"]

    @classmethod
    def of(cls, histories: Histories) -> "TakenPopularity":
        """Count the training events of histories over an index: what users hold out is not counted."""
        trained = histories.taken[trained_events(histories)]
        return cls(np.bincount(trained, minlength=len(histories.items)).astype(np.float64))

    def rank(
        self, queries: Sequence[Query], k: int
    ) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the most taken items and their counts, ties in the order of rows; nobody's history is looked at."""
        refuse_nothing(k)
        (best,) = best_rows(self.counts[None], k)
        rows, scores = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf)
        rows[:, : len(best)], scores[:, : len(best)] = best, self.counts[best]
        return rows, scores
