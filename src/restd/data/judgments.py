"""Judgments: how well items answer queries, and which split each query is in."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from restd._arrow import pc
from restd.data.dataset import find_table
from restd.data.readers import (
    column_names,
    first_row,
    other_columns,
    read_batches,
    required_text,
    resolve_columns,
    text_column,
)
from restd.data.schema import SPLITS, parse_grade
from restd.errors import DataError

_OPTIONAL = ("query_id", "grade", "split")
_HELD_OUT = {"valid": 0.1, "test": 0.1}


def read_judgments(path: Path, *, columns: Mapping[str, str] | None = None) -> pa.Table:
    """Read judgments into the canonical columns `query_id, query, item, grade, split`; other columns are unchanged.

    Without a grade column every row is a positive of grade 1. Without a query id, queries are told apart by their text.
    Without a split, queries are split 80/10/10 by a hash of their text, so that a query is always in the same split.
    """
    path = find_table(Path(path), "judgments")
    column_of = resolve_columns(
        column_names(path), columns or {}, required=("query", "item"), optional=_OPTIONAL, path=path
    )
    batches = list(read_batches(path, rows=1 << 16))
    if not batches:
        raise DataError(f"{path} contains no judgments. Expected one query and one item per row.")
    raw = pa.Table.from_batches(batches)
    query, item = (required_text(raw, column_of[name], path=path) for name in ("query", "item"))
    canonical = {
        "query_id": text_column(raw, column_of["query_id"], path=path) if "query_id" in column_of else _ids_of(query),
        "query": query,
        "item": item,
        "grade": _grades(raw, column_of.get("grade"), path),
        "split": _splits(raw, column_of["split"], path) if "split" in column_of else split_of_queries(query),
    }
    others = other_columns(raw.column_names, column_of, tuple(canonical))
    return pa.table({**canonical, **{name: raw[column] for name, column in others.items()}})


def count_training_pairs(judgments: pa.Table, ids: pa.StringArray) -> Int64[np.ndarray, "item"]:
    """Return how many positive training pairs each item has.

    >>> splits = ["train", "train", "test", "train"]
    >>> rows = {"item": ["a", "b", "b", "c"], "grade": [1.0, 2.0, 1.0, 0.0], "split": splits}
    >>> count_training_pairs(pa.table(rows), pa.array(["a", "b", "c"])).tolist()
    [1, 1, 0]
    """
    train = judgments.filter(pc.and_(pc.equal(judgments["split"], "train"), pc.greater(judgments["grade"], 0.0)))
    rows = pc.drop_null(pc.index_in(train["item"], value_set=ids)).to_numpy()
    return np.bincount(rows, minlength=len(ids)).astype(np.int64)


def split_of_queries(queries: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Split queries into train, valid and test by a hash of their text, the same in every file and on every machine.

    >>> split_of_queries(pa.array(["red kettle", "red kettle", "green pan"])).to_pylist()
    ['train', 'train', 'valid']
    """
    encoded = pc.dictionary_encode(queries)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    draws = [_uniform(text) for text in encoded.dictionary.to_pylist()]
    bounds = np.cumsum([*_HELD_OUT.values()])
    names = [[*_HELD_OUT, "train"][int(np.searchsorted(bounds, draw, side="right"))] for draw in draws]
    return pa.array(names, pa.string()).take(encoded.indices)


def _uniform(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2.0**64


def refuse_unknown_items(judgments: pa.Table, ids: pa.Array, *, path: Path) -> None:
    """Raise an error if a judged item is not in the catalogue."""
    unknown = pc.invert(pc.is_in(judgments["item"], value_set=ids)).to_numpy()
    if unknown.any():
        row = int(unknown.argmax())
        raise DataError(
            f"{path}: row {row + first_row(path)}, column 'item': {judgments['item'][row].as_py()!r} is not in the "
            f"catalogue ({int(unknown.sum()):,} judgments have unknown items). Add the items, or drop the rows."
        )


def _ids_of(queries: pa.ChunkedArray) -> pa.Array:
    indices = pc.dictionary_encode(queries).unify_dictionaries().combine_chunks().indices
    return pc.binary_join_element_wise("q", pc.cast(indices, pa.string()), "")


def _grades(table: pa.Table, column: str | None, path: Path) -> pa.Array | pa.ChunkedArray:
    if column is None:
        return pa.array(np.ones(len(table), np.float32))
    values = table[column]
    encoded = pc.dictionary_encode(text_column(table, column, path=path)).unify_dictionaries().combine_chunks()
    grades = []
    for code, text in enumerate(encoded.dictionary.to_pylist()):
        row = int(np.flatnonzero(encoded.indices.to_numpy() == code)[0])
        grades.append(parse_grade(text, where=f"{path}: row {first_row(path) + row}, column {column!r}"))
        if len(grades) > 1000:  # a column of real numbers, not of labels
            return _numeric_grades(values, column, path)
    return pa.array(grades, pa.float32()).take(encoded.indices)


def _numeric_grades(values: pa.ChunkedArray, column: str, path: Path) -> pa.ChunkedArray:
    try:
        numbers = pc.cast(values, pa.float32())
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: column {column!r} has a grade that is not a number: {error}.") from error
    if not pc.all(pc.and_(pc.is_finite(numbers), pc.greater_equal(numbers, 0.0))).as_py():
        raise DataError(f"{path}: column {column!r} has a negative or infinite grade. Grades must be at least 0.")
    return numbers


def _splits(table: pa.Table, column: str, path: Path) -> pa.ChunkedArray:
    values = text_column(table, column, path=path)
    unknown = pc.invert(pc.is_in(values, value_set=pa.array(SPLITS))).to_numpy()
    if unknown.any():
        row = int(unknown.argmax())
        raise DataError(
            f"{path}: row {first_row(path) + row}, column {column!r}: unknown split {values[row].as_py()!r}. Expected "
            f"one of: {', '.join(SPLITS)}."
        )
    return values
