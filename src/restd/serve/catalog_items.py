"""Single items of a snapshot: looked up, shown, with their neighbours in the trie.

Nothing here makes a Python object for each item of the catalogue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int64

from restd._arrow import pc
from restd.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ShownItem:
    """An item as lists show it."""

    row: int
    item: str
    title: str
    sid: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the row."""
        return {"item": self.item, "title": self.title, "sid": list(self.sid)}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An item that shares the beginning of a Semantic ID."""

    shown: ShownItem
    shared_levels: int


@dataclass(frozen=True, slots=True)
class Matches:
    """Items that contain a text."""

    items: list[ShownItem]
    total: int


def show_items(snapshot: Snapshot, rows: Int64[np.ndarray, "_"]) -> list[ShownItem]:
    """Items by row, with what lists show of them; the only place that makes Python objects of items."""
    places = pa.array(rows)
    ids, titles = snapshot.ids.take(places).to_pylist(), snapshot.items.titles().take(places).to_pylist()
    sids = snapshot.index.table.shown(rows)
    return [ShownItem(*values) for values in zip(rows.tolist(), ids, titles, sids, strict=True)]


def find_row(snapshot: Snapshot, item: str) -> int | None:
    """Row of an item, None for an unknown one: one pass over the ids, without a table of them."""
    row = pc.index(snapshot.ids, pa.scalar(item, snapshot.ids.type)).as_py()
    return None if row < 0 else row


def fields_of(snapshot: Snapshot, row: int, columns: Sequence[str]) -> dict[str, Any]:
    """Values of an item's columns."""
    return {name: snapshot.items.column(name)[row].as_py() for name in columns}


def items_containing(snapshot: Snapshot, text: str, *, limit: int = 20) -> Matches:
    """Items whose title or id contains a text, whatever its case: those that are or begin with it first.

    >>> snapshot = Snapshot.numbered(pa.array(["teapot", "pot", "mug", "Pottery"]))
    >>> matches = items_containing(snapshot, "pot", limit=2)
    >>> [item.item for item in matches.items], matches.total
    (['pot', 'Pottery'], 3)
    """
    columns = (snapshot.items.titles(), snapshot.ids)
    contains = _any(pc.match_substring(column, text, ignore_case=True) for column in columns)
    rows = np.flatnonzero(contains)
    matched = [column.take(pa.array(rows)) for column in columns]
    begins = _any(pc.starts_with(column, text, ignore_case=True) for column in matched)
    same = _any(pc.equal(pc.utf8_lower(column), text.lower()) for column in matched)
    order = np.lexsort((rows, ~begins, ~same))
    return Matches(show_items(snapshot, rows[order[:limit]]), len(rows))


def neighbours_of(snapshot: Snapshot, row: int, *, limit: int = 12) -> list[Neighbour]:
    """Items that share the longest beginnings with an item's Semantic ID, nearest in the order of SIDs first."""
    trie, sid = snapshot.index.trie, torch.from_numpy(snapshot.sids[row].astype(np.int64))[None]
    chosen: list[int] = []
    levels: list[int] = []
    place = None
    for shared in range(trie.levels, 0, -1):
        start, end = span_of(snapshot, sid[0, :shared].tolist())
        if place is None:
            place = start + int((trie.rows[start:end] == row).nonzero()[0, 0])
        low, high = max(start, place - limit), min(end, place + limit + 1)
        places = np.arange(low, high)
        places = places[np.argsort(np.abs(places - place), kind="stable")]
        rows = trie.rows[torch.from_numpy(places)].tolist()
        fresh = [other for other in rows if other != row and other not in chosen][: limit - len(chosen)]
        chosen += fresh
        levels += [shared] * len(fresh)
        if len(chosen) == limit:
            break
    shown = show_items(snapshot, np.array(chosen, np.int64))
    own = len(snapshot.index.table.shown(np.array([row]))[0])  # what fills up a shorter one is not shared with anything
    return [Neighbour(item, min(level, own)) for item, level in zip(shown, levels, strict=True)]


def span_of(snapshot: Snapshot, prefix: Sequence[int]) -> tuple[int, int]:
    """Where the items below a prefix begin and end in the order of Semantic IDs; nothing for one without items."""
    trie = snapshot.index.trie
    node = trie.find(torch.tensor([list(prefix)], dtype=torch.int64).view(1, len(prefix)))
    if int(node) < 0:
        return 0, 0
    start, end = trie.spans(len(prefix), node)
    return int(start), int(end)


def prefix_counts(snapshot: Snapshot, row: int) -> list[tuple[tuple[int, ...], int]]:
    """The beginnings of an item's Semantic ID, and how many items share each."""
    sid = snapshot.index.table.shown(np.array([row]))[0]
    spans = [(tuple(sid[:level]), span_of(snapshot, sid[:level])) for level in range(1, len(sid) + 1)]
    return [(prefix, end - start) for prefix, (start, end) in spans]


def _any(masks: Any) -> np.ndarray:
    first, *others = [pc.fill_null(mask, False).to_numpy(zero_copy_only=False) for mask in masks]
    for other in others:
        first = first | other
    return first
