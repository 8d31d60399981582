"""What is known of the items beside their Semantic IDs: titles to show, texts to index, columns to filter by."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from jaxtyping import Bool, Float, Int64

from restd._arrow import pc
from restd.data import Catalog
from restd.errors import ConfigError, DataError
from restd.index import Placement
from restd.snapshot.filters import Condition, expression, searchable


@dataclass(frozen=True, eq=False)
class Items:
    """The catalogue's rows in the order of an index; a column is read when it is first needed."""

    ids: pa.StringArray
    catalog: Catalog | None
    added: pa.Table | None = None
    """Items that were added after the catalogue was written, with the catalogue's column names."""
    added_texts: pa.StringArray | None = None
    """Texts of the added items as they were encoded; None where every text is that of the item's own fields."""
    _columns: dict[str, pa.Array] = field(default_factory=dict)

    def titles(self) -> pa.Array:
        """A title of every item; an item without one shows its id."""
        return self._titles

    @cached_property
    def _titles(self) -> pa.Array:
        column = self.column("title") if self.has("title") else pa.nulls(len(self.ids), pa.string())
        text = pc.cast(column, pa.string())
        return pc.if_else(pc.equal(pc.fill_null(text, ""), ""), self.ids, text)

    def texts(self) -> list[str]:
        """The text of every item as it was encoded; empty for an item that the catalogue does not have any more."""
        if self.catalog is None:
            raise ConfigError(
                "The texts of the items are not known: no catalogue was given. Pass the catalogue's path."
            )
        ids = self.ids.to_pylist()
        text_of_added = dict(zip(*self._added_texts(), strict=True))
        return [text_of_added.get(item, text) for item, text in zip(ids, self.catalog.texts_of(ids), strict=True)]

    def _added_texts(self) -> tuple[list[str], list[str]]:
        """Ids of the added items, and the texts they were encoded by."""
        added = [] if self.added is None else self.added.to_pylist()
        ids = [str(item["id"]) for item in added]
        return ids, [text_of(item) for item in added] if self.added_texts is None else self.added_texts.to_pylist()

    def names(self) -> list[str]:
        """Names of all columns."""
        return list(self.kinds())

    def kinds(self) -> dict[str, pa.DataType]:
        """Types of all columns by name; the catalogue's where an added item has the column too."""
        added = {} if self.added is None else dict(zip(self.added.column_names, self.added.schema.types, strict=True))
        known = self._catalog_kinds()
        return known | {name: kind for name, kind in added.items() if name not in known}

    def _catalog_kinds(self) -> dict[str, pa.DataType]:
        if self.catalog is None:
            return {}
        schema = next(self.catalog.batches(rows=1)).schema
        return dict(zip(schema.names, schema.types, strict=True))

    def has(self, name: str) -> bool:
        """Whether there is a column of this name."""
        return name in self._columns or name in self.names()

    def column(self, name: str) -> pa.Array:
        """Values of one column, one per item; null where an item has none."""
        if name not in self._columns:
            if not self.has(name):
                raise DataError(f"There is no column {name!r} to filter by; there are: {', '.join(self.names())}.")
            self._columns[name] = self._read(name)
        return self._columns[name]

    def _read(self, name: str) -> pa.Array:
        chunks, ids = [], []
        if self.catalog is not None:
            for batch in self.catalog.batches():
                if name in batch.schema.names:
                    ids.append(batch.column("id"))
                    chunks.append(batch.column(name))
        rows = pc.index_in(self.ids, value_set=pa.chunked_array(ids, pa.string()).combine_chunks())
        if self.added is None:
            return pa.chunked_array(chunks).combine_chunks().take(rows)
        # an added item is what was added, even where the catalogue has an older one of the same id
        values, start = self._added_column(name, chunks[0].type if chunks else None), sum(map(len, chunks))
        added_rows = pc.index_in(self.ids, value_set=pc.cast(self.added["id"], pa.string()).combine_chunks())
        rows = pc.if_else(pc.is_valid(added_rows), pc.add(added_rows, start), rows)
        return pa.chunked_array([*chunks, values]).combine_chunks().take(rows)

    def _added_column(self, name: str, kind: pa.DataType | None) -> pa.Array:
        """Values of the added items, as the catalogue's type where it has the column."""
        if self.added is None or name not in self.added.column_names:
            return pa.nulls(0 if self.added is None else len(self.added), kind)
        values = self.added[name].combine_chunks()
        return values if kind is None else pc.cast(values, kind)

    def matching(self, conditions: Iterable[Condition]) -> Bool[np.ndarray, "item"]:
        """Which items meet all conditions."""
        columns: dict[str, pa.Array] = {}
        keep = pc.scalar(True)
        for condition in conditions:
            values = self.column(condition.column)
            keep = keep & expression(condition, values.type)
            columns[condition.column] = searchable(values)
        if not columns:
            return np.ones(len(self.ids), bool)
        # one thread, so that the mask is in the order of the rows
        mask = ds.dataset(pa.table(columns)).to_table(columns={"keep": keep}, use_threads=False)["keep"]
        return pc.fill_null(mask, False).to_numpy()

    def rows(self, ids: Sequence[str], *, what: str) -> Int64[np.ndarray, "row"]:
        """Rows of items by id; `what` names the source of an unknown id in the error."""
        rows = pc.index_in(pa.array(list(ids), pa.string()), value_set=self.ids)
        if rows.null_count:
            missing = next(item for item, row in zip(ids, rows.to_pylist(), strict=True) if row is None)
            raise DataError(f"{what} names item {missing!r}, which the index does not have.")
        return rows.to_numpy().astype(np.int64)

    def without(self, keep: Bool[np.ndarray, "item"]) -> "Items":
        """Only the kept items; columns that were read follow."""
        mask = pa.array(keep)
        ids = self.ids.filter(mask)
        columns = {name: values.filter(mask) for name, values in tuple(self._columns.items())}
        added, texts = self.added, self.added_texts
        if added is not None:
            still_there = pc.is_in(pc.cast(added["id"], pa.string()).combine_chunks(), value_set=ids)
            added = added.filter(still_there)
            texts = None if texts is None else texts.filter(still_there)
            empty = [name for name in added.column_names if name != "id" and added[name].null_count == len(added)]
            added = added.drop_columns(empty)  # a column that no item has any more is gone, unless the catalogue has it
            gone = set(empty).difference(self._catalog_kinds())
            columns = {name: values for name, values in columns.items() if name not in gone}
        return Items(ids, self.catalog, added, texts, columns)

    def with_added(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str] | None = None) -> "Items":
        """These items behind the others; each has an id and whatever else is known. Columns that were read follow.

        Args:
            rows: the new items.
            texts: what they were encoded by; by default all texts of each item.
        """
        own_ids = pa.array([str(row["id"]) for row in rows], pa.string())
        names = dict.fromkeys(name for row in rows for name in row)
        fields = {name: pa.array([row.get(name) for row in rows]) for name in names}
        table = pa.table({**fields, "id": own_ids})
        both = table if self.added is None else pa.concat_tables([self.added, table], promote_options="permissive")
        ids = pa.concat_arrays([self.ids, own_ids])
        latest = Items(ids, None, table)
        columns = {
            name: pa.concat_arrays([values, latest._added_column(name, values.type)])
            for name, values in tuple(self._columns.items())
        }
        if texts is None and self.added_texts is None:
            return Items(ids, self.catalog, both, _columns=columns)
        own = [text_of(row) for row in rows] if texts is None else list(texts)
        return Items(ids, self.catalog, both, pa.array([*self._added_texts()[1], *own], pa.string()), columns)


@dataclass(frozen=True, eq=False)
class NewItems:
    """Items with all that a snapshot keeps of them, so that they are added without encoder and quantiser.

    Args:
        items: each with an id and whatever else is known.
        texts: what they were encoded by; None for all texts of each item.
        vectors: their embeddings.
        placement: their rows of the index.
    """

    items: Sequence[Mapping[str, Any]]
    texts: Sequence[str] | None
    vectors: Float[np.ndarray, "item input"]
    placement: Placement


def text_of(item: Mapping[str, Any]) -> str:
    """The text of an item that is given as a mapping: every text but its id.

    >>> text_of({"id": "7", "title": "Red kettle", "category": ["Home", "Kitchen"], "price": 30})
    'Red kettle. Home > Kitchen'
    """
    values = [
        " > ".join(value) if isinstance(value, (list, tuple)) else value for name, value in item.items() if name != "id"
    ]
    return ". ".join(value for value in values if isinstance(value, str) and value)
