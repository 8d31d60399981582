"""Popularity: the same items for everybody, those that training queries name most."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from restd._arrow import pc
from restd.data import read_judgments
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
        judgments = read_judgments(data)
        train = judgments.filter(pc.and_(pc.equal(judgments["split"], "train"), pc.greater(judgments["grade"], 0.0)))
        known = train.filter(pc.is_in(train["item"], value_set=index.table.ids))
        if not len(known):
            raise DataError(f"{data} has no training pair of an item of the index, so nothing is popular.")
        rows = index.table.rows(known["item"].to_pylist())
        return cls(np.bincount(rows, minlength=len(index)).astype(np.float64))

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the most popular items and their counts, ties in the order of rows."""
        best = np.argsort(-self.counts, kind="stable")[:k]
        return np.tile(best, (len(queries), 1)), np.tile(self.counts[best], (len(queries), 1))
