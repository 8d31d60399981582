"""Histories: the items of each user in order of time, and which of them are held out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64

from restd._arrow import pc
from restd.data.dataset import find_table
from restd.data.readers import column_names, first_row, read_batches, required_text, resolve_columns
from restd.data.schema import SPLITS
from restd.errors import DataError

FEWEST = 3
"""Fewest events of a user for leave-one-out: one to learn from, one for validation, one for the test."""
_HELD_OUT = {"valid": 2, "test": 1}
"""Position of a user's held-out item, counted from the end."""
_MAX_TIME = 9e12
"""Largest time with a fraction: times are stored in millionths, and must fit 64 bits."""


@dataclass(frozen=True, slots=True)
class History:
    """The items of a user so far, the latest last. As a query it asks for the next item."""

    items: tuple[str, ...]
    user: str = ""

    def __str__(self) -> str:
        return ", ".join(self.items)


Query = str | History
"""What a ranker answers: a text, or a history to continue."""


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """Users and their events, oldest first; an event is an item that a user bought, rated or otherwise chose.

    >>> table = pa.table({"user": ["ann", "ann", "bob"], "item": ["x", "y", "x"], "time": [1, 2, 1]})
    >>> histories = Histories.of_table(table)
    >>> len(histories), histories.events, histories.history(0, end=2)
    (2, 3, History(items=('x', 'y'), user='ann'))
    """

    users: pa.StringArray
    items: pa.StringArray
    """Every item once."""
    first: Int64[np.ndarray, "user_plus_one"]
    """Where each user's events begin."""
    event_items: Int64[np.ndarray, "event"]
    """The item of each event as a position in `items`, one user after another."""
    original_from_end: Int64[np.ndarray, "event"] | None = None
    """`from_end` before events were dropped, so that the same items stay held out; None if none were dropped."""
    original_lengths: Int64[np.ndarray, "user"] | None = None
    """`lengths` before events were dropped; None if none were dropped."""

    @classmethod
    def read(cls, path: Path, *, columns: Mapping[str, str] | None = None) -> "tuple[Histories, int]":
        """Read a table of events, or the one in a data set; each item counts once per user, at its first time.

        The second value is the number of events that were dropped as repeats.
        """
        with_repeats = cls.of_table(read_histories(path, columns=columns))
        histories = with_repeats.once()
        return histories, with_repeats.events - histories.events

    @classmethod
    def of_table(cls, table: pa.Table) -> "Histories":
        """Make histories from a table that is sorted by user and then time, as `read_histories` returns it."""
        users, items = (
            pc.dictionary_encode(table[name]).unify_dictionaries().combine_chunks() for name in ("user", "item")
        )
        counts = np.bincount(_numbers(users), minlength=len(users.dictionary))
        return cls(users.dictionary, items.dictionary, np.concatenate([[0], counts.cumsum()]), _numbers(items))

    def __len__(self) -> int:
        return len(self.users)

    @property
    def events(self) -> int:
        """Number of events of all users."""
        return len(self.event_items)

    @property
    def lengths(self) -> Int64[np.ndarray, "user"]:
        """Number of events of each user."""
        return np.diff(self.first)

    @property
    def from_end(self) -> Int64[np.ndarray, "event"]:
        """Position of each event counted from the end of its user's whole history: 1 for the last."""
        if self.original_from_end is not None:
            return self.original_from_end
        return self.first[1:][self.user] - np.arange(self.events)

    @property
    def full_lengths(self) -> Int64[np.ndarray, "user"]:
        """Number of events of each user before any were dropped."""
        return self.lengths if self.original_lengths is None else self.original_lengths

    @property
    def user(self) -> Int64[np.ndarray, "event"]:
        """The user of each event."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def history(self, user: int, *, end: int) -> History:
        """Return a user's items before the event `end`."""
        rows = self.event_items[self.first[user] : end].tolist()
        return History(tuple(self.items[row].as_py() for row in rows), self.users[user].as_py())

    def keep(self, events: Bool[np.ndarray, "event"]) -> "Histories":
        """Keep these events, and the users and items that still have one, in the same order."""
        owner, event_items = self.user[events], self.event_items[events]
        users, items = np.unique(owner), np.unique(event_items)
        counts = np.bincount(np.searchsorted(users, owner), minlength=len(users))
        return Histories(
            self.users.take(pa.array(users)),
            self.items.take(pa.array(items)),
            np.concatenate([[0], counts.cumsum()]).astype(np.int64),
            np.searchsorted(items, event_items),
        )

    def once(self) -> "Histories":
        """Keep each item once per user, at its first time, so that no target is in its own history."""
        pairs = self.user * len(self.items) + self.event_items
        is_first = np.zeros(self.events, bool)
        is_first[np.unique(pairs, return_index=True)[1]] = True
        return self if is_first.all() else self.keep(is_first)

    def core(self, count: int) -> "Histories":
        """Drop users and items with fewer than `count` events, repeatedly, until all have as many (k-core)."""
        core = self
        while core.events:
            active_users = core.lengths >= count
            frequent_items = np.bincount(core.event_items, minlength=len(core.items)) >= count
            if active_users.all() and frequent_items.all():
                return core
            core = core.keep(active_users[core.user] & frequent_items[core.event_items])
        raise DataError(
            f"The {count}-core of {self.events:,} events of {len(self):,} users is empty: dropping users and items "
            f"with fewer than {count} events leaves none. Use a smaller --core."
        )

    def over(self, ids: pa.StringArray) -> "tuple[Histories, int]":
        """Return the same events over other items, and how many were dropped because `ids` lacks their item.

        The held-out items stay the same: where `ids` lacks one, its user has none, and no other item takes its place.
        """
        row_of_item = pc.fill_null(pc.index_in(self.items, value_set=ids), -1).to_numpy().astype(np.int64)
        rows = row_of_item[self.event_items]
        known = rows >= 0
        if not known.any():
            raise DataError(
                f"None of the {len(self.items):,} items of the histories is in the index. The histories' first item is "
                f"{self.items[0].as_py()!r}, that of the index {ids[0].as_py()!r}. Check that both use the same ids."
            )
        owner = self.user[known]
        users = np.unique(owner)
        counts = np.bincount(np.searchsorted(users, owner), minlength=len(users))
        first = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
        over_ids = Histories(
            self.users.take(pa.array(users)),
            ids,
            first,
            rows[known],
            original_from_end=self.from_end[known],
            original_lengths=self.full_lengths[users],
        )
        return over_ids, int((~known).sum())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield canonical batches; the time is the position in the user's history."""
        owner, event_items = pa.array(self.user), pa.array(self.event_items)
        time = pa.array(np.arange(self.events) - np.repeat(self.first[:-1], self.lengths))
        columns = {"user": self.users.take(owner), "item": self.items.take(event_items), "time": time}
        yield from pa.table(columns).to_batches(max_chunksize=1 << 16)


def _numbers(encoded: pa.DictionaryArray) -> Int64[np.ndarray, "_"]:
    return encoded.indices.to_numpy().astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes(Sequence[History]):
    """Beginnings of histories and the item that comes next, as positions in the events, without a copy."""

    histories: Histories
    user: Int64[np.ndarray, "prefix"]
    end: Int64[np.ndarray, "prefix"]
    """The event of the next item; the prefix is what the same user has before it."""

    @property
    def begin(self) -> Int64[np.ndarray, "prefix"]:
        """The first event of each prefix."""
        return self.histories.first[self.user]

    @property
    def targets(self) -> Int64[np.ndarray, "prefix"]:
        """The next item of each prefix."""
        return self.histories.event_items[self.end]

    def __len__(self) -> int:
        return len(self.end)

    def pick(self, rows: Int64[np.ndarray, "_"]) -> "Prefixes":
        """Return some of the prefixes, in this order."""
        return Prefixes(self.histories, self.user[rows], self.end[rows])

    @overload
    def __getitem__(self, row: int) -> History: ...
    @overload
    def __getitem__(self, row: slice) -> "Prefixes": ...
    def __getitem__(self, row: int | slice) -> "History | Prefixes":
        if isinstance(row, slice):
            return Prefixes(self.histories, self.user[row], self.end[row])
        return self.histories.history(int(self.user[row]), end=int(self.end[row]))


def leave_one_out(histories: Histories, split: str) -> Prefixes:
    """Return the prefixes of a split: each user's last item is for the test, the one before for validation.

    All earlier items train. The prefix of a held-out item is everything before it. Users with fewer than three events
    are left out.

    >>> table = pa.table({"user": ["u"] * 5, "item": list("abcde"), "time": range(5)})
    >>> histories = Histories.of_table(table)
    >>> train = leave_one_out(histories, "train")
    >>> [(str(prefix), histories.items[int(item)].as_py()) for prefix, item in zip(train, train.targets)]
    [('a', 'b'), ('a, b', 'c')]
    >>> str(leave_one_out(histories, "test")[0])
    'a, b, c, d'
    """
    if split not in SPLITS:
        raise DataError(f"Unknown split {split!r} of histories. Expected one of: {', '.join(SPLITS)}.")
    if not (histories.full_lengths >= FEWEST).any():
        raise DataError(
            f"No user has the {FEWEST} events that leave-one-out needs (to learn, to validate, to test): the longest "
            f"of {len(histories):,} histories has {histories.lengths.max(initial=0)}. Provide longer histories."
        )
    if split == "train":
        is_target = training_events(histories)
    else:
        is_target = _of_long_histories(histories) & (histories.from_end == _HELD_OUT[split])
    is_target[histories.first[:-1]] = False  # a prefix has at least one item
    ends = np.flatnonzero(is_target)
    return Prefixes(histories, histories.user[ends], ends)


def training_events(histories: Histories) -> Bool[np.ndarray, "event"]:
    """Return a mask of the events that a model may learn from: all but the two held out for each user."""
    return (histories.from_end > _HELD_OUT["valid"]) & _of_long_histories(histories)


def count_training_events(histories: Histories) -> Int64[np.ndarray, "item"]:
    """Return how many training events each item has; held-out events are not counted.

    >>> table = pa.table({"user": ["u"] * 4 + ["v"] * 3, "item": list("abcd") + list("acb"), "time": range(7)})
    >>> histories = Histories.of_table(table)
    >>> dict(zip(histories.items.to_pylist(), count_training_events(histories).tolist()))
    {'a': 2, 'b': 1, 'c': 0, 'd': 0}
    """
    items = histories.event_items[training_events(histories)]
    return np.bincount(items, minlength=len(histories.items)).astype(np.int64)


def _of_long_histories(histories: Histories) -> Bool[np.ndarray, "event"]:
    """Return a mask of the events of users whose history is long enough for leave-one-out."""
    return (histories.full_lengths >= FEWEST)[histories.user]


def count_leaks(histories: Histories) -> int:
    """Count held-out items that occur earlier in their user's history; there are none after `once`."""
    leaks = 0
    for split in _HELD_OUT:
        prefixes = leave_one_out(histories, split)
        if not len(prefixes):
            continue
        events = np.arange(histories.events)
        prefix = np.searchsorted(prefixes.begin, events, side="right") - 1  # users are in order
        inside = (prefix >= 0) & (events < prefixes.end[prefix.clip(0)])
        leaks += int((histories.event_items[inside] == prefixes.targets[prefix[inside]]).sum())
    return leaks


def read_histories(path: Path, *, columns: Mapping[str, str] | None = None) -> pa.Table:
    """Read histories into the canonical columns `user, item, time`, sorted by user and then time.

    Users come in order of first appearance. A time is a number or an ISO date and time; without a time column, and
    between equal times, the order of the file decides.
    """
    path = find_table(Path(path), "histories")
    column_of = resolve_columns(
        column_names(path), columns or {}, required=("user", "item"), optional=("time",), path=path
    )
    batches = list(read_batches(path, rows=1 << 16, columns=list(dict.fromkeys(column_of.values()))))
    if not batches:
        raise DataError(f"{path} contains no events. Expected one user and one item per row.")
    raw = pa.Table.from_batches(batches)
    user, item = (required_text(raw, column_of[name], path=path) for name in ("user", "item"))
    time = _times(raw[column_of["time"]], column_of["time"], path) if "time" in column_of else np.arange(len(raw))
    return in_order(pa.table({"user": user, "item": item, "time": pa.array(time)}))


def in_order(events: pa.Table) -> pa.Table:
    """Sort events by user, in order of first appearance, and then by time; equal times stay as they are.

    >>> in_order(pa.table({"user": ["u", "v", "u"], "item": ["a", "b", "c"], "time": [2, 1, 1]}))["item"].to_pylist()
    ['c', 'a', 'b']
    """
    user = _numbers(pc.dictionary_encode(events["user"]).unify_dictionaries().combine_chunks())
    return events.take(pa.array(np.lexsort((events["time"].to_numpy(), user))))


_TIMES = (pa.int64(), pa.float64(), pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us", "UTC"))


def _times(values: pa.ChunkedArray, column: str, path: Path) -> np.ndarray:
    """Return times as integers, in the unit of the file's whole numbers; with fractions, in millionths of it."""
    for kind in _TIMES:
        converted = _converted(values, kind)
        if converted is None:
            continue
        if kind == pa.float64():  # fractions of a second also decide the order
            return np.round(converted.to_numpy() * 1e6).astype(np.int64)
        return pc.cast(converted, pa.int64(), safe=False).to_numpy().astype(np.int64)
    row = next((row for row, value in enumerate(values) if all(_converted(value, kind) is None for kind in _TIMES)), 0)
    raise DataError(  # row 0: each value parses, but numbers and dates are mixed
        f"{path}: row {first_row(path) + row}, column {column!r}: {values[row].as_py()!r} is neither a number nor a "
        "date and time such as 2026-11-16T08:00:00."
    )


def _converted(values: pa.ChunkedArray | pa.Scalar, kind: pa.DataType) -> pa.ChunkedArray | pa.Scalar | None:
    """Return the values as another type, or None if one is missing, cannot be converted, or is not finite."""
    try:
        converted = pc.cast(values, kind)
    except pa.ArrowException:
        return None
    usable = pc.less(pc.abs(converted), _MAX_TIME) if kind == pa.float64() else pc.is_valid(converted)
    return converted if pc.all(pc.fill_null(usable, False)).as_py() else None
