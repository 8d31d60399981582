"""Runs of events: histories as rows of an index, without copies where many share their events."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64

from restd._arrow import pc
from restd.data.histories import History, Prefixes, Query
from restd.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of events, one a history, oldest first: places in the events, which runs may share.

    >>> runs = Runs.asked([History(("b", "a", "a")), History(("b",))], pa.array(["a", "b"]))
    >>> runs.flat.tolist(), runs.latest(2).flat.tolist(), runs.latest(1).begin.tolist()
    ([1, 0, 0, 1], [0, 0, 1], [2, 3])
    """

    rows: Int64[np.ndarray, "event"]
    """Items as rows of the index."""
    begin: Int64[np.ndarray, "run"]
    count: Int64[np.ndarray, "run"]

    @classmethod
    def asked(cls, queries: Sequence[Query], ids: pa.StringArray) -> "Runs":
        """Look up the items of histories; an empty history, or one with an item that `ids` lacks, is an error."""
        if isinstance(queries, Prefixes) and len(queries) and queries.of.items.equals(ids):  # rows are there already
            first, last = int(queries.begin.min()), int(queries.end.max())  # a batch does not copy all events
            known = cls(queries.of.taken[first:last], queries.begin - first, queries.end - queries.begin)
            if known.count.all():
                return known
        histories = [_history(query) for query in queries]
        count = np.array([len(history.items) for history in histories], np.int64)
        if not count.all():
            raise DataError(
                f"The history{_whose(histories[int(count.argmin())])} is empty; wanted at least one item that was "
                "taken, the latest last."
            )
        taken = pa.array([item for history in histories for item in history.items], pa.string())
        rows = pc.index_in(taken, value_set=ids)
        if rows.null_count:
            place = pc.index(pc.is_null(rows), True).as_py()
            history = histories[int(np.searchsorted(count.cumsum(), place, side="right"))]
            raise DataError(
                f"The history{_whose(history)} names item {taken[place].as_py()!r}, which is not among the "
                f"{len(ids):,} items of the index; leave it out, or add it to the index."
            )
        return cls(rows.to_numpy().astype(np.int64), count.cumsum() - count, count)

    def __len__(self) -> int:
        return len(self.count)

    @property
    def flat(self) -> Int64[np.ndarray, "_"]:
        """The events of all runs, one run after another."""
        return self.rows[np.repeat(self.begin, self.count) + self.places]

    @property
    def places(self) -> Int64[np.ndarray, "_"]:
        """Place of each of those events in its run."""
        return np.arange(self.count.sum()) - np.repeat(self.count.cumsum() - self.count, self.count)

    @property
    def owner(self) -> Int64[np.ndarray, "_"]:
        """Which run each of those events is of."""
        return np.repeat(np.arange(len(self)), self.count)

    @property
    def following(self) -> "Runs":
        """What came right after each event."""
        return Runs(self.rows, self.begin + 1, self.count)

    def latest(self, most: int) -> "Runs":
        """At most so many events of each run, the latest."""
        count = np.minimum(self.count, most)
        return Runs(self.rows, self.begin + self.count - count, count)

    def pick(self, runs: Int64[np.ndarray, "_"] | slice) -> "Runs":
        """Some of the runs."""
        return Runs(self.rows, self.begin[runs], self.count[runs])

    def alike(self) -> "list[Int64[np.ndarray, '_']]":
        """Runs of similar length, the longest less than twice the shortest: padded together, they waste little."""
        kind = np.log2(self.count).astype(np.int64)
        return [np.flatnonzero(kind == value) for value in np.unique(kind)]

    def padded(self) -> tuple[Int64[np.ndarray, "run place"], Bool[np.ndarray, "run place"]]:
        """Runs filled up behind with row 0, and which places are real."""
        mask = np.arange(self.count.max(initial=0)) < self.count[:, None]
        found = np.zeros(mask.shape, np.int64)
        found[mask] = self.flat
        return found, mask


def _history(query: Query) -> History:
    if not isinstance(query, History):
        raise ConfigError("This model recommends by what was taken and cannot read words; give it a history.")
    return query


def _whose(history: History) -> str:
    return f" of user {history.user!r}" if history.user else ""
