"""NQ320K, questions answered by Wikipedia pages, from the files its users pass around.

There is no one official file, so columns are found by their usual names in TSV, CSV or JSON lines, plain or gzip.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from restd.data.schema import ITEM_COLUMNS, JUDGMENTS
from restd.data.source import Source
from restd.data.trec import numbered_lines
from restd.errors import DataError

ITEMS: Final = ITEM_COLUMNS.append(pa.field("text", pa.string()))
PAIRS: Final = JUDGMENTS.append(pa.field("seen", pa.bool_()))
"""`seen`: the document occurs in the published training pairs, so its code can be learnt from a question."""

PUBLISHED: Final = {
    "documents": 109_739,
    "training pairs": 307_373,
    "test queries": 7_830,
    "seen test queries": 6_075,
    "unseen test queries": 1_755,
}

# In order of preference: a table with both an abstract and the full text is read for the full text.
_ID: Final = ("docid", "doc_id", "id")
_TITLE: Final = ("title",)
_TEXT: Final = ("text", "document", "body", "abstract")
_QUERY: Final = ("query", "question")

_VALID_SHARE: Final = 0.01
_VALID_SEED: Final = 42
_BATCH_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Pairs:
    """The distinct (query, document) pairs of one file in its order, and how many rows said the same again."""

    rows: Sequence[tuple[str, str]]
    repeated: int

    def queries(self) -> list[str]:
        """Return the distinct queries by first appearance."""
        return list(dict.fromkeys(query for query, _ in self.rows))


def nq320k_source(documents: Path, train: Path, test: Path) -> Source:
    r"""Documents as items; every pair of a file is a judgment of grade 1.

    `documents` has an id, a title and a text per row, `train` and `test` a query and a document id. Tables start with
    a header line. Of the training queries 1 % become the split valid. Counts other than the published ones are told in
    the notes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     docs, train, test = (Path(folder) / name for name in ("docs.tsv", "train.tsv", "test.tsv"))
    ...     _ = docs.write_text("docid\ttitle\ttext\n1\tMars\tA planet.\n2\tBach\tA composer.\n")
    ...     _ = train.write_text("query\tdocid\nred planet\t1\n")
    ...     _ = test.write_text("query\tdocid\nwho wrote fugues\t2\n")
    ...     source = nq320k_source(docs, train, test)
    ...     [(row["query"], row["split"], row["seen"]) for batch in source.judgments() for row in batch.to_pylist()]
    [('red planet', 'train', True), ('who wrote fugues', 'test', False)]
    """
    known = _document_ids(documents)
    trained, tested = _pairs(train, known=known), _pairs(test, known=known)
    seen = {item for _, item in trained.rows}
    valid = _valid_queries(trained.queries())
    return Source(
        name="nq320k",
        settings={"documents": str(documents), "train": str(train), "test": str(test), "valid_seed": _VALID_SEED},
        items=lambda: _items(documents),
        judgments=lambda: _judgments(trained, tested, seen=seen, valid=valid),
        notes=_notes(len(known), trained, tested, seen=seen, valid=valid),
    )


def _notes(documents: int, trained: Pairs, tested: Pairs, *, seen: set[str], valid: set[str]) -> tuple[str, ...]:
    test_queries = tested.queries()
    reachable = {query for query, item in tested.rows if item in seen}
    found = {
        "documents": documents,
        "training pairs": len(trained.rows) + trained.repeated,
        "test queries": len(test_queries),
        "seen test queries": len(reachable),
        "unseen test queries": len(test_queries) - len(reachable),
    }
    notes = [
        f"Found {found[name]:,} {name} where the published set has {wanted:,}; results are not comparable to it."
        for name, wanted in PUBLISHED.items()
        if found[name] != wanted
    ]
    train_queries = trained.queries()
    notes.append(
        f"{len(valid):,} of {len(train_queries):,} training queries are the split valid "
        f"(1 %, seed {_VALID_SEED}), with all their pairs."
    )
    notes.append("The column seen is true where the document occurs in the training file, queries of valid included.")
    if repeated := trained.repeated + tested.repeated:
        notes.append(f"{repeated:,} rows repeated a pair of their file and were dropped.")
    if shared := len(set(train_queries).intersection(test_queries)):
        notes.append(f"{shared:,} test queries are also training queries; they were kept in both.")
    return tuple(notes)


def _valid_queries(queries: Sequence[str]) -> set[str]:
    # Sorted first, so that the choice depends on the questions and not on the order of the file.
    names = sorted(queries)
    chosen = np.random.default_rng(_VALID_SEED).permutation(len(names))[: round(_VALID_SHARE * len(names))]
    return {names[index] for index in chosen}


def _document_ids(path: Path) -> set[str]:
    known: dict[str, int] = {}
    for row, record in _records(path):
        name = _id(record, path=path, row=row)
        if name in known:
            raise DataError(
                f"{path}, row {row}: document {name!r} is already in row {known[name]}; keep one of the two."
            )
        known[name] = row
        _title_and_text(record, path=path, row=row)
    if not known:
        raise DataError(f"{path} has no documents; give a file with an id, a title and a text per row.")
    return set(known)


def _pairs(path: Path, *, known: set[str]) -> Pairs:
    rows: dict[tuple[str, str], None] = {}
    total = 0
    for row, record in _records(path):
        query = " ".join(_text(record, _QUERY, path=path, row=row).split())
        item = _id(record, path=path, row=row)
        if not query:
            raise DataError(f"{path}, row {row}: the query is empty; write one or drop the row.")
        if item not in known:
            raise DataError(
                f"{path}, row {row}: document {item!r} is not among the {len(known):,} documents; "
                "give the files of one version of the set."
            )
        rows[query, item] = None
        total += 1
    return Pairs(tuple(rows), repeated=total - len(rows))


def _items(path: Path) -> Iterator[pa.RecordBatch]:
    def rows() -> Iterator[dict[str, Any]]:
        for row, record in _records(path):
            title, text = _title_and_text(record, path=path, row=row)
            yield {"id": _id(record, path=path, row=row), "title": title, "category": [], "text": text}

    return _batches(rows(), ITEMS)


def _judgments(trained: Pairs, tested: Pairs, *, seen: set[str], valid: set[str]) -> Iterator[pa.RecordBatch]:
    def rows() -> Iterator[dict[str, Any]]:
        # The files have no query ids. Each numbers its own, so that a question in both stays two.
        for name, pairs in (("train", trained), ("test", tested)):
            numbers = {query: number for number, query in enumerate(pairs.queries(), start=1)}
            for query, item in pairs.rows:
                yield {
                    "query_id": f"{name}-{numbers[query]}",
                    "query": query,
                    "item": item,
                    "grade": 1.0,
                    "split": "valid" if name == "train" and query in valid else name,
                    "seen": item in seen,
                }

    return _batches(rows(), PAIRS)


def _batches(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(batch, schema=schema)
            batch = []
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=schema)


def _id(record: Mapping[str, Any], *, path: Path, row: int) -> str:
    value = _pick(record, _ID, path=path, row=row)
    # JSON files often hold ids as numbers; true is a number to Python but never an id.
    if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
        return str(value).strip()
    raise DataError(f"{path}, row {row}: document id {value!r} is not a word or a whole number; give it an id.")


def _title_and_text(record: Mapping[str, Any], *, path: Path, row: int) -> tuple[str, str]:
    title = _text(record, _TITLE, path=path, row=row) if "title" in record else ""
    return title, _text(record, _TEXT, path=path, row=row)


def _text(record: Mapping[str, Any], names: Sequence[str], *, path: Path, row: int) -> str:
    value = _pick(record, names, path=path, row=row)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise DataError(f"{path}, row {row}: {names[0]} {value!r:.40} is not a text; write it as a string.")


def _pick(record: Mapping[str, Any], names: Sequence[str], *, path: Path, row: int) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise DataError(
        f"{path}, row {row}: the columns are {', '.join(map(str, record))} but one named {' or '.join(names)} "
        "was wanted; rename yours, or add a header line."
    )


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (line number, record by lower-case column name), in the format the file's name tells."""
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind in (".jsonl", ".ndjson", ".json"):
        return _json_records(path)
    if kind == ".csv":
        return _keyed(_csv_cells(path), path=path)
    if kind in (".tsv", ".txt"):
        # Wikipedia text is full of quotation marks that open nothing, so tabs alone divide a line.
        return _keyed(((number, line.split("\t")) for number, line in numbered_lines(path) if line), path=path)
    raise DataError(f"{path} is of unknown kind {kind!r}; name it .tsv, .csv or .jsonl, with .gz if compressed.")


def _json_records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, row {number}: not JSON ({error}); write one object per line.") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}, row {number}: JSON, but no object with named columns; write one per line.")
        yield number, {name.strip().lower(): value for name, value in record.items()}


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{line}\n" for _, line in numbered_lines(path)), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}, row {reader.line_num}: not CSV ({error}); correct its quotation marks.") from error


def _keyed(rows: Iterator[tuple[int, list[str]]], *, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    _, header = next(rows, (0, []))
    names = [name.strip().lower() for name in header]
    for number, cells in rows:
        if len(cells) != len(names):
            raise DataError(
                f"{path}, row {number}: {len(cells)} columns found, the header has {len(names)}; "
                "remove line and column breaks inside the text."
            )
        yield number, dict(zip(names, cells, strict=True))
