"""What the columns of a catalogue offer for filtering: values with counts, quantiles of numbers, category paths."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Bool

from restd._arrow import pc
from restd.snapshot import Snapshot

_QUANTILES = 11
_DEEPEST = 8
"""Levels of a category path that are counted."""
_FEW = 50
"""A text column with more distinct values than this, which most rows do not share, is prose and no facet."""
_REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class ValueFacet:
    """Values of a text column, or category paths; a path also counts what is below it."""

    column: str
    kind: Literal["text", "path"]
    values: list[tuple[str, int]]
    """With the number of items, commonest first."""
    more: int
    """Values beyond those."""
    missing: int
    """Items without a value."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = [{"value": value, "count": count} for value, count in self.values]
        return {"column": self.column, "kind": self.kind, "values": values, "more": self.more, "missing": self.missing}


@dataclass(frozen=True, slots=True)
class NumberFacet:
    """Range and quantiles of a column of numbers."""

    column: str
    least: float
    most: float
    quantiles: list[float]
    """From 0 to 100 % in steps of ten."""
    missing: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "column": self.column,
            "kind": "number",
            "min": self.least,
            "max": self.most,
            "quantiles": self.quantiles,
            "missing": self.missing,
        }


Facet = ValueFacet | NumberFacet


@dataclass(frozen=True, slots=True, eq=False)
class Facets:
    """Facets of one snapshot; those of the last few filters are remembered. For one thread at a time."""

    snapshot: Snapshot
    columns: Sequence[str]
    limit: int = 50
    """Values of each column."""
    _known: OrderedDict[tuple[str, ...], list[Facet]] = field(default_factory=OrderedDict)

    def of(self, where: Sequence[str] = ()) -> list[Facet]:
        """Facets of the items that meet all conditions; an error where none does."""
        key = tuple(where)
        if key not in self._known:
            keep = self.snapshot.matching(key)
            # prose is prose of the whole catalogue: few items may well have few texts
            columns = [facet.column for facet in self.of()] if key else self.columns
            self._known[key] = list(measure_facets(self.snapshot, columns, keep=keep, limit=self.limit))
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]


def measure_facets(
    snapshot: Snapshot, columns: Sequence[str], *, keep: Bool[np.ndarray, "item"] | None = None, limit: int = 50
) -> Iterator[Facet]:
    """Count the values of columns that can be filtered by; ids, titles, prose, dates and columns of null are left out.

    Args:
        snapshot: the catalogue.
        columns: names of its columns.
        keep: items to count; None for all.
        limit: values of each column.
    """
    for name in columns:
        if name in ("id", "title"):
            continue
        values = snapshot.items.column(name)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if keep is not None:
            values = values.filter(pa.array(keep))
        facet = _facet(name, values, limit)
        if facet is not None:
            yield facet


def _facet(name: str, values: pa.Array, limit: int) -> Facet | None:
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _paths(name, values, limit)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _numbers(name, values)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind):
        return _texts(name, pc.cast(values, pa.string()), limit)
    return None


def _texts(name: str, values: pa.Array, limit: int) -> ValueFacet | None:
    present = values.drop_null()
    counts = pc.value_counts(present)
    if not len(counts) or (len(counts) > _FEW and 2 * len(counts) > len(present)):
        return None
    return ValueFacet(name, "text", _commonest(counts, limit), max(0, len(counts) - limit), values.null_count)


def _paths(name: str, values: pa.Array, limit: int) -> ValueFacet | None:
    """Every beginning of a path is a value, as filters match beginnings."""
    paths = pc.cast(values, pa.list_(pa.string()))
    lengths = pc.fill_null(pc.list_value_length(paths), 0).to_numpy(zero_copy_only=False)
    counts = []
    for length in range(1, min(_DEEPEST, int(lengths.max(initial=0))) + 1):
        beginnings = pc.list_slice(paths.filter(pa.array(lengths >= length)), 0, length)
        counts.append(pc.value_counts(pc.binary_join(beginnings, " > ").drop_null()))
    if not counts:
        return None
    together = pa.concat_arrays(counts)
    missing = int((lengths == 0).sum())
    return ValueFacet(name, "path", _commonest(together, limit), max(0, len(together) - limit), missing)


def _numbers(name: str, values: pa.Array) -> NumberFacet | None:
    numbers = pc.cast(values, pa.float64()).drop_null().to_numpy(zero_copy_only=False)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return None
    quantiles = np.quantile(numbers, np.linspace(0, 1, _QUANTILES)).tolist()
    return NumberFacet(name, quantiles[0], quantiles[-1], quantiles, len(values) - len(numbers))


def _commonest(counts: pa.StructArray, limit: int) -> list[tuple[str, int]]:
    """Values with the largest counts, equals in the order of the values."""
    table = pa.table({"value": counts.field("values"), "count": counts.field("counts")})
    order = pc.select_k_unstable(table, min(limit, len(table)), [("count", "descending"), ("value", "ascending")])
    best = table.take(order)
    return list(zip(best["value"].to_pylist(), best["count"].to_pylist(), strict=True))
