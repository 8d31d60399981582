"""Streams of record batches from CSV, TSV, JSON lines and Parquet, with errors that name row and column."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from restd._arrow import pc
from restd.data.json_table import json_batches, json_schema
from restd.errors import DataError

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = (".jsonl", ".ndjson")
_COMPRESSION = (".gz", ".zst", ".bz2")
_BLOCK_BYTES = 1 << 23


def table_format(path: Path) -> str:
    """Suffix that decides how a file is read, compression aside.

    >>> table_format(Path("items.csv.gz"))
    '.csv'
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSION:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in (*_DELIMITERS, *_JSON_LINES, ".parquet"):
        raise DataError(
            f"{path} has an unknown format. Expected .csv, .tsv or .jsonl (also as .gz, .bz2, .zst), or .parquet."
        )
    return suffix


def first_row(path: Path) -> int:
    """Return the number of the first record as a spreadsheet counts: a header line is row 1."""
    return 2 if table_format(path) in _DELIMITERS else 1


def read_batches(path: Path, *, rows: int = 8192, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield a file's records in order, at most `rows` at a time, without loading the whole file.

    All columns of CSV and TSV are strings, named by the header. With `columns`, only those are read.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist, or is not a file; check the path.")
    kind = table_format(path)
    try:
        if kind in _DELIMITERS:
            stream = _delimited(path, delimiter=_DELIMITERS[kind], columns=columns)
        elif kind == ".parquet":
            stream = _parquet(path, rows=rows, columns=columns)
        else:
            stream = json_batches(path, rows=rows, columns=columns)
        for batch in stream:
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)
    except pa.ArrowException as error:
        raise DataError(_explain(path, str(error))) from error


def column_names(path: Path) -> list[str]:
    """Return the names of a file's columns; JSON lines are read to their end for it, once."""
    kind = table_format(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist, or is not a file; check the path.")
    try:
        if kind in _DELIMITERS:
            return _header(path, delimiter=_DELIMITERS[kind])
        if kind == ".parquet":
            return pq.read_schema(path).names
    except pa.ArrowException as error:
        raise DataError(_explain(path, str(error))) from error
    return json_schema(path).names


def _header(path: Path, *, delimiter: str) -> list[str]:
    with pa.input_stream(path, compression="detect") as stream:
        head = stream.read(1 << 16)
    if not head.strip():
        raise DataError(f"{path} is empty. Expected a header line and one record per line.")
    line = head.split(b"\n", 1)[0].removeprefix(b"\xef\xbb\xbf")
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: row 1: the header is not UTF-8; save the file as UTF-8.") from error
    if b"\0" in line:
        raise DataError(f"{path}: row 1: the header contains zero bytes, as in UTF-16; save the file as UTF-8.")
    parse = pa_csv.ParseOptions(delimiter=delimiter)
    return pa_csv.read_csv(pa.py_buffer(line + b"\n"), parse_options=parse).schema.names


def _delimited(path: Path, *, delimiter: str, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    names = _header(path, delimiter=delimiter)
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise DataError(
            f"{path}: the header has column {sorted(repeated)[0]!r} twice; every column needs its own name."
        )
    yield from pa_csv.open_csv(
        pa.input_stream(path, compression="detect"),
        read_options=pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            include_columns=columns,
            strings_can_be_null=False,
        ),
    )


def _parquet(path: Path, *, rows: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as stream:
        yield from stream.iter_batches(batch_size=rows, columns=columns)


def _explain(path: Path, message: str) -> str:
    """Turn Arrow's message into an error that says where."""
    bad_bytes = re.search(r"In CSV column #(\d+): Row #(\d+):.*invalid UTF8", message)
    if bad_bytes:
        names = column_names(path)
        column = names[int(bad_bytes[1])]
        return f"{path}: row {bad_bytes[2]}, column {column!r}: the bytes are not UTF-8; save the file as UTF-8."
    width = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message)
    if width:
        row = f"row {width[1]}" if width[1] else "a row"
        return f"{path}: {row} has {width[3]} columns, the header {width[2]}; quote values that contain the separator."
    return f"{path} could not be read: {message.splitlines()[0]}."


def resolve_columns(
    available: list[str],
    mapping: Mapping[str, str],
    *,
    required: tuple[str, ...],
    optional: tuple[str, ...],
    path: Path,
) -> dict[str, str]:
    """Match canonical names to a file's columns: as mapped, else by the canonical name itself.

    If another column is mapped to a canonical name, a column of that name is called `NAME_original` from then on.

    >>> resolve_columns(["asin", "title"], {"id": "asin"}, required=("id",), optional=("title",), path=Path("x.csv"))
    {'id': 'asin', 'title': 'title'}
    """
    known = (*required, *optional)
    for canonical, column in mapping.items():
        if canonical not in known:
            raise DataError(
                f"--map {canonical}={column}: unknown name {canonical!r}. Expected one of: {', '.join(known)}."
            )
        if column not in available:
            raise DataError(
                f"{path} has no column {column!r} (mapped to {canonical!r}); it has: {', '.join(available)}."
            )
    column_of = {name: mapping.get(name, name) for name in known if mapping.get(name, name) in available}
    for name in required:
        if name not in column_of:
            raise DataError(
                f"{path} has no column {name!r}; it has: {', '.join(available)}. Map yours with --map {name}=COLUMN."
            )
    return column_of


def text_column(table: pa.Table, column: str, *, path: Path) -> pa.ChunkedArray:
    """Return a column as trimmed text; missing values are empty."""
    try:
        texts = pc.cast(table[column], pa.string())
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: column {column!r} has type {table[column].type}. Expected text or numbers in each row."
        ) from error
    return pc.fill_null(pc.utf8_trim_whitespace(texts), "")


def required_text(table: pa.Table, column: str, *, path: Path) -> pa.ChunkedArray:
    """Return a column as trimmed text; an empty value is an error that names its row."""
    values = text_column(table, column, path=path)
    blank = pc.equal(values, "").to_numpy()
    if blank.any():
        raise DataError(
            f"{path}: row {first_row(path) + int(blank.argmax())}, column {column!r} is empty; a value is required."
        )
    return values


def other_columns(available: list[str], column_of: Mapping[str, str], canonical: tuple[str, ...]) -> dict[str, str]:
    """Return the columns that have no canonical meaning, by the names they get here.

    >>> other_columns(["asin", "title", "price"], {"id": "asin"}, ("id", "title"))
    {'title_original': 'title', 'price': 'price'}
    """
    rest = [name for name in available if name not in column_of.values()]
    return {f"{name}_original" if name in canonical else name: name for name in rest}
