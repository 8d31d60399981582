"""Popularity: the same items for everybody, those that training names most."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int, Int64

from restd.data import EventSpans, Histories, Query, read_judgments
from restd.data.histories import count_training_events
from restd.data.judgments import count_training_pairs
from restd.errors import DataError
from restd.rankers.registry import RANKERS, RankerEntry, RankerTask, refuse_foreign_histories
from restd.rankers.top_k import rank_by_scores
from restd.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class Popularity:
    """Positive training pairs of every item.

    >>> rows, scores = Popularity(np.array([2.0, 5.0, 2.0]), "hash").rank(["anything"], 3)
    >>> rows.tolist(), scores.tolist()
    ([[1, 0, 2]], [[5.0, 2.0, 2.0]])
    """

    counts: Float[np.ndarray, "item"]
    snapshot_hash: str
    name: ClassVar[str] = "popularity"

    @classmethod
    def of(cls, snapshot: Snapshot, data: Path) -> "Popularity":
        """Count the training pairs of a data set."""
        counts = count_training_pairs(read_judgments(data), snapshot.ids)
        if not counts.any():
            raise DataError(f"{data} has no training pair of an item of the index, so nothing is popular.")
        return cls(counts.astype(np.float64), snapshot.hash)

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the most popular items and how often training names them, ties in the order of rows."""
        order = self._order[:k]
        return np.tile(order, (len(queries), 1)), np.tile(self.counts[order], (len(queries), 1))

    def scores(
        self, queries: Sequence[str], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """How often training names chosen items, as log(1 + count): the tenth pair says less than the first."""
        return np.log1p(self.counts[rows])

    @cached_property
    def _order(self) -> Int64[np.ndarray, "item"]:
        """All rows, the most popular first: the same for every query."""
        return np.argsort(-self.counts, kind="stable")

    def following(
        self, snapshot: Snapshot, kept: Int64[np.ndarray, "_"], vectors: Float[np.ndarray, "added input"] | None
    ) -> "Popularity":
        """The same for a snapshot that follows its own; nobody asked for the new items yet."""
        added = 0 if vectors is None else len(vectors)
        return Popularity(np.concatenate([self.counts[kept], np.zeros(added)]), snapshot.hash)

    def arrays(self) -> dict[str, np.ndarray]:
        """What a bundle keeps of it: a bundle has no judgments to count again."""
        return {"counts": self.counts}


@dataclass(frozen=True, slots=True, eq=False)
class HistoryPopularity:
    """Training events of every item.

    >>> from restd.data import History
    >>> ids, counts = pa.array(["a", "b", "c"]), np.array([2.0, 5.0, 2.0])
    >>> rows, scores = HistoryPopularity(counts, ids, "hash").rank([History(("b",))], 4)
    >>> rows.tolist(), scores.tolist()
    ([[1, 0, 2, -1]], [[5.0, 2.0, 2.0, -inf]])
    >>> HistoryPopularity(counts, ids, "hash", seen=False).rank([History(("b",))], 2)[0].tolist()
    [[0, 2]]
    """

    counts: Float[np.ndarray, "item"]
    ids: pa.StringArray
    snapshot_hash: str
    seen: bool = True
    """Whether items of the history may be recommended again."""

    @classmethod
    def of(cls, snapshot: Snapshot, histories: Histories, *, seen: bool = True) -> "HistoryPopularity":
        """Count the training events of histories over a snapshot: what users hold out is not counted."""
        refuse_foreign_histories(histories, snapshot)
        return cls(count_training_events(histories).astype(np.float64), snapshot.ids, snapshot.hash, seen)

    def rank(
        self, queries: Sequence[Query], k: int
    ) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the items with most events and their counts, ties in the order of rows."""
        spans = EventSpans.of_queries(queries, self.ids)
        return rank_by_scores(spans, k, lambda part: np.tile(self.counts, (len(part), 1)), seen=self.seen)


RANKERS.add(
    RankerEntry(
        "popularity",
        "The same items for everybody: those that training names most.",
        {
            "search": RankerTask(
                lambda context: Popularity.of(context.snapshot, context.data),
                {"search": "training pairs of an item"},
                restore=lambda arrays, context: Popularity(arrays["counts"], context.snapshot.hash),
            ),
            "recommend": RankerTask(
                lambda context: HistoryPopularity.of(context.snapshot, context.histories(), seen=context.seen),
                {"search": "training events of an item"},
                seen="optional",
            ),
        },
    )
)
