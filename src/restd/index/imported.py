"""Semantic IDs made elsewhere: a table of codes, perhaps with codebooks and latents."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int16
from safetensors import SafetensorError
from safetensors.numpy import load_file

from restd._arrow import pc
from restd.codes import MAX_CODES, Codebooks, as_tensor, assign, check_codes, spaces
from restd.codes.ending import TERMINAL, stacked
from restd.data.readers import column_names, first_row, read_batches, resolve_columns
from restd.errors import DataError
from restd.index.sid_index import SidIndex
from restd.index.table import SidTable
from restd.quantize import to_latents

IMPORTED = "none"
_NONE = np.empty(0)


def import_index(
    codes: Path,
    *,
    codebooks: Path | None = None,
    latents: Path | None = None,
    columns: Mapping[str, str] | None = None,
) -> SidIndex:
    """Make an index of existing identifiers.

    Args:
        codes: a table with a column `id`, and the SID as one list column `sid` or as one column per level, in order.
        codebooks: `.npy` [level, code, dim], or safetensors with one tensor of that shape (or one [code, dim] per
            level). Levels of unequal size are padded with zeros, or have their sizes stored beside them as in an index
            of ours.
        latents: `.npy` or safetensors [item, dim], row for row with the table.
        columns: other names for `id` and `sid`.

    With one codebook fewer than levels, the last level is a disambiguation code. In a list column SIDs may be of
    unequal length; code 0 is kept for their end then, and there can be no codebooks.
    """
    ids, sids, ends = _read_codes(codes, columns or {})
    if ends and (codebooks is not None or latents is not None):
        raise DataError(
            f"{codes} has SIDs of unequal length, which have no codebooks or latents. Expected one length with them, "
            "or leave them out."
        )
    books = None if codebooks is None else _read_codebooks(codebooks, sids)
    points = None if latents is None else to_latents(_read_array(latents, dims=2))
    sizes = _sizes(sids, books)
    if books is not None:
        if not books.values.isfinite().all():
            raise DataError(f"{codebooks} has NaN or infinite values. Expected finite numbers.")
        check_codes(as_tensor(sids), books)
    if points is not None:
        expected = (len(ids), books.dim if books is not None else points.shape[1])
        if points.shape != expected:
            raise DataError(f"{latents} has shape {points.shape}. Expected {expected}, row for row with {codes}.")
        if not np.isfinite(points).all():
            raise DataError(f"{latents} has values that are NaN, infinite or outside the range of float16 (±65,504).")
    if points is not None and books is not None:
        spaces.refuse_outside(as_tensor(points), books.space, what="Latents")
    levels = len(sizes) if books is None else books.levels
    raw = (
        assign(as_tensor(points), books).numpy()
        if books is not None and points is not None
        else sids[:, :levels].copy()
    )
    table = SidTable(ids, sids, sizes, ends=ends)
    return SidIndex(table, raw, points, books, None, IMPORTED, {"imported": {"codes": codes.name}})


def _read_codes(path: Path, columns: Mapping[str, str]) -> tuple[pa.StringArray, Int16[np.ndarray, "item level"], bool]:
    """Ids, codes, and whether code 0 ends an identifier."""
    available = column_names(path)
    names = resolve_columns(available, columns, required=("id",), optional=("sid",), path=path)
    batches = list(read_batches(path, rows=1 << 16))
    if not batches:
        raise DataError(f"{path} has no items. Expected one row per item.")
    table = pa.Table.from_batches(batches)
    ids = pc.utf8_trim_whitespace(pc.cast(table[names["id"]], pa.string())).combine_chunks()
    if ids.null_count or pc.any(pc.equal(ids, "")).as_py():
        raise DataError(f"{path}: column {names['id']!r} has an empty id. Every item needs one.")
    if len(pc.unique(ids)) != len(ids):
        raise DataError(f"{path}: column {names['id']!r} repeats an id. Expected one row per item.")
    if "sid" in names:
        values = [_codes_in(value) for value in table[names["sid"]].to_pylist()]
        if len({len(value) for value in values}) > 1:
            return ids, _parse_unequal(values, path), True
    else:
        levels = [name for name in available if name != names["id"]]
        if not levels:
            raise DataError(
                f"{path} has no codes. Expected a list column 'sid', or one column per level beside {names['id']!r}."
            )
        values = list(zip(*(table[name].to_pylist() for name in levels), strict=True))
    return ids, _parse_codes(values, path), False


def _codes_in(value: object) -> list:
    """Codes of one SID: a list, or text such as 3-17-5 or 3,17,5."""
    if isinstance(value, str):
        return re.split(r"[-,;|\s]+", value.strip()) if re.match(r"\s*\d", value) else [value]
    return list(value) if isinstance(value, list) else [value]


def _parse_codes(values: list, path: Path) -> Int16[np.ndarray, "item level"]:
    _refuse_fractions(values, path)
    codes = np.array([[int(float(code)) for code in value] for value in values], dtype=np.int64)
    if codes.min(initial=0) < 0 or codes.max(initial=0) > MAX_CODES:
        raise DataError(f"{path} has codes from {codes.min()} to {codes.max()}. Expected 0 to {MAX_CODES}.")
    return codes.astype(np.int16)


def _parse_unequal(values: list, path: Path) -> Int16[np.ndarray, "item level"]:
    """Codes of SIDs of unequal length, filled up with the code that ends one."""
    _refuse_fractions(values, path)
    empty = next((row for row, value in enumerate(values) if not value), None)
    if empty is not None:
        raise DataError(f"{path}: row {first_row(path) + empty} has no codes. Expected at least one.")
    codes = _parse_codes([[code for value in values for code in value]], path)[0]
    if (codes == TERMINAL).any():
        lengths = sorted({len(value) for value in values})
        raise DataError(
            f"{path} has SIDs of lengths {lengths}, and some have code {TERMINAL}, which ends a SID where lengths "
            "differ. Add 1 to every code, or fill shorter SIDs up to one length."
        )
    parts = np.split(codes, np.cumsum([len(value) for value in values])[:-1])
    return stacked([part.tolist() for part in parts]).astype(np.int16)


def _refuse_fractions(values: list, path: Path) -> None:
    bad = next((row for row, value in enumerate(values) if not _are_integers(value)), None)
    if bad is not None:
        raise DataError(f"{path}: row {first_row(path) + bad} has a code that is not a whole number.")


def _are_integers(values: tuple | list) -> bool:
    try:
        return all(float(value).is_integer() for value in values)
    except (ValueError, TypeError):
        return False


def _sizes(sids: Int16[np.ndarray, "item level"], books: Codebooks | None) -> tuple[int, ...]:
    needed = tuple(int(value) + 1 for value in sids.max(axis=0, initial=0))
    if books is None:
        return needed
    extra = len(needed) - books.levels
    if extra not in (0, 1):
        raise DataError(
            f"Items have {len(needed)} codes, but there are {books.levels} codebooks. Expected as many or one fewer."
        )
    return (*books.sizes, *needed[books.levels :])


def _read_codebooks(path: Path, sids: Int16[np.ndarray, "item level"]) -> Codebooks:
    if path.suffix == ".npy":
        return _without_padding(_read_array(path, dims=3), sids)
    tensors = _load(path)
    if Codebooks.are_in(tensors):
        return Codebooks.from_arrays(tensors)
    stacked = [tensor for tensor in tensors.values() if tensor.ndim == 3]
    if len(stacked) == 1:
        return _without_padding(stacked[0], sids)
    if not tensors:
        raise DataError(f"{path} has no tensors. Expected [level, code, dim], or [code, dim] per level.")
    first = next(iter(tensors.values()))
    if any(tensor.ndim != 2 or tensor.shape[1] != first.shape[1] for tensor in tensors.values()):
        raise DataError(
            f"{path} has tensors {[t.shape for t in tensors.values()]}. Expected [level, code, dim], or "
            "[code, dim] per level."
        )
    by_number = sorted(tensors, key=lambda name: [int(part) for part in re.findall(r"\d+", name)] or [0])
    return Codebooks.of([tensors[name] for name in by_number])


def _without_padding(
    values: Float[np.ndarray, "level code dim"], sids: Int16[np.ndarray, "item sid_level"]
) -> Codebooks:
    """Rows of zeros after a level's last codeword are padding, unless an item has their code."""
    sizes = [int(np.flatnonzero(book.any(axis=1)).max(initial=0)) + 1 for book in values]
    for level, largest in enumerate(sids.max(axis=0, initial=0)[: len(sizes)]):
        sizes[level] = min(max(sizes[level], int(largest) + 1), values.shape[1])
    return Codebooks.of([book[:size] for book, size in zip(values, sizes, strict=True)])


def _read_array(path: Path, *, dims: int) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else next(iter(_load(path).values()), _NONE)
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as an array of numbers: {error}.") from error
    if array.ndim != dims or not np.issubdtype(array.dtype, np.floating):
        raise DataError(
            f"{path} has {array.dtype} of shape {array.shape}. Expected floating-point numbers in {dims} axes."
        )
    return array


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read as safetensors ({error}). Expected .npy or .safetensors.") from error
