"""TREC's two text formats, judgments (qrels) and ranked results (runs), to and from Arrow tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from restd.artifacts import write_atomically
from restd.data.lines import BYTE_ORDER_MARK, numbered_lines
from restd.errors import DataError

QRELS: Final = pa.schema([("query_id", pa.string()), ("item", pa.string()), ("grade", pa.float32())])
RUN: Final = pa.schema(
    [("query_id", pa.string()), ("rank", pa.int32()), ("item", pa.string()), ("score", pa.float64())]
)

_QRELS_FIELDS: Final = ("query id", "iteration", "document id", "grade")
_RUN_FIELDS: Final = ("query id", "Q0", "document id", "rank", "score", "tag")
_MAX_RANK: Final = np.iinfo(np.int32).max
_MAX_GRADE: Final = float(np.finfo(np.float32).max)


def read_qrels(path: Path) -> pa.Table:
    r"""Read judgments, one `query 0 document grade` per line, as the table `QRELS` in file order.

    TREC marks junk documents with grades below 0; they are read as 0, the grade of anything not relevant.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "qrels.txt"
    ...     _ = path.write_text("q1 0 kettle 3\nq1 0 teapot -2\n")
    ...     read_qrels(path).to_pylist()  # doctest: +NORMALIZE_WHITESPACE
    [{'query_id': 'q1', 'item': 'kettle', 'grade': 3.0},
     {'query_id': 'q1', 'item': 'teapot', 'grade': 0.0}]
    """
    rows = []
    for number, (query, _, item, grade) in _records(path, _QRELS_FIELDS):
        value = max(0.0, _number(grade, path=path, line=number, column=4, name="grade"))
        # A grade that overflows float32 would come back as infinity, so it is refused here with its line.
        if value > _MAX_GRADE:
            raise DataError(f"{path}, line {number}, column 4: grade {grade!r} is too large; use a small number.")
        rows.append((query, item, value))
    return _table(rows, QRELS)


def write_qrels(judgments: pa.Table, path: Path) -> None:
    r"""Write the columns query_id, item and grade as TREC judgments; other columns are left out.

    Whole grades are written as integers, the only kind trec_eval reads.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "qrels.txt"
    ...     write_qrels(pa.table({"query_id": ["q1"], "item": ["kettle"], "grade": [3.0]}), path)
    ...     path.read_text()
    'q1 0 kettle 3\n'
    """
    queries, items, grades = _columns(judgments, QRELS, path=path)
    _check_ids(queries, items, path=path)
    for row, grade in enumerate(grades):
        if not 0.0 <= grade < float("inf"):
            raise DataError(f"row {row}: grade {grade} cannot be written to {path}; it must be a number of at least 0.")
    triples = zip(queries, items, grades, strict=True)
    write_atomically(path, (f"{query} 0 {item} {_grade_text(grade)}\n".encode() for query, item, grade in triples))


def read_run(path: Path) -> pa.Table:
    r"""Read ranked results, one `query Q0 document rank score tag` per line, as the table `RUN`.

    Rows are ordered as trec_eval orders them: queries by first appearance, then score from high to low. Equal scores
    keep the order of their ranks. The ranks themselves are returned as the file has them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "run.txt"
    ...     _ = path.write_text("q1 Q0 teapot 2 0.5 demo\nq1 Q0 kettle 1 0.9 demo\n")
    ...     read_run(path)["item"].to_pylist()
    ['kettle', 'teapot']
    """
    rows = []
    first: dict[str, int] = {}
    for number, (query, _, item, rank, score, _tag) in _records(path, _RUN_FIELDS):
        first.setdefault(query, len(first))
        value = _number(score, path=path, line=number, column=5, name="score")
        rows.append((query, _rank(rank, path=path, line=number), item, value))
    rows.sort(key=lambda row: (first[row[0]], -row[3], row[1]))
    return _table(rows, RUN)


def write_run(run: pa.Table, path: Path, *, tag: str) -> None:
    r"""Write the columns query_id, rank, item and score as a TREC run named `tag`, rows in the order of the table.

    >>> import tempfile
    >>> run = pa.table({"query_id": ["q1"], "rank": [1], "item": ["kettle"], "score": [0.5]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "run.txt"
    ...     write_run(run, path, tag="demo")
    ...     path.read_text()
    'q1 Q0 kettle 1 0.5 demo\n'
    """
    if not _is_word(tag):
        raise DataError(f"tag {tag!r} cannot be written to {path}; use one word without white space.")
    queries, ranks, items, scores = _columns(run, RUN, path=path)
    _check_ids(queries, items, path=path)
    for row, (rank, score) in enumerate(zip(ranks, scores, strict=True)):
        if rank < 0:
            raise DataError(f"row {row}: rank {rank} cannot be written to {path}; it must be at least 0.")
        if score != score:
            raise DataError(f"row {row}: score {score} cannot be written to {path}; give every row a number.")
    rows = zip(queries, items, ranks, scores, strict=True)
    # repr is the shortest text that reads back as the same float64.
    write_atomically(path, (f"{q} Q0 {item} {rank} {score!r} {tag}\n".encode() for q, item, rank, score in rows))


def _records(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank lines split at white space, each of the right width and no (query, document) twice."""
    seen: dict[tuple[str, str], int] = {}
    for number, line in numbered_lines(path):
        words = line.split()
        if not words:
            continue
        if len(words) != len(fields):
            short = len(words) < len(fields)
            fault = f"{len(words) + 1} ({fields[len(words)]}) is missing" if short else f"{len(fields) + 1} is too many"
            names = ", ".join(fields)
            raise DataError(f"{path}, line {number}: column {fault}; a line has {len(fields)} columns: {names}.")
        pair = (words[0], words[2])
        if pair in seen:
            raise DataError(
                f"{path}, line {number}, column 3: document {pair[1]!r} of query {pair[0]!r} is already on line "
                f"{seen[pair]}; keep one of the two."
            )
        seen[pair] = number
        yield number, words


def _number(text: str, *, path: Path, line: int, column: int, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value:
        raise DataError(f"{path}, line {line}, column {column}: {name} {text!r} is not a number; write one like 1.5.")
    return value


def _rank(text: str, *, path: Path, line: int) -> int:
    if text.isdecimal() and int(text) <= _MAX_RANK:
        return int(text)
    raise DataError(
        f"{path}, line {line}, column 4: rank {text!r} is not a whole number from 0 to {_MAX_RANK}; count from 1."
    )


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _columns(table: pa.Table, schema: pa.Schema, *, path: Path) -> list[list[Any]]:
    """Return the columns of `schema` as lists, or say which one keeps the table from being written."""
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            raise DataError(
                f"the table for {path} has columns {', '.join(table.column_names)} but not {field.name!r}; add it."
            )
        column = table[field.name]
        if column.null_count:
            raise DataError(f"column {field.name!r} of the table for {path} has {column.null_count} nulls; fill them.")
        try:
            columns.append(column.cast(field.type).to_pylist())
        except pa.ArrowException as error:
            raise DataError(
                f"column {field.name!r} of the table for {path} is {column.type}, not {field.type}; convert it."
            ) from error
    return columns


def _is_word(text: str) -> bool:
    # A byte order mark would vanish from the start of the file, so it counts as white space here.
    return text.split() == [text] and BYTE_ORDER_MARK not in text


def _check_ids(queries: Sequence[str], items: Sequence[str], *, path: Path) -> None:
    """Refuse what would not read back: ids that are not one word, and a pair that occurs twice."""
    seen: set[tuple[str, str]] = set()
    for row, pair in enumerate(zip(queries, items, strict=True)):
        for name, text in zip(("query_id", "item"), pair, strict=True):
            if not _is_word(text):
                raise DataError(
                    f"row {row}: {name} {text!r} is empty or contains white space and cannot be written to {path}; "
                    "give it an id of one word."
                )
        if pair in seen:
            raise DataError(
                f"row {row}: item {pair[1]!r} of query {pair[0]!r} occurs twice and cannot be written to {path}; "
                "keep one of the two."
            )
        seen.add(pair)


def _grade_text(grade: float) -> str:
    # The text of the float32, not of the float64 it widens to: 0.1 rather than 0.10000000149011612.
    return str(int(grade)) if grade.is_integer() else str(np.float32(grade))
