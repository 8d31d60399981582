"""A data set from a user's own tables: columns guessed, texts cleaned, and every drop counted and told."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from restd._arrow import pc
from restd.data.catalog import canonical_items, joined_texts, text_columns_of
from restd.data.histories import read_histories
from restd.data.history_sources import EVENTS, prepare
from restd.data.judgments import split_of_queries
from restd.data.own_columns import SPLIT_NAMES, GuessedColumns, read_grade, texts_in
from restd.data.own_guesses import guess_item_columns, guess_query_columns
from restd.data.pseudo_queries import make_pseudo_queries
from restd.data.readers import read_batches
from restd.data.schema import JUDGMENTS, SPLITS
from restd.data.source import Source
from restd.data.text import plain_text
from restd.errors import DataError

__all__ = ["GuessedColumns", "guess_item_columns", "guess_query_columns", "own_tables_source"]

OWN_TABLES: Final = "own-tables"
"""Name of the source."""
QUERIES: Final = "queries"
"""Setting of a source that has a table of queries; without it, its queries are made up."""
_ROWS: Final = 8192
_SEPARATORS: Final = (" > ", ">", " / ", "|")
_NUMBERED: Final = "number of the row"
"""Column that is added to a table without ids."""
_HELD_OUT: Final = 0.1
"""Share of the items whose own words test and validate, where there are no queries."""
_FEWEST: Final = 3
_SEED: Final = 42

_Drop = Literal["no id", "same id", "empty", "unknown", "grade", "split"]
_DROPS: Final[dict[_Drop, str]] = {
    "no id": "without an id",
    "same id": "that repeat{s} an id; the first of each is kept",
    "empty": "without a query or an item",
    "unknown": "that name{s} an item which the items table does not have",
    "grade": "with a grade that is neither a number of at least 0 nor one of E, S, C, I",
    "split": "with a split other than train, valid and test",
}


def own_tables_source(
    items: Path,
    queries: Path | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    query_columns: Mapping[str, str] | None = None,
) -> Source:
    """Make a data set of a table of items and perhaps one of queries, clicks or histories, whatever its columns.

    Markup is removed from texts. Rows without an id, rows that repeat one, and query rows that name an unknown item are
    dropped. `notes` of the source tell what was guessed, cleaned and dropped. Without queries, a tenth of the items is
    held out: queries of their own words test and validate, and queries of the other items' words train.

    Args:
        items: a table of items; without an id column, its rows are numbered.
        queries: a table of queries or clicks; or of users, items and times, which gives histories.
        columns: our names (id, title, category) to those of `items`, where the guess is not to decide.
        query_columns: our names (query, item, grade, split; or user, item, time) to those of `queries`.
    """
    table = _OwnItems(items, guess_item_columns(items, columns=columns))
    counts: Counter[str] = Counter()
    ids: set[str] = set()
    with_words: set[str] = set()
    for batch in table.batches(counts):
        if queries is None:
            has_words = pc.match_substring_regex(joined_texts(batch, text_columns_of(batch)), r"[\p{L}\p{N}]")
            with_words.update(batch.column("id").filter(has_words).to_pylist())
        ids.update(batch.column("id").to_pylist())
        counts["untitled"] += pc.sum(pc.equal(batch.column("title"), "")).as_py()
    if not ids:
        raise DataError(f"{items} has no row with an id. Expected one item per row; choose another with --map id=NAME.")
    notes = [*table.guessed.notes, *table.notes(counts)]
    settings = {"items": str(items), "columns": dict(table.guessed.columns), "category_separator": table.separator}
    if queries is None:
        held_out = _held_out(with_words, path=items)
        notes.append(
            f"No queries were given. The queries are drawn from the items' own words and are not real ones: two for "
            f"each of {len(held_out):,} held-out items (test and valid), one for each other item that has text "
            "(train). A query that is already in another split is left out. Figures on them say how well items are "
            "found by their own words, not how well people's queries are answered."
        )
        return Source(
            OWN_TABLES, settings, table.batches, judgments=lambda: _own_words(table, held_out), notes=tuple(notes)
        )
    guessed = guess_query_columns(queries, ids, columns=query_columns)
    settings |= {QUERIES: str(queries), "query_columns": dict(guessed.columns)}
    notes += guessed.notes
    if guessed.kind == "histories":
        events = read_histories(
            queries, columns={name: guessed.columns[name] for name in EVENTS.names if name in guessed.columns}
        )
        prepared = prepare(events, core=0, known=pa.array(sorted(ids), pa.string()), where=items.name)
        notes += prepared.notes
        stream = prepared.histories.to_batches
        return Source(OWN_TABLES, settings, table.batches, histories=stream, notes=tuple(notes))
    kept: Counter[str] = Counter()
    for batch in _judgments(queries, guessed.columns, ids, kept):
        kept.update(batch.column("split").to_pylist())
    if not any(kept[split] for split in SPLITS):
        raise DataError(
            f"{queries}: no row is left: {' '.join(_drops(kept, 'query rows'))} Use the ids of {items.name} in the "
            f"column {guessed.columns['item']!r}, or choose another with --map-query item=NAME."
        )
    notes += [*_drops(kept, "query rows"), _splits_note(kept)]
    return Source(
        OWN_TABLES,
        settings,
        table.batches,
        judgments=lambda: _judgments(queries, guessed.columns, ids, Counter()),
        notes=tuple(notes),
    )


class _OwnItems:
    """A table of items, read again each time."""

    def __init__(self, path: Path, guessed: GuessedColumns) -> None:
        self.path, self.guessed = path, guessed
        self.separator = _separator(path, guessed.columns.get("category"))

    def batches(self, counts: Counter[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield canonical batches without markup; `counts` gets what was dropped and cleaned."""
        counts = Counter() if counts is None else counts
        column_of = {"id": _NUMBERED, **self.guessed.columns}
        seen: set[str] = set()
        row = 0
        for batch in read_batches(self.path, rows=_ROWS):
            if column_of["id"] == _NUMBERED:
                numbers = pa.array([f"row-{row + place + 1}" for place in range(batch.num_rows)], pa.string())
                batch = pa.RecordBatch.from_arrays([numbers, *batch.columns], names=[_NUMBERED, *batch.schema.names])
            row += batch.num_rows
            kept = batch.filter(pa.array(_first_of_each(texts_in(batch.column(column_of["id"])), seen, counts)))
            if kept.num_rows:
                clean = [
                    column if name == column_of["id"] else _without_markup(column, f"markup {name}", counts)
                    for name, column in zip(kept.schema.names, kept.columns, strict=True)
                ]
                batch = pa.RecordBatch.from_arrays(clean, names=kept.schema.names)
                yield canonical_items(batch, column_of, separator=self.separator)

    def notes(self, counts: Counter[str]) -> list[str]:
        """Sentences on what was dropped and cleaned."""
        notes = _drops(counts, "rows")
        if "category" in self.guessed.columns and self.separator != _SEPARATORS[0]:
            notes.append(f"Category paths are split at {self.separator!r}, as most of them have it.")
        cleaned = [f"{count:,} of {key[7:]}" for key, count in counts.items() if key.startswith("markup ")]
        if cleaned:
            notes.append(f"Removed HTML from values: {', '.join(cleaned)}.")
        if counts["untitled"] and "title" in self.guessed.columns:
            notes.append(f"{_counted(counts['untitled'], 'items have', 'item has')} an empty title.")
        return notes


def _first_of_each(ids: list[str], seen: set[str], counts: Counter[str]) -> list[bool]:
    keep = []
    for name in ids:
        fault: _Drop | None = "no id" if not name else "same id" if name in seen else None
        if fault:
            counts[fault] += 1
        seen.add(name)
        keep.append(fault is None)
    return keep


def _without_markup(values: pa.Array, key: str, counts: Counter[str]) -> pa.Array:
    """Return a column of texts, or of lists of texts, without HTML; other columns as they are."""
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    if pa.types.is_list(values.type) and pa.types.is_string(values.type.value_type):
        lists = [texts and [_plain(text, key, counts) for text in texts] for texts in values.to_pylist()]
        return pa.array(lists, values.type)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return values
    if not pc.any(pc.match_substring_regex(values, "[<&]")).as_py():
        return values
    return pa.array([_plain(text, key, counts) for text in values.to_pylist()], values.type)


def _plain(text: str | None, key: str, counts: Counter[str]) -> str | None:
    if text is None or not ("<" in text or "&" in text) or text.lstrip().startswith(("http://", "https://")):
        return text
    plain = plain_text(text)
    counts[key] += plain != " ".join(text.split())
    return plain


def _separator(path: Path, category: str | None) -> str:
    """Return the separator that at least half of the first category paths have."""
    batch = None if category is None else next(read_batches(path, rows=_ROWS, columns=[category]), None)
    paths = [] if batch is None else [plain_text(text) for text in texts_in(batch.column(0)) if text]
    often = (mark for mark in _SEPARATORS if paths and sum(mark in text for text in paths) * 2 >= len(paths))
    return next(often, _SEPARATORS[0])


def _judgments(
    path: Path, column_of: Mapping[str, str], ids: Set[str], counts: Counter[str]
) -> Iterator[pa.RecordBatch]:
    """Yield canonical batches of the query rows that can be used; `counts` gets the others by what is wrong."""
    number_of: dict[str, int] = {}
    for batch in read_batches(path, rows=_ROWS, columns=list(dict.fromkeys(column_of.values()))):
        texts = {name: texts_in(batch.column(column)) for name, column in column_of.items()}
        rows: list[tuple[str, str, str, float, str]] = []
        absent = [""] * batch.num_rows
        grades, splits = texts.get("grade") or absent, texts.get("split") or absent
        for text, item, grade, split in zip(texts["query"], texts["item"], grades, splits, strict=True):
            query = plain_text(text)
            value = read_grade(grade) if "grade" in column_of else 1.0
            part = SPLIT_NAMES.get(split.lower(), "") if "split" in column_of else "by hash"
            fault = _fault(query, item, value, part, ids)
            if fault or value is None:
                counts[fault or "grade"] += 1
                continue
            rows.append((f"q{number_of.setdefault(query, len(number_of))}", query, item, value, part))
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            if "split" not in column_of:
                columns[-1] = split_of_queries(pa.array(columns[1], pa.string())).to_pylist()
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(columns, JUDGMENTS, strict=True)],
                schema=JUDGMENTS,
            )


def _fault(query: str, item: str, grade: float | None, split: str, ids: Set[str]) -> _Drop | None:
    if not query or not item:
        return "empty"
    if item not in ids:
        return "unknown"
    if grade is None:
        return "grade"
    return None if split else "split"


def _drops(counts: Counter[str], rows: str) -> list[str]:
    return [
        f"Dropped {_counted(counts[key], rows, rows[:-1])} {why.format(s='s' if counts[key] == 1 else '')}."
        for key, why in _DROPS.items()
        if counts[key]
    ]


def _counted(count: int, many: str, one: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _splits_note(kept: Counter[str]) -> str:
    missing = [split for split in SPLITS if not kept[split]]
    rows = f"Query rows by split: {', '.join(f'{split} {kept[split]:,}' for split in SPLITS)}"
    return f"{rows}; nothing can be measured on: {', '.join(missing)}." if missing else f"{rows}."


def _held_out(ids: Set[str], *, path: Path) -> dict[str, str]:
    """Return the split of each held-out item: by a hash of its id, so that other items change nothing."""
    if len(ids) < _FEWEST:
        raise DataError(
            f"{path} has {_counted(len(ids), 'items', 'item')} with text. Without queries at least {_FEWEST} are "
            "needed: to train, to validate and to test. Add items, or pass a table of queries."
        )
    draws = {item: int.from_bytes(hashlib.sha256(f"held out {item}".encode()).digest()[:8]) / 2.0**64 for item in ids}
    splits: dict[str, str] = {
        item: "test" if draw < _HELD_OUT / 2 else "valid" for item, draw in draws.items() if draw < _HELD_OUT
    }
    if len(set(splits.values())) < 2:  # too few items for the hash: the two lowest
        splits = dict(zip(sorted(draws, key=draws.__getitem__), ("test", "valid"), strict=False))
    return splits


def _own_words(table: _OwnItems, held_out: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield queries of the items' own words; how rare a word is, is counted in each batch of items alone."""
    split_of_query: dict[str, str] = {}
    number_of: dict[str, int] = {}
    for number, batch in enumerate(table.batches()):
        names = batch.column("id").to_pylist()
        texts = joined_texts(batch, text_columns_of(batch)).to_pylist()
        queries, places = make_pseudo_queries(batch.column("title").to_pylist(), texts, per_item=2, seed=_SEED + number)
        rows = []
        last = -1
        for query, place in zip(queries, places.tolist(), strict=True):
            item, is_second = names[place], place == last
            split = held_out.get(item, "train")
            last = place
            if (is_second and split == "train") or split_of_query.setdefault(query, split) != split:
                continue
            rows.append((f"q{number_of.setdefault(query, len(number_of))}", query, item, 1.0, split))
        if rows:
            columns = zip(zip(*rows, strict=True), JUDGMENTS, strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(part, field.type) for part, field in columns], schema=JUDGMENTS)
