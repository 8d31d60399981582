"""What is known of the items beside their Semantic IDs: titles to show, columns to filter by."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool

from restd._arrow import pc
from restd.data import Catalog
from restd.errors import ConfigError, DataError

_CONDITION = re.compile(r"\s*([^=<>!~]+?)\s*(<=|>=|!=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_PATH = " > "


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate on one column.

    >>> Condition.parse("price<=50")
    Condition(column='price', operator='<=', value='50')
    """

    column: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read `column=value`, `!=`, `<`, `<=`, `>`, `>=`, or `~` for "contains"."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise ConfigError(f"The filter {text!r} is not of the form column=value (or !=, <, <=, >, >=, ~).")
        return cls(*found.groups())


@dataclass(frozen=True, eq=False)
class Items:
    """The catalogue's rows in the order of an index; a column is read when it is first asked for."""

    ids: pa.StringArray
    catalog: Catalog | None
    added: pa.Table | None = None
    """Items that came after the catalogue was written: columns as the catalogue names them."""
    _columns: dict[str, pa.Array] = field(default_factory=dict)

    def titles(self) -> pa.Array:
        """A title of every item; an item without one shows its id."""
        found = self.column("title") if self.has("title") else pa.nulls(len(self.ids), pa.string())
        text = pc.cast(found, pa.string())
        return pc.if_else(pc.equal(pc.fill_null(text, ""), ""), self.ids, text)

    def names(self) -> list[str]:
        """Columns there are."""
        held = [] if self.catalog is None else next(self.catalog.batches(rows=1)).schema.names
        return list(dict.fromkeys([*held, *([] if self.added is None else self.added.column_names)]))

    def has(self, name: str) -> bool:
        """Whether there is a column of this name."""
        return name in self._columns or name in self.names()

    def column(self, name: str) -> pa.Array:
        """Values of one column, row for row; null where an item has none."""
        if name not in self._columns:
            if not self.has(name):
                raise DataError(f"There is no column {name!r} to filter by; there are: {', '.join(self.names())}.")
            self._columns[name] = self._read(name)
        return self._columns[name]

    def _read(self, name: str) -> pa.Array:
        ids, values = [], []
        if self.catalog is not None:
            for batch in self.catalog.batches():
                if name in batch.schema.names:
                    ids.append(batch.column("id"))
                    values.append(batch.column(name))
        if self.added is not None and name in self.added.column_names:
            ids += self.added["id"].chunks
            kind = values[0].type if values else self.added[name].type
            values += pc.cast(self.added[name], kind).chunks
        place = pc.index_in(self.ids, value_set=pa.chunked_array(ids).combine_chunks())
        return pa.chunked_array(values).combine_chunks().take(place)

    def meeting(self, conditions: Iterable[Condition]) -> Bool[np.ndarray, "item"]:
        """Which items meet all conditions."""
        kept = np.ones(len(self.ids), bool)
        for condition in conditions:
            kept &= _meets(self.column(condition.column), condition)
        return kept

    def rows(self, ids: Sequence[str], *, what: str) -> np.ndarray:
        """Rows of items by id; an unknown one is an error."""
        found = pc.index_in(pa.array(list(ids), pa.string()), value_set=self.ids)
        if found.null_count:
            missing = next(item for item, place in zip(ids, found.to_pylist(), strict=True) if place is None)
            raise DataError(f"{what} names item {missing!r}, which the index does not have.")
        return found.to_numpy()

    def without(self, keep: Bool[np.ndarray, "item"]) -> "Items":
        """Only the kept items."""
        return Items(self.ids.filter(pa.array(keep)), self.catalog, self.added)

    def with_added(self, rows: Sequence[Mapping[str, Any]]) -> "Items":
        """These items behind the others; each has an id and whatever else is known."""
        fresh = pa.Table.from_pylist([dict(row) for row in rows])
        both = fresh if self.added is None else pa.concat_tables([self.added, fresh], promote_options="permissive")
        ids = pa.concat_arrays([self.ids, pa.array([str(row["id"]) for row in rows], pa.string())])
        return Items(ids, self.catalog, both)


def _meets(values: pa.Array, condition: Condition) -> Bool[np.ndarray, "item"]:
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return _meets_path(values, condition)
    if condition.operator == "~":
        text = pc.utf8_lower(pc.cast(values, pa.string()))
        return _plain(pc.match_substring(text, condition.value.lower()))
    compare = {
        "=": pc.equal,
        "!=": pc.not_equal,
        "<": pc.less,
        "<=": pc.less_equal,
        ">": pc.greater,
        ">=": pc.greater_equal,
    }
    try:
        wanted = pa.scalar(condition.value).cast(values.type)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"Column {condition.column!r} holds {values.type}, and {condition.value!r} is none; compare it with such a "
            "value."
        ) from error
    return _plain(compare[condition.operator](values, wanted))


def _meets_path(values: pa.Array, condition: Condition) -> Bool[np.ndarray, "item"]:
    """A path meets `=` where the wanted path is its beginning, or the wanted name one of its parts."""
    wanted = [part.strip() for part in condition.value.split(_PATH.strip())]
    found = np.zeros(len(values), bool)
    encoded = [tuple(path or ()) for path in values.to_pylist()]
    answers = {path: _inside(path, wanted, condition.operator) for path in set(encoded)}
    found[:] = [answers[path] for path in encoded]
    return found


def _inside(path: tuple[str, ...], wanted: list[str], operator: str) -> bool:
    if operator == "~":
        return any(wanted[0].lower() in part.lower() for part in path)
    if operator not in ("=", "!="):
        raise DataError(f"A list of names cannot be compared with {operator!r}; wanted =, != or ~.")
    held = list(path[: len(wanted)]) == wanted or (len(wanted) == 1 and wanted[0] in path)
    return held if operator == "=" else not held


def _plain(answer: Any) -> Bool[np.ndarray, "item"]:
    """Nulls meet nothing."""
    return pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
