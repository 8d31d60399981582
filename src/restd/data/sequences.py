"""Users' histories from any table or JSON file, and what every source of histories does with its events."""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from restd._arrow import pc
from restd.data.catalog import Catalog
from restd.data.histories import FEWEST, Histories, count_leaks, in_order, read_histories
from restd.data.source import Source
from restd.data.trec import numbered_lines
from restd.errors import ConfigError, DataError

CORE: Final = 5
"""Events that every user and every item has at least, unless asked otherwise: the paper's."""
EVENTS: Final = pa.schema([("user", pa.string()), ("item", pa.string()), ("time", pa.int64())])

_BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Prepared:
    """Histories that are ready to be written, and sentences on how they came about."""

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
    """Histories out of a table of events, or a JSON file `{user: [item, ...]}`, and the items they name.

    `columns` and `item_columns` map our names to those of the two files. Items that no history names are left out,
    and so are events whose item the table of items lacks; notes count both.
    """
    catalog = Catalog(items, columns=item_columns or {}, category_separator=category_separator)
    as_json = is_json(events)
    if as_json and columns:
        raise ConfigError(f"{events} is a JSON file of lists and has no columns to map; leave --map-histories out.")
    table = read_lists(events) if as_json else read_histories(events, columns=columns)
    ids = catalog.ids()
    made = prepare(table, core=core, known=ids, where=catalog.path.name)
    notes = list(made.notes)
    if as_json:
        notes.append("The lists of the file are taken as they are, oldest first.")
    notes += [
        f"{len(made.histories.items):,} of the {len(ids):,} items of {catalog.path.name} occur in the histories; the "
        f"{len(ids) - len(made.histories.items):,} others are left out.",
        f"Text columns, encoded unless restd index --text names others: {', '.join(catalog.text_columns)}.",
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
        items=lambda: _items(catalog, made.histories.items),
        histories=made.histories.to_batches,
        notes=tuple(notes),
    )


def prepare(events: pa.Table, *, core: int, known: pa.Array | None = None, where: str = "") -> Prepared:
    """Order events by user and time, drop unknown items and repeats, and apply the core; notes count what was dropped.

    `events` has the columns of `EVENTS` in the order of the file. `known` has the ids of all items, and `where` is the
    name of the file they come from; without `known`, every item is taken.

    >>> table = pa.table({"user": list("aaabbb"), "item": list("xyxxyz"), "time": [1, 2, 3, 1, 1, 2]})
    >>> made = prepare(table, core=2)
    >>> len(made.histories), made.histories.items.to_pylist(), made.notes[1]
    (2, ['x', 'y'], 'An item counts once a user, at its first time: 1 events that repeat one were dropped.')
    """
    if core < 0:
        raise ConfigError(f"A core of {core} is impossible; wanted at least 0, where 0 and 1 mean that nothing drops.")
    ordered = in_order(events)
    whole = Histories.of_table(ordered)
    listed, notes = (whole, []) if known is None else _only_known(whole, known, where)
    once = listed.once()
    held = once.core(core) if core > 1 else once
    return Prepared(
        held,
        (
            f"{len(held):,} users, {len(held.items):,} items, {held.events:,} events.",
            f"An item counts once a user, at its first time: {listed.events - once.events:,} events that repeat one "
            "were dropped.",
            _core_note(once, held, core),
            f"Events are in order of time; {_ties(ordered):,} have the time of the one before, and there the order of "
            "the file decides.",
            _held_out_note(held),
            *notes,
        ),
    )


def is_json(path: Path) -> bool:
    """Tell a JSON file of lists from a table, by its name.

    >>> is_json(Path("events.json.gz")), is_json(Path("events.jsonl"))
    (True, False)
    """
    return ".json" in (path.suffix, Path(path.stem).suffix if path.suffix == ".gz" else "")


def read_lists(path: Path) -> pa.Table:
    """Read `{user: [item, ...]}`, each list oldest first; items are numbers or texts, and the time is the place."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            lists = json.loads(stream.read(), object_pairs_hook=_each_once)
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}); give the path of a complete, readable file.") from error
    except ValueError as error:
        raise DataError(
            f"{path} is not one JSON object ({error}); wanted {{user: [item, ...]}}, or name JSON lines .jsonl."
        ) from error
    if not isinstance(lists, dict):
        raise DataError(f"{path} holds a JSON {type(lists).__name__}; wanted one object {{user: [item, ...]}}.")
    rows = [(user, item, place) for user, own in lists.items() for place, item in enumerate(_ids(own, user, path))]
    if not rows:
        raise DataError(f"{path} holds no events; wanted {{user: [item, ...]}} with at least one item.")
    return _table(rows, path)


def numbered_records(path: Path, parse: Callable[[str], Any] = json.loads) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of a file with one object a line, plain or gzip; blank lines are passed over."""
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            record = _mended(parse(line)) if "\\u" in line else parse(line)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise DataError(f"{path}, line {number}: not a JSON object; wanted one object a line.") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: not a JSON object but {line.strip()!r:.40}; wanted one a line.")
        yield number, record


def _mended(record: Any) -> Any:
    """The same values, with a question mark for half a character (a lone surrogate), which no table can hold."""
    return json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))


def text_of(record: Mapping[str, Any], key: str, *, path: Path, number: int) -> str:
    """Return an id that a record must have, as text."""
    value = record.get(key)
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not text:
        raise DataError(
            f"{path}, line {number}: {key!r} is {value!r:.40} (keys: {', '.join(map(str, record))}); wanted an id."
        )
    return text


def read_events(path: Path, *, user: str, item: str, time: str, seconds: Callable[[Any], int]) -> pa.Table:
    """Read JSON lines, one event each, in the order of the file; the three names are keys, `seconds` reads a time."""
    parts, rows = [], []
    for number, record in numbered_records(path):
        try:
            when = seconds(record.get(time))
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(
                f"{path}, line {number}: {time!r} is {record.get(time)!r:.40} (keys: {', '.join(map(str, record))}); "
                "wanted a time."
            ) from error
        ids = (text_of(record, key, path=path, number=number) for key in (user, item))
        rows.append((*ids, when))
        if len(rows) == _BATCH_ROWS:
            parts.append(_table(rows, path))
            rows = []
    if rows:
        parts.append(_table(rows, path))
    if not parts:
        raise DataError(f"{path} holds no events; wanted one JSON object a line with {user}, {item} and {time}.")
    return pa.concat_tables(parts)


def only_first(
    records: Iterator[tuple[str, dict[str, Any]]], kept: pa.Array, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the items of `kept` as batches, each at its first appearance among the records and never again."""
    waiting = set(kept.to_pylist())
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
    found = {user.strip(): held for user, held in pairs}
    if len(found) < len(pairs):
        raise ValueError(f"it names {len(pairs) - len(found):,} users twice")
    return found


def _table(rows: Sequence[tuple[str, str, int]], path: Path) -> pa.Table:
    columns = zip(zip(*rows, strict=True), EVENTS, strict=True)
    try:
        columns = [pa.array(column, field.type) for column, field in columns]
    except (UnicodeEncodeError, OverflowError) as error:
        raise DataError(f"{path} has an id that is no text or a time out of bounds ({error}); mend it.") from error
    return pa.table(columns, schema=EVENTS)


def _ids(own: Any, user: str, path: Path) -> list[str]:
    if not isinstance(own, list):
        raise DataError(f"{path}: user {user!r} has {own!r:.40}; wanted a list of items, oldest first.")
    if not user.strip():
        raise DataError(f"{path}: a user's name is empty; wanted a name for every list.")
    found = [str(item).strip() if isinstance(item, str | int) and not isinstance(item, bool) else "" for item in own]
    if "" in found:
        raise DataError(
            f"{path}: user {user!r} has the item {own[found.index('')]!r:.40}; wanted whole numbers or texts as items."
        )
    return found


def _only_known(whole: Histories, known: pa.Array, where: str) -> tuple[Histories, list[str]]:
    listed = pc.is_in(whole.items, value_set=known).to_numpy(zero_copy_only=False)
    events = listed[whole.taken]
    if not events.any():
        raise DataError(
            f"None of the {len(whole.items):,} items of the histories is in {where}; the first of theirs is "
            f"{whole.items[0].as_py()!r}, and of its own {known[0].as_py() if len(known) else None!r}; match the ids."
        )
    if events.all():
        return whole, []
    return whole.keep(events), [
        f"{int((~events).sum()):,} events were dropped for the {int((~listed).sum()):,} items that {where} lacks."
    ]


def _core_note(before: Histories, after: Histories, core: int) -> str:
    if core <= 1:
        return "No core was asked for: users and items with few events stay."
    return (
        f"The {core}-core dropped {len(before) - len(after):,} users, {len(before.items) - len(after.items):,} items "
        f"and {before.events - after.events:,} events: all that remain have at least {core} events."
    )


def _held_out_note(held: Histories) -> str:
    short = int((held.lengths < FEWEST).sum())
    if short == len(held):
        return f"No user has the {FEWEST} events that leave-one-out needs, so nothing can be held out."
    told = f"{count_leaks(held):,} held-out items occur in their own history or their user's training"
    return f"{told}; {short:,} users have fewer than {FEWEST} events and hold nothing out." if short else f"{told}."


def _ties(ordered: pa.Table) -> int:
    user = pc.dictionary_encode(ordered["user"]).unify_dictionaries().combine_chunks().indices.to_numpy()
    time = ordered["time"].to_numpy()
    return int(((user[1:] == user[:-1]) & (time[1:] == time[:-1])).sum())


def _items(catalog: Catalog, kept: pa.Array) -> Iterator[pa.RecordBatch]:
    schema = _schema(catalog)
    for batch in catalog.batches():
        batch = batch.filter(pc.is_in(batch.column("id"), value_set=kept))
        if batch.num_rows:
            arrays = [pc.cast(batch.column(field.name), field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _schema(catalog: Catalog) -> pa.Schema:
    """Columns of the whole table: of JSON lines, some batches may have none of a column, or whole numbers only."""
    found: dict[pa.Schema, None] = dict.fromkeys(batch.schema for batch in catalog.batches())
    try:
        whole = pa.unify_schemas(list(found), promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"{catalog.path}: a column holds text in some rows and numbers in others ({str(error).splitlines()[0]}); "
            "write one kind."
        ) from error
    return pa.schema([field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in whole])
