"""JSON lines as a table: one schema for the whole file, whichever record a key first appears in."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from restd.data.lines import json_lines
from restd.errors import DataError

_CHUNK_RECORDS = 8192
_ABSENT = pa.null()


def json_schema(path: Path) -> pa.Schema:
    """Return the columns of all records, in order of first appearance; the file is read to its end.

    Whole numbers and fractions make a column of fractions. Any other mixture of types, and a column without values,
    is text. The schema is remembered until the file changes.
    """
    state = path.stat()
    return _scan(path, (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))


def json_batches(path: Path, *, rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file in order, all batches with the same schema."""
    schema = json_schema(path)
    names = schema.names if columns is None else [name for name in columns if name in schema.names]
    fields = [schema.field(name) for name in names]
    records = json_lines(path)
    while chunk := list(islice(records, rows)):
        yield pa.RecordBatch.from_arrays([_column(path, field, chunk) for field in fields], schema=pa.schema(fields))


@lru_cache(maxsize=64)
def _scan(path: Path, version: tuple[int, ...]) -> pa.Schema:
    """Read the file; `version` changes with it and is part of the cache's key."""
    kinds: dict[str, pa.DataType] = {}
    records = (record for _, record in json_lines(path))
    while chunk := list(islice(records, _CHUNK_RECORDS)):
        for name in dict.fromkeys(key for record in chunk for key in record):
            kind = _inferred([record.get(name) for record in chunk])
            kinds[name] = _unified(kinds.get(name, _ABSENT), kind)
    return pa.schema([(name, _or_text(kind)) for name, kind in kinds.items()])


def _inferred(values: list[Any]) -> pa.DataType:
    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return pa.string()  # text serves all types


def _unified(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    schemas = [pa.schema([("value", kind)]) for kind in (first, second)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("value").type
    except pa.ArrowException:
        return pa.string()


def _or_text(kind: pa.DataType) -> pa.DataType:
    """Return text for the type of a column, or of lists, without any value."""
    if pa.types.is_list(kind):
        return pa.list_(_or_text(kind.value_type))
    return pa.string() if pa.types.is_null(kind) else kind


def _column(path: Path, field: pa.Field, chunk: list[tuple[int, dict[str, Any]]]) -> pa.Array:
    values = [record.get(field.name) for _, record in chunk]
    if field.type in (pa.string(), pa.float64()):
        convert = str if field.type == pa.string() else float
        values = [None if value is None else convert(value) for value in values]
    try:
        return pa.array(values, field.type)
    except UnicodeEncodeError as error:
        number = next(number for number, record in chunk if _is_broken(record.get(field.name)))
        raise DataError(
            f"{path}, line {number}, column {field.name!r} contains half a character (a lone surrogate); remove it."
        ) from error


def _is_broken(value: object) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return True
    return False
