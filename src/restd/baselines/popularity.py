"""Popularity: the same items for everybody, those that training queries name most."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from restd.data import read_judgments
from restd.data.judgments import times_trained
from restd.errors import DataError
from restd.index import SidIndex


@dataclass(frozen=True, slots=True, eq=False)
class Popularity:
    """Positive training pairs of every item.

    >>> rows, scores = Popularity(np.array([2.0, 5.0, 2.0])).rank(["anything"], 3)
    >>> rows.tolist(), scores.tolist()
    ([[1, 0, 2]], [[5.0, 2.0, 2.0]])
    """

    counts: Float[np.ndarray, "item"]

    @classmethod
    def of(cls, data: Path, index: SidIndex) -> "Popularity":
        """Count the training pairs of a data set."""
        counts = times_trained(read_judgments(data), index.table.ids)
        if not counts.any():
            raise DataError(f"{data} has no training pair of an item of the index, so nothing is popular.")
        return cls(counts.astype(np.float64))

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the most popular items and their counts, ties in the order of rows."""
        best = np.argsort(-self.counts, kind="stable")[:k]
        return np.tile(best, (len(queries), 1)), np.tile(self.counts[best], (len(queries), 1))
