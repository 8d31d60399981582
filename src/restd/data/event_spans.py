"""Spans of events: histories as rows of an index, without copies where several share their events."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64

from restd._arrow import pc
from restd.data.histories import History, Prefixes, Query
from restd.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, eq=False)
class EventSpans:
    """One span of events per history, oldest event first; spans may overlap.

    >>> spans = EventSpans.of_queries([History(("b", "a", "a")), History(("b",))], pa.array(["a", "b"]))
    >>> spans.flat.tolist(), spans.latest(2).flat.tolist(), spans.latest(1).begin.tolist()
    ([1, 0, 0, 1], [0, 0, 1], [2, 3])
    """

    rows: Int64[np.ndarray, "event"]
    """The item of each event, as a row of the index."""
    begin: Int64[np.ndarray, "span"]
    """Where in `rows` each span begins."""
    count: Int64[np.ndarray, "span"]
    """The number of events of each span."""

    @classmethod
    def of_queries(cls, queries: Sequence[Query], ids: pa.StringArray) -> "EventSpans":
        """Look up the items of histories; an empty history, or one with an item that is not in `ids`, is an error."""
        if isinstance(queries, Prefixes) and len(queries) and queries.histories.items.equals(ids):
            # the events are rows already, and a batch does not copy all of them
            first, last = int(queries.begin.min()), int(queries.end.max())
            rows = queries.histories.event_items[first:last]
            spans = cls(rows, queries.begin - first, queries.end - queries.begin)
            if spans.count.all():
                return spans
        histories = [_require_history(query) for query in queries]
        count = np.array([len(history.items) for history in histories], np.int64)
        if not count.all():
            raise DataError(
                f"The history{_of_user(histories[int(count.argmin())])} is empty. Expected at least one item, the "
                "latest last."
            )
        items = pa.array([item for history in histories for item in history.items], pa.string())
        rows = pc.index_in(items, value_set=ids)
        if rows.null_count:
            event = pc.index(pc.is_null(rows), True).as_py()
            history = histories[int(np.searchsorted(count.cumsum(), event, side="right"))]
            raise DataError(
                f"The history{_of_user(history)} contains item {items[event].as_py()!r}, which is not among the "
                f"{len(ids):,} items of the index. Leave it out, or add it to the index."
            )
        return cls(rows.to_numpy().astype(np.int64), count.cumsum() - count, count)

    def __len__(self) -> int:
        return len(self.count)

    @property
    def flat(self) -> Int64[np.ndarray, "_"]:
        """The items of all spans, one span after another."""
        return self.rows[np.repeat(self.begin, self.count) + self.positions]

    @property
    def positions(self) -> Int64[np.ndarray, "_"]:
        """The position of each event of `flat` in its span."""
        return np.arange(self.count.sum()) - np.repeat(self.count.cumsum() - self.count, self.count)

    @property
    def owner(self) -> Int64[np.ndarray, "_"]:
        """The span of each event of `flat`."""
        return np.repeat(np.arange(len(self)), self.count)

    @property
    def next_events(self) -> "EventSpans":
        """The same spans, one event later."""
        return EventSpans(self.rows, self.begin + 1, self.count)

    def latest(self, count: int) -> "EventSpans":
        """Return the latest events of each span, at most `count`."""
        lengths = np.minimum(self.count, count)
        return EventSpans(self.rows, self.begin + self.count - lengths, lengths)

    def pick(self, spans: Int64[np.ndarray, "_"] | slice) -> "EventSpans":
        """Return some of the spans."""
        return EventSpans(self.rows, self.begin[spans], self.count[spans])

    def by_length(self) -> "list[Int64[np.ndarray, '_']]":
        """Group spans so that the longest of a group is less than twice the shortest: little padding is wasted."""
        magnitude = np.log2(self.count).astype(np.int64)
        return [np.flatnonzero(magnitude == value) for value in np.unique(magnitude)]

    def padded(self) -> tuple[Int64[np.ndarray, "span position"], Bool[np.ndarray, "span position"]]:
        """Return one row per span, padded at the end with item 0, and a mask of the real events."""
        mask = np.arange(self.count.max(initial=0)) < self.count[:, None]
        items = np.zeros(mask.shape, np.int64)
        items[mask] = self.flat
        return items, mask


def _require_history(query: Query) -> History:
    if not isinstance(query, History):
        raise ConfigError(
            "This model recommends from a history and cannot read a text query. Pass a history, as in "
            "History(items=('id1', 'id2'))."
        )
    return query


def _of_user(history: History) -> str:
    return f" of user {history.user!r}" if history.user else ""
