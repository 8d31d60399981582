"""Histories: which user took which item, in which order."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from restd._arrow import pc
from restd.data.dataset import find_table
from restd.data.readers import column_names, first_row, read_batches, required_text, resolve_columns
from restd.errors import DataError


def read_histories(path: Path, *, columns: Mapping[str, str] | None = None) -> pa.Table:
    """Read histories into the canonical columns `user, item, time`, sorted by user and then time.

    Users come in order of first appearance. A time is a number or an ISO date and time; without a time column, and
    between equal times, the order of the file decides.
    """
    path = find_table(Path(path), "histories")
    found = resolve_columns(column_names(path), columns or {}, required=("user", "item"), optional=("time",), path=path)
    batches = list(read_batches(path, rows=1 << 16))
    if not batches:
        raise DataError(f"{path} holds no events; wanted one user and item a row.")
    raw = pa.Table.from_batches(batches)
    user, item = (required_text(raw, found[name], path=path) for name in ("user", "item"))
    time = _times(raw[found["time"]], found["time"], path) if "time" in found else np.arange(len(raw))
    order = np.lexsort((time, pc.dictionary_encode(user).unify_dictionaries().combine_chunks().indices.to_numpy()))
    return pa.table({"user": user, "item": item, "time": pa.array(time)}).take(order)


def _times(values: pa.ChunkedArray, column: str, path: Path) -> np.ndarray:
    """Return times as integers, in whatever unit the file's whole numbers have; fractions count in millionths of it."""
    for kind in (pa.int64(), pa.float64(), pa.timestamp("s"), pa.timestamp("us")):
        try:
            converted = pc.cast(values, kind)
        except pa.ArrowException:
            continue
        if converted.null_count == 0 and kind == pa.float64():  # fractions of a second decide an order too
            return np.round(converted.to_numpy() * 1e6).astype(np.int64)
        if converted.null_count == 0:
            return pc.cast(converted, pa.int64(), safe=False).to_numpy().astype(np.int64)
    row = next((row for row, value in enumerate(values) if not _parses(value)), 0)  # 0: numbers and dates are mixed
    raise DataError(
        f"{path}: row {first_row(path) + row}, column {column!r}: {values[row].as_py()!r} is neither a number nor a "
        "date and time such as 2026-11-16T08:00:00."
    )


def _parses(value: pa.Scalar) -> bool:
    for kind in (pa.float64(), pa.timestamp("us")):
        try:
            if pc.cast(value, kind).is_valid:
                return True
        except pa.ArrowException:
            continue
    return False
