"""Popularity among histories: the same items for everybody, those that were taken most."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64

from restd.baselines.asked import ranked
from restd.data import Histories, Query, Runs
from restd.data.histories import times_taken


@dataclass(frozen=True, slots=True, eq=False)
class TakenPopularity:
    """Training events of every item.

    >>> from restd.data import History
    >>> ids, counts = pa.array(["a", "b", "c"]), np.array([2.0, 5.0, 2.0])
    >>> rows, scores = TakenPopularity(counts, ids).rank([History(("b",))], 4)
    >>> rows.tolist(), scores.tolist()
    ([[1, 0, 2, -1]], [[5.0, 2.0, 2.0, -inf]])
    >>> TakenPopularity(counts, ids, seen=False).rank([History(("b",))], 2)[0].tolist()
    [[0, 2]]
    """

    counts: Float[np.ndarray, "item"]
    ids: pa.StringArray
    seen: bool = True
    """Whether items of the history may be recommended again."""

    @classmethod
    def of(cls, histories: Histories, *, seen: bool = True) -> "TakenPopularity":
        """Count the training events of histories over an index: what users hold out is not counted."""
        return cls(times_taken(histories).astype(np.float64), histories.items, seen)

    def rank(
        self, queries: Sequence[Query], k: int
    ) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the most taken items and their counts, ties in the order of rows."""
        runs = Runs.asked(queries, self.ids)
        return ranked(runs, k, lambda part: np.tile(self.counts, (len(part), 1)), seen=self.seen)
