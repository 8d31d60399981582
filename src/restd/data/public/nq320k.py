"""NQ320K: questions and the Wikipedia pages that answer them, from the files in circulation.

There is no official file, so columns are recognised by their usual names in TSV, CSV or JSON lines, plain or gzip.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.lines import json_lines, numbered_lines
from restd.data.schema import ITEM_COLUMNS, JUDGMENTS
from restd.data.source import Source
from restd.errors import DataError

ITEMS: Final = ITEM_COLUMNS.append(pa.field("text", pa.string()))
PAIRS: Final = JUDGMENTS.append(pa.field("seen", pa.bool_()))
"""`seen`: the document occurs in the training pairs, so its SID can be learnt from a question."""

PUBLISHED: Final = {
    "documents": 109_739,
    "training pairs": 307_373,
    "test queries": 7_830,
    "seen test queries": 6_075,
    "unseen test queries": 1_755,
}

# In order of preference: if a table has both the full text and an abstract, the full text is read.
_ID: Final = ("docid", "doc_id", "id")
_TITLE: Final = ("title",)
_TEXT: Final = ("text", "document", "body", "abstract")
_QUERY: Final = ("query", "question")

_VALID_SHARE: Final = 0.01
_VALID_SEED: Final = 42
_BATCH_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Pairs:
    """The distinct (query, document) pairs of one file in its order, and the number of repeated rows."""

    rows: Sequence[tuple[str, str]]
    repeated: int

    def queries(self) -> list[str]:
        """Return the distinct queries in order of first occurrence."""
        return list(dict.fromkeys(query for query, _ in self.rows))


def nq320k_source(documents: Path, train: Path, test: Path) -> Source:
    r"""Return documents as items and pairs of query and document as judgments of grade 1.

    `documents` has an id, a title and a text per row; `train` and `test` have a query and a document id per row.
    Tables start with a header line. 1 % of the training queries become the split valid. Notes list the counts that
    differ from the published ones.

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
    document_ids = _document_ids(documents)
    train_pairs, test_pairs = (_pairs(path, document_ids=document_ids) for path in (train, test))
    seen = {item for _, item in train_pairs.rows}
    valid = _valid_queries(train_pairs.queries())
    return Source(
        name="nq320k",
        settings={"documents": str(documents), "train": str(train), "test": str(test), "valid_seed": _VALID_SEED},
        items=lambda: _items(documents),
        judgments=lambda: _judgments(train_pairs, test_pairs, seen=seen, valid=valid),
        notes=_notes(len(document_ids), train_pairs, test_pairs, seen=seen, valid=valid),
    )


def _notes(
    documents: int, train_pairs: Pairs, test_pairs: Pairs, *, seen: set[str], valid: set[str]
) -> tuple[str, ...]:
    test_queries = test_pairs.queries()
    seen_queries = {query for query, item in test_pairs.rows if item in seen}
    counts = {
        "documents": documents,
        "training pairs": len(train_pairs.rows) + train_pairs.repeated,
        "test queries": len(test_queries),
        "seen test queries": len(seen_queries),
        "unseen test queries": len(test_queries) - len(seen_queries),
    }
    notes = [
        f"Found {counts[name]:,} {name}, but the published set has {published:,}; results are not comparable with it."
        for name, published in PUBLISHED.items()
        if counts[name] != published
    ]
    train_queries = train_pairs.queries()
    notes.append(
        f"{len(valid):,} of {len(train_queries):,} training queries form the split valid "
        f"(1 %, seed {_VALID_SEED}), with all their pairs."
    )
    notes.append("The column seen is true if the document occurs in the training file, including the split valid.")
    if repeated := train_pairs.repeated + test_pairs.repeated:
        notes.append(f"{repeated:,} rows were dropped because they repeat a pair of their file.")
    if shared := len(set(train_queries).intersection(test_queries)):
        notes.append(f"{shared:,} test queries are also training queries; they stay in both splits.")
    return tuple(notes)


def _valid_queries(queries: Sequence[str]) -> set[str]:
    # Sorted first, so that the draw does not depend on the order of the file.
    names = sorted(queries)
    valid_rows = np.random.default_rng(_VALID_SEED).permutation(len(names))[: round(_VALID_SHARE * len(names))]
    return {names[index] for index in valid_rows}


def _document_ids(path: Path) -> set[str]:
    row_of_id: dict[str, int] = {}
    for row, record in _records(path):
        name = _id(record, path=path, row=row)
        if name in row_of_id:
            raise DataError(
                f"{path}, row {row}: document {name!r} is already in row {row_of_id[name]}. Remove one of the two."
            )
        row_of_id[name] = row
        _title_and_text(record, path=path, row=row)
    if not row_of_id:
        raise DataError(f"{path} has no documents. Expected a file with an id, a title and a text per row.")
    return set(row_of_id)


def _pairs(path: Path, *, document_ids: set[str]) -> Pairs:
    rows: dict[tuple[str, str], None] = {}
    total = 0
    for row, record in _records(path):
        query = " ".join(_text(record, _QUERY, path=path, row=row).split())
        item = _id(record, path=path, row=row)
        if not query:
            raise DataError(f"{path}, row {row}: the query is empty. Add one, or remove the row.")
        if item not in document_ids:
            raise DataError(
                f"{path}, row {row}: document {item!r} is not among the {len(document_ids):,} documents. "
                "Use files of the same version of the data set."
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


def _judgments(train_pairs: Pairs, test_pairs: Pairs, *, seen: set[str], valid: set[str]) -> Iterator[pa.RecordBatch]:
    def rows() -> Iterator[dict[str, Any]]:
        # The files have no query ids. Queries are numbered per file, so a question in both files is two queries.
        for name, pairs in (("train", train_pairs), ("test", test_pairs)):
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
    # JSON files often have numeric ids; a bool is an int in Python, but not an id.
    if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
        return str(value).strip()
    raise DataError(f"{path}, row {row}: expected a document id (a non-empty string or an integer), got {value!r}.")


def _title_and_text(record: Mapping[str, Any], *, path: Path, row: int) -> tuple[str, str]:
    title = _text(record, _TITLE, path=path, row=row) if "title" in record else ""
    return title, _text(record, _TEXT, path=path, row=row)


def _text(record: Mapping[str, Any], names: Sequence[str], *, path: Path, row: int) -> str:
    value = _pick(record, names, path=path, row=row)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise DataError(f"{path}, row {row}: expected {names[0]} to be a string, got {value!r:.40}.")


def _pick(record: Mapping[str, Any], names: Sequence[str], *, path: Path, row: int) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise DataError(
        f"{path}, row {row}: expected a column named {' or '.join(names)}, got {', '.join(map(str, record))}. "
        "Rename a column, or add a header line."
    )


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield line numbers and records by lower-case column name; the suffix of the file gives its format."""
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind in (".jsonl", ".ndjson", ".json"):
        return _json_records(path)
    if kind == ".csv":
        return _with_header(_csv_cells(path), path=path)
    if kind in (".tsv", ".txt"):
        # Wikipedia text has many unbalanced quotation marks, so lines are split at tabs without quoting.
        return _with_header(((number, line.split("\t")) for number, line in numbered_lines(path) if line), path=path)
    raise DataError(f"{path}: unknown suffix {kind!r}. Use .tsv, .csv or .jsonl, followed by .gz if compressed.")


def _json_records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, record in json_lines(path, replace_surrogates=True):
        yield number, {name.strip().lower(): value for name, value in record.items()}


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{line}\n" for _, line in numbered_lines(path)), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}, row {reader.line_num}: invalid CSV ({error}). Check its quotation marks.") from error


def _with_header(rows: Iterator[tuple[int, list[str]]], *, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    _, header = next(rows, (0, []))
    names = [name.strip().lower() for name in header]
    for number, cells in rows:
        if len(cells) != len(names):
            raise DataError(
                f"{path}, row {number}: expected {len(names)} columns as in the header, got {len(cells)}. "
                "Remove line and column breaks inside the text."
            )
        yield number, dict(zip(names, cells, strict=True))


DATASETS.add(
    DatasetEntry(
        "nq320k",
        "Your copy of NQ320K: Wikipedia pages and the questions they answer.",
        task="search",
        make=nq320k_source,
        source="Kwiatkowski et al. 2019, Natural Questions; Wang et al. 2022, NCI",
    )
)
