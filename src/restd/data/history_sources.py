"""Histories from any table or JSON file, and the steps that every source of histories shares."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from restd._arrow import pc
from restd.data.catalog import Catalog
from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.histories import FEWEST, Histories, count_leaks, in_order, read_histories
from restd.data.lines import json_lines, required_id
from restd.data.source import Source
from restd.errors import ConfigError, DataError

CORE: Final = 5
"""Default of `core`, the fewest events of every user and item: the paper's."""
EVENTS: Final = pa.schema([("user", pa.string()), ("item", pa.string()), ("time", pa.int64())])

_BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Prepared:
    """Histories that are ready to be written, and sentences on what was dropped."""

    histories: Histories
    notes: tuple[str, ...]


def histories_source(
    events: Path,
    items: Path,
    *,
    columns: Mapping[str, str] | None = None,
    item_columns: Mapping[str, str] | None = None,
    category_separator: str = " > ",
    core: int = CORE,
) -> Source:
    """Read histories from a table of events, or a JSON file `{user: [item, ...]}`, and their items from another table.

    Args:
        events: a table with a user, an item and perhaps a time per row; or a JSON file of lists, oldest item first.
        items: a table of items. Items that occur in no history are left out, and so are events of unknown items.
        columns: our names (user, item, time) to those of `events`.
        item_columns: our names (id, title, category) to those of `items`.
        category_separator: text between two parts of a category path that is written as one string.
        core: drop users and items with fewer events, repeatedly; 0 or 1 drops none.
    """
    catalog = Catalog(items, columns=item_columns or {}, category_separator=category_separator)
    as_json = is_json(events)
    if as_json and columns:
        raise ConfigError(f"{events} is a JSON file of lists and has no columns to map. Remove --map-histories.")
    table = read_lists(events) if as_json else read_histories(events, columns=columns)
    ids = catalog.ids()
    prepared = prepare(table, core=core, known=ids, where=catalog.path.name)
    histories = prepared.histories
    notes = list(prepared.notes)
    if as_json:
        notes.append("The lists of the file are read as they are, oldest item first.")
    notes += [
        f"{len(histories.items):,} of the {len(ids):,} items of {catalog.path.name} occur in the histories; the other "
        f"{len(ids) - len(histories.items):,} are left out.",
        f"Text columns, which restd index encodes unless --text lists others: {', '.join(catalog.text_columns)}.",
    ]
    return Source(
        name="histories",
        settings={
            "events": str(events),
            "items": str(items),
            "columns": dict(columns or {}),
            "item_columns": dict(item_columns or {}),
            "category_separator": category_separator,
            "core": core,
        },
        items=lambda: _items(catalog, histories.items),
        histories=histories.to_batches,
        notes=tuple(notes),
    )


def prepare(events: pa.Table, *, core: int, known: pa.Array | None = None, where: str = "") -> Prepared:
    """Sort events by user and time, drop unknown items and repeats, and apply the core; notes count what was dropped.

    Args:
        events: a table with the columns of `EVENTS`, in the order of the file.
        core: drop users and items with fewer events, repeatedly; 0 or 1 drops none.
        known: ids of all items; without it, every item is kept.
        where: name of the file that `known` comes from.

    >>> table = pa.table({"user": list("aaabbb"), "item": list("xyxxyz"), "time": [1, 2, 3, 1, 1, 2]})
    >>> prepared = prepare(table, core=2)
    >>> len(prepared.histories), prepared.histories.items.to_pylist(), prepared.notes[1]
    (2, ['x', 'y'], 'Each item counts once per user, at its first time: 1 repeated events were dropped.')
    """
    if core < 0:
        raise ConfigError(f"core is {core}, but must be at least 0; 0 and 1 drop nothing.")
    ordered = in_order(events)
    complete = Histories.of_table(ordered)
    with_known_items, notes = (complete, []) if known is None else _only_known(complete, known, where)
    once = with_known_items.once()
    histories = once.core(core) if core > 1 else once
    return Prepared(
        histories,
        (
            f"{len(histories):,} users, {len(histories.items):,} items, {histories.events:,} events.",
            f"Each item counts once per user, at its first time: {with_known_items.events - once.events:,} repeated "
            "events were dropped.",
            _core_note(once, histories, core),
            f"Events are sorted by time; {_ties(ordered):,} have the same time as the one before, and there the order "
            "of the file decides.",
            _held_out_note(histories),
            *notes,
        ),
    )


def is_json(path: Path) -> bool:
    """Return whether a file is JSON with lists rather than a table, by its name.

    >>> is_json(Path("events.json.gz")), is_json(Path("events.jsonl"))
    (True, False)
    """
    return ".json" in (path.suffix, Path(path.stem).suffix if path.suffix == ".gz" else "")


def read_lists(path: Path) -> pa.Table:
    """Read `{user: [item, ...]}`, oldest item first; items are numbers or texts, and the time is the position."""
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            lists = json.loads(stream.read(), object_pairs_hook=_each_once)
    except (OSError, pa.ArrowIOError) as error:
        raise DataError(f"{path} cannot be read ({error}); give the path of a complete, readable file.") from error
    except ValueError as error:
        raise DataError(
            f"{path} is not one JSON object ({error}). Expected {{user: [item, ...]}}; a file of JSON lines is named "
            ".jsonl."
        ) from error
    if not isinstance(lists, dict):
        raise DataError(f"{path} is a JSON {type(lists).__name__}. Expected one object {{user: [item, ...]}}.")
    rows = [(user, item, time) for user, items in lists.items() for time, item in enumerate(_ids(items, user, path))]
    if not rows:
        raise DataError(f"{path} contains no events. Expected {{user: [item, ...]}} with at least one item.")
    return _table(rows, path)


def read_events(path: Path, *, user: str, item: str, time: str, seconds: Callable[[Any], int]) -> pa.Table:
    """Read one event per JSON line, in the order of the file; the names are keys, and `seconds` parses a time."""
    parts, rows = [], []
    for number, record in json_lines(path, replace_surrogates=True):
        try:
            when = seconds(record.get(time))
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(
                f"{path}, line {number}: {time!r} is {record.get(time)!r:.40}, but a time is required; the keys are: "
                f"{', '.join(map(str, record))}."
            ) from error
        ids = (required_id(record, key, path=path, number=number) for key in (user, item))
        rows.append((*ids, when))
        if len(rows) == _BATCH_ROWS:
            parts.append(_table(rows, path))
            rows = []
    if rows:
        parts.append(_table(rows, path))
    if not parts:
        raise DataError(f"{path} contains no events. Expected one JSON object per line with {user}, {item} and {time}.")
    return pa.concat_tables(parts)


def only_first(
    records: Iterator[tuple[str, dict[str, Any]]], ids: pa.Array, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the items with these ids as batches, each at its first appearance among the records."""
    waiting = set(ids.to_pylist())
    rows: list[dict[str, Any]] = []
    for name, row in records:
        if name not in waiting:
            continue
        waiting.remove(name)
        rows.append(row)
        if len(rows) == _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items_by_user = {user.strip(): items for user, items in pairs}
    if len(items_by_user) < len(pairs):
        raise ValueError(f"it has {len(pairs) - len(items_by_user):,} users twice")
    return items_by_user


def _table(rows: Sequence[tuple[str, str, int]], path: Path) -> pa.Table:
    columns = zip(zip(*rows, strict=True), EVENTS, strict=True)
    try:
        columns = [pa.array(column, field.type) for column, field in columns]
    except (UnicodeEncodeError, OverflowError) as error:
        raise DataError(f"{path} has an id that is not text, or a time out of range ({error}). Correct it.") from error
    return pa.table(columns, schema=EVENTS)


def _ids(items: Any, user: str, path: Path) -> list[str]:
    if not isinstance(items, list):
        raise DataError(f"{path}: user {user!r} has {items!r:.40}. Expected a list of items, oldest first.")
    if not user.strip():
        raise DataError(f"{path}: a user's name is empty. Every list needs one.")
    ids = [str(item).strip() if isinstance(item, str | int) and not isinstance(item, bool) else "" for item in items]
    if "" in ids:
        raise DataError(
            f"{path}: user {user!r} has the item {items[ids.index('')]!r:.40}. Items must be texts or whole numbers."
        )
    return ids


def _only_known(histories: Histories, known: pa.Array, where: str) -> tuple[Histories, list[str]]:
    is_known = pc.is_in(histories.items, value_set=known).to_numpy(zero_copy_only=False)
    events = is_known[histories.event_items]
    if not events.any():
        raise DataError(
            f"None of the {len(histories.items):,} items of the histories is in {where}. The histories' first item is "
            f"{histories.items[0].as_py()!r}, that of {where} {known[0].as_py() if len(known) else None!r}. Use the "
            "same ids in both."
        )
    if events.all():
        return histories, []
    return histories.keep(events), [
        f"{int((~events).sum()):,} events of {int((~is_known).sum()):,} items that are not in {where} were dropped."
    ]


def _core_note(before: Histories, after: Histories, core: int) -> str:
    if core <= 1:
        return "No core: users and items with few events stay."
    return (
        f"The {core}-core dropped {len(before) - len(after):,} users, {len(before.items) - len(after.items):,} items "
        f"and {before.events - after.events:,} events: all that remain have at least {core} events."
    )


def _held_out_note(histories: Histories) -> str:
    short = int((histories.lengths < FEWEST).sum())
    if short == len(histories):
        return f"No user has the {FEWEST} events that leave-one-out needs, so nothing can be held out."
    leaks = f"{count_leaks(histories):,} held-out items occur earlier in their user's history"
    return f"{leaks}; {short:,} users have fewer than {FEWEST} events and none held out." if short else f"{leaks}."


def _ties(ordered: pa.Table) -> int:
    user = pc.dictionary_encode(ordered["user"]).unify_dictionaries().combine_chunks().indices.to_numpy()
    time = ordered["time"].to_numpy()
    return int(((user[1:] == user[:-1]) & (time[1:] == time[:-1])).sum())


def _items(catalog: Catalog, ids: pa.Array) -> Iterator[pa.RecordBatch]:
    for batch in catalog.batches():
        listed = batch.filter(pc.is_in(batch.column("id"), value_set=ids))
        if listed.num_rows:
            yield listed


DATASETS.add(
    DatasetEntry(
        "histories",
        "Your own events, as a table or as JSON lists, and a table of their items.",
        task="recommend",
        make=histories_source,
    )
)
