"""Histories: which user took which item, in which order, and what of it is held out."""

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
"""Events of a user who can be held out: something to know, the item to validate with, the item to test with."""
_BEHIND = {"valid": 2, "test": 1}
"""Where a user's held-out item stands, counted from the end."""
_LARGEST = 9e12
"""Times with fractions count in millionths, and this many still fit 64 bits."""


@dataclass(frozen=True, slots=True)
class History:
    """What a user took so far, the latest last; asked what comes next, it is a query."""

    items: tuple[str, ...]
    user: str = ""

    def __str__(self) -> str:
        return ", ".join(self.items)


Query = str | History
"""What a ranker is asked: words, or what comes next."""


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """Users and what they took, oldest first.

    >>> table = pa.table({"user": ["ann", "ann", "bob"], "item": ["x", "y", "x"], "time": [1, 2, 1]})
    >>> held = Histories.of_table(table)
    >>> len(held), held.events, held.history(0, end=2)
    (2, 3, History(items=('x', 'y'), user='ann'))
    """

    users: pa.StringArray
    items: pa.StringArray
    """Every item once; `taken` counts in it."""
    first: Int64[np.ndarray, "user_plus_one"]
    """Where each user's events begin."""
    taken: Int64[np.ndarray, "event"]
    """Items, one user after another."""
    behind: Int64[np.ndarray, "event"] | None = None
    """Places from the end of what each user took, 1 for the last, where events are missing since; None where none are.
    What is held out stays what it was, whatever an index has lost."""
    had: Int64[np.ndarray, "user"] | None = None
    """Events of each user before any went missing; None where none did."""

    @classmethod
    def read(cls, path: Path, *, columns: Mapping[str, str] | None = None) -> "tuple[Histories, int]":
        """Read a table of events, or the one in a data set; an item counts once a user, at its first time.

        Returns also how many events were repeats.
        """
        whole = cls.of_table(read_histories(path, columns=columns))
        once = whole.once()
        return once, whole.events - once.events

    @classmethod
    def of_table(cls, table: pa.Table) -> "Histories":
        """Take the table that `read_histories` returns: sorted by user, then time."""
        users, items = (
            pc.dictionary_encode(table[name]).unify_dictionaries().combine_chunks() for name in ("user", "item")
        )
        counts = np.bincount(_numbers(users), minlength=len(users.dictionary))
        return cls(users.dictionary, items.dictionary, np.concatenate([[0], counts.cumsum()]), _numbers(items))

    def __len__(self) -> int:
        return len(self.users)

    @property
    def events(self) -> int:
        """Events of all users."""
        return len(self.taken)

    @property
    def lengths(self) -> Int64[np.ndarray, "user"]:
        """Events of each user."""
        return np.diff(self.first)

    @property
    def left(self) -> Int64[np.ndarray, "event"]:
        """Place of each event from the end of what its user took: 1 for the last."""
        return self.first[1:][self.user] - np.arange(self.events) if self.behind is None else self.behind

    @property
    def taken_in_all(self) -> Int64[np.ndarray, "user"]:
        """Events each user had before any went missing."""
        return self.lengths if self.had is None else self.had

    @property
    def user(self) -> Int64[np.ndarray, "event"]:
        """Whose each event is."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def history(self, user: int, *, end: int) -> History:
        """A user's events before the place `end` in `taken`."""
        held = self.taken[self.first[user] : end]
        return History(tuple(self.items[item].as_py() for item in held.tolist()), self.users[user].as_py())

    def keep(self, events: Bool[np.ndarray, "event"]) -> "Histories":
        """Only these events, and the users and items that still have one, in the same order."""
        owner, taken = self.user[events], self.taken[events]
        users, items = np.unique(owner), np.unique(taken)
        counts = np.bincount(np.searchsorted(users, owner), minlength=len(users))
        return Histories(
            self.users.take(pa.array(users)),
            self.items.take(pa.array(items)),
            np.concatenate([[0], counts.cumsum()]).astype(np.int64),
            np.searchsorted(items, taken),
        )

    def once(self) -> "Histories":
        """Each item once a user, at its first time: so no target is ever in its own history."""
        pairs = self.user * len(self.items) + self.taken
        chosen = np.zeros(self.events, bool)
        chosen[np.unique(pairs, return_index=True)[1]] = True
        return self if chosen.all() else self.keep(chosen)

    def core(self, count: int) -> "Histories":
        """Drop users and items with fewer events than `count`, again and again until none is left (k-core)."""
        held = self
        while held.events:
            busy, liked = held.lengths >= count, np.bincount(held.taken, minlength=len(held.items)) >= count
            if busy.all() and liked.all():
                return held
            held = held.keep(busy[held.user] & liked[held.taken])
        raise DataError(
            f"No user and item have {count} events each once those with fewer are dropped ({self.events:,} events of "
            f"{len(self):,} users were given); ask for a smaller core."
        )

    def over(self, ids: pa.StringArray) -> "tuple[Histories, int]":
        """The same events with `taken` as rows of `ids`, and how many were dropped because `ids` lacks their item.

        What users hold out does not change: an item that `ids` lacks is nobody's target, and no other takes its place.
        """
        place = pc.fill_null(pc.index_in(self.items, value_set=ids), -1).to_numpy().astype(np.int64)
        rows = place[self.taken]
        known = rows >= 0
        if not known.any():
            raise DataError(
                f"None of the {len(self.items):,} items of the histories is in the index, whose first item is "
                f"{ids[0].as_py()!r}; the first of theirs is {self.items[0].as_py()!r}. Check that both match."
            )
        owner = self.user[known]
        users = np.unique(owner)
        counts = np.bincount(np.searchsorted(users, owner), minlength=len(users))
        first = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
        had = self.taken_in_all[users]
        held = Histories(self.users.take(pa.array(users)), ids, first, rows[known], self.left[known], had)
        return held, int((~known).sum())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """As canonical batches; the time is the place in the user's history."""
        owner, taken = pa.array(self.user), pa.array(self.taken)
        time = pa.array(np.arange(self.events) - np.repeat(self.first[:-1], self.lengths))
        columns = {"user": self.users.take(owner), "item": self.items.take(taken), "time": time}
        yield from pa.table(columns).to_batches(max_chunksize=1 << 16)


def _numbers(encoded: pa.DictionaryArray) -> Int64[np.ndarray, "_"]:
    return encoded.indices.to_numpy().astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes(Sequence[History]):
    """Histories that end before something was taken, and what that was: no copy of the events, only places in them."""

    of: Histories
    user: Int64[np.ndarray, "prefix"]
    end: Int64[np.ndarray, "prefix"]
    """Place of the item that came next; the history is what the same user took before it."""

    @property
    def begin(self) -> Int64[np.ndarray, "prefix"]:
        """Place of each history's first event."""
        return self.of.first[self.user]

    @property
    def targets(self) -> Int64[np.ndarray, "prefix"]:
        """The items that came next."""
        return self.of.taken[self.end]

    def __len__(self) -> int:
        return len(self.end)

    def pick(self, places: Int64[np.ndarray, "_"]) -> "Prefixes":
        """Some of them, in this order."""
        return Prefixes(self.of, self.user[places], self.end[places])

    @overload
    def __getitem__(self, place: int) -> History: ...
    @overload
    def __getitem__(self, place: slice) -> "Prefixes": ...
    def __getitem__(self, place: int | slice) -> "History | Prefixes":
        if isinstance(place, slice):
            return Prefixes(self.of, self.user[place], self.end[place])
        return self.of.history(int(self.user[place]), end=int(self.end[place]))


def leave_one_out(histories: Histories, split: str) -> Prefixes:
    """Prefix and next item: a user's last item is for the test, the one before for validation, the others train.

    The history of a held-out item is everything before it. Users with fewer than three events are left out.

    >>> table = pa.table({"user": ["u"] * 5, "item": list("abcde"), "time": range(5)})
    >>> held = Histories.of_table(table)
    >>> [(str(history), held.items[int(item)].as_py()) for history, item in
    ...  zip(leave_one_out(held, "train"), leave_one_out(held, "train").targets)]
    [('a', 'b'), ('a, b', 'c')]
    >>> str(leave_one_out(held, "test")[0])
    'a, b, c, d'
    """
    if split not in SPLITS:
        raise DataError(f"There is no split {split!r} of histories; wanted one of {', '.join(SPLITS)}.")
    if not (histories.taken_in_all >= FEWEST).any():
        raise DataError(
            f"No user has the {FEWEST} events that leave-one-out needs (one to know, one to validate, one to test); "
            f"the longest of {len(histories):,} histories has {histories.lengths.max(initial=0)}."
        )
    wanted = trained_events(histories) if split == "train" else _long(histories) & (histories.left == _BEHIND[split])
    wanted[histories.first[:-1]] = False  # a history has something in it
    ends = np.flatnonzero(wanted)
    return Prefixes(histories, histories.user[ends], ends)


def trained_events(histories: Histories) -> Bool[np.ndarray, "event"]:
    """Which events a model may learn from: all but the two that each user holds out."""
    return (histories.left > _BEHIND["valid"]) & _long(histories)


def times_taken(histories: Histories) -> Int64[np.ndarray, "item"]:
    """How many training events each item has: what users hold out is not counted.

    >>> table = pa.table({"user": ["u"] * 4 + ["v"] * 3, "item": list("abcd") + list("acb"), "time": range(7)})
    >>> dict(zip((held := Histories.of_table(table)).items.to_pylist(), times_taken(held).tolist()))
    {'a': 2, 'b': 1, 'c': 0, 'd': 0}
    """
    return np.bincount(histories.taken[trained_events(histories)], minlength=len(histories.items)).astype(np.int64)


def _long(histories: Histories) -> Bool[np.ndarray, "event"]:
    """Events of users who hold something out."""
    return (histories.taken_in_all >= FEWEST)[histories.user]


def count_leaks(histories: Histories) -> int:
    """Held-out items that their own history, or their user's training, already names; none after `once`."""
    found = 0
    for split in _BEHIND:
        held = leave_one_out(histories, split)
        if not len(held):
            continue
        places = np.searchsorted(held.begin, np.arange(histories.events), side="right") - 1  # users are in order
        inside = (places >= 0) & (np.arange(histories.events) < held.end[places.clip(0)])
        found += int((histories.taken[inside] == held.targets[places[inside]]).sum())
    return found


def read_histories(path: Path, *, columns: Mapping[str, str] | None = None) -> pa.Table:
    """Read histories into the canonical columns `user, item, time`, sorted by user and then time.

    Users come in order of first appearance. A time is a number or an ISO date and time; without a time column, and
    between equal times, the order of the file decides.
    """
    path = find_table(Path(path), "histories")
    found = resolve_columns(column_names(path), columns or {}, required=("user", "item"), optional=("time",), path=path)
    wanted = list(dict.fromkeys(found.values()))
    batches = [_with_texts(batch, found, path) for batch in read_batches(path, rows=1 << 16, columns=wanted)]
    if not batches:
        raise DataError(f"{path} holds no events; wanted one user and item a row.")
    try:
        raw = pa.concat_tables(batches, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: column {found.get('time')!r} holds numbers as well as text; write one kind."
        ) from error
    user, item = (required_text(raw, found[name], path=path) for name in ("user", "item"))
    time = _times(raw[found["time"]], found["time"], path) if "time" in found else np.arange(len(raw))
    return in_order(pa.table({"user": user, "item": item, "time": pa.array(time)}))


def in_order(events: pa.Table) -> pa.Table:
    """Sort events by user, in order of first appearance, and then by time; equal times stay as they are.

    >>> in_order(pa.table({"user": ["u", "v", "u"], "item": ["a", "b", "c"], "time": [2, 1, 1]}))["item"].to_pylist()
    ['c', 'a', 'b']
    """
    user = _numbers(pc.dictionary_encode(events["user"]).unify_dictionaries().combine_chunks())
    return events.take(pa.array(np.lexsort((events["time"].to_numpy(), user))))


def _with_texts(batch: pa.RecordBatch, found: Mapping[str, str], path: Path) -> pa.Table:
    """Users and items as text whatever they are, for JSON lines may hold numbers here and text there."""
    table = pa.table(batch)
    for column in {found["user"], found["item"]} - {found.get("time")}:
        try:
            text = pc.cast(table[column], pa.string())
        except pa.ArrowException as error:
            raise DataError(f"{path}: column {column!r} holds ids that are neither text nor numbers.") from error
        table = table.set_column(table.column_names.index(column), column, text)
    return table


_TIMES = (pa.int64(), pa.float64(), pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us", "UTC"))


def _times(values: pa.ChunkedArray, column: str, path: Path) -> np.ndarray:
    """Return times as integers, in whatever unit the file's whole numbers have; fractions count in millionths of it."""
    for kind in _TIMES:
        converted = _converted(values, kind)
        if converted is None:
            continue
        if kind == pa.float64():  # fractions of a second decide an order too
            return np.round(converted.to_numpy() * 1e6).astype(np.int64)
        return pc.cast(converted, pa.int64(), safe=False).to_numpy().astype(np.int64)
    row = next((row for row, value in enumerate(values) if all(_converted(value, kind) is None for kind in _TIMES)), 0)
    raise DataError(  # row 0: each parses, but numbers and dates are mixed
        f"{path}: row {first_row(path) + row}, column {column!r}: {values[row].as_py()!r} is neither a number nor a "
        "date and time such as 2026-11-16T08:00:00."
    )


def _converted(values: pa.ChunkedArray | pa.Scalar, kind: pa.DataType) -> pa.ChunkedArray | pa.Scalar | None:
    """The same values as another type, or None where one is missing, has no such form or is no finite number."""
    try:
        converted = pc.cast(values, kind)
    except pa.ArrowException:
        return None
    usable = pc.less(pc.abs(converted), _LARGEST) if kind == pa.float64() else pc.is_valid(converted)
    return converted if pc.all(pc.fill_null(usable, False)).as_py() else None
