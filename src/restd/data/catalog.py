"""The catalogue: items with an id, a title, other columns, and perhaps a category path."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from restd._arrow import pc
from restd.artifacts import hash_file, hash_json
from restd.data.dataset import find_table
from restd.data.readers import column_names, first_row, other_columns, read_batches, resolve_columns
from restd.data.schema import CATEGORY
from restd.errors import DataError

_FIELD_SEPARATOR = ". "
_CANONICAL = ("id", "title", "category")


@dataclass(frozen=True)
class Catalog:
    """A table of items on disk, read in batches so that it may be larger than memory.

    Args:
        path: CSV, TSV, JSON lines or Parquet, or a data set folder written by `restd data`.
        columns: canonical name to the file's name, for example `{"id": "asin"}`.
        text: columns whose text is encoded, in this order; by default the title and then every other text column.
        category_separator: text between two parts of a category path that is written as one string.
    """

    path: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    text: tuple[str, ...] = ()
    category_separator: str = " > "

    def __post_init__(self) -> None:
        path = find_table(Path(self.path), "items")
        if not path.is_file():
            raise DataError(f"{path} does not exist, or is not a file; check the path.")
        if not self.category_separator:
            raise DataError(
                "The separator of category paths is empty. Pass the text between two parts of a path, such as ' > '."
            )
        object.__setattr__(self, "path", path)

    @classmethod
    def read_as(cls, path: Path, reading: Mapping[str, Any] | None) -> "Catalog":
        """Open a table the way another was read; an index stores the `reading` of its catalogue."""
        if reading is None:
            return cls(path)
        return cls(
            path, columns=reading["columns"], text=tuple(reading["text"]), category_separator=reading["separator"]
        )

    def batches(self, rows: int = 8192) -> Iterator[pa.RecordBatch]:
        """Yield canonical batches: `id`, `title`, `category`, then every other column as it is."""
        mapping = self._mapping()
        row = first_row(self.path)
        for batch in read_batches(self.path, rows=rows):
            try:
                yield self._canonical(batch, mapping, row)
            except pa.ArrowException as error:
                raise DataError(
                    f"{self.path}: rows from {row} on have values that cannot be read as text: "
                    f"{str(error).splitlines()[0]}."
                ) from error
            row += batch.num_rows

    def texts(self, batch: pa.RecordBatch) -> pa.StringArray:
        """Return the text to encode for each item of a canonical batch; empty where an item has none."""
        return joined_texts(batch, self.text_columns)

    def texts_of(self, ids: Iterable[str]) -> list[str]:
        """Return the text of each id, in the order of `ids`; empty for ids that are not in the table."""
        text_by_id: dict[str, str] = {}
        for batch in self.batches():
            text_by_id.update(zip(batch.column("id").to_pylist(), self.texts(batch).to_pylist(), strict=True))
        return [text_by_id.get(item, "") for item in ids]

    def items_with_texts(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return every item as a mapping, and the text to encode for it: what `Retriever.add` takes.

        All are held in memory, which is meant for the new items of a catalogue rather than for a whole one.
        """
        items: list[dict[str, Any]] = []
        texts: list[str] = []
        for batch in self.batches():
            items += batch.to_pylist()
            texts += self.texts(batch).to_pylist()
        return items, texts

    def ids(self) -> pa.StringArray:
        """Return every id in file order; a duplicate or an empty one is an error that names its row."""
        column = self._mapping()["id"]
        stream = read_batches(self.path, rows=1 << 16, columns=[column])
        try:
            chunks = [_ids_of(batch.column(0)) for batch in stream]
        except pa.ArrowException as error:
            raise DataError(
                f"{self.path}: column {column!r} has ids that are neither text nor numbers. Choose another id column."
            ) from error
        ids = pa.chunked_array(chunks, pa.string()).combine_chunks()
        if len(ids) == 0:
            raise DataError(f"{self.path} contains no items. Expected at least one row.")
        _refuse_bad_ids(ids, path=self.path, column=column)
        return ids

    def reading(self) -> dict[str, Any]:
        """Return how the file is read, as plain values, so that items added later can be read the same way."""
        return {"columns": dict(self.columns), "text": list(self.text), "separator": self.category_separator}

    def identity(self) -> str:
        """Return a hash of the file's bytes and of how they are read; equal hashes mean equal items."""
        return hash_json({"file": hash_file(self.path), **self.reading()})

    def _mapping(self) -> dict[str, str]:
        available = column_names(self.path)
        column_of = resolve_columns(
            available, self.columns, required=("id",), optional=("title", "category"), path=self.path
        )
        for name in self.text:
            if name not in available and name not in column_of:
                raise DataError(f"{self.path} has no column {name!r} to encode; it has: {', '.join(available)}.")
        return column_of

    def _canonical(self, batch: pa.RecordBatch, mapping: Mapping[str, str], row: int) -> pa.RecordBatch:
        ids = _ids_of(batch.column(mapping["id"]))
        if ids.null_count:
            missing = int(np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(f"{self.path}: row {row + missing}, column {mapping['id']!r}: the id is missing.")
        return canonical_items(batch, mapping, separator=self.category_separator)

    @cached_property
    def text_columns(self) -> list[str]:
        """The columns whose text is encoded, in order: those of `text`, else the title and every other text column.

        A column whose first values are all numbers is not text, because in a CSV every column is read as text.
        """
        first = next(self.batches(), None)
        if self.text:
            renamed = {column: name for name, column in other_columns(column_names(self.path), {}, _CANONICAL).items()}
            canonical_name = {**renamed, **{column: name for name, column in self._mapping().items()}}
            return [canonical_name.get(name, name) for name in self.text]
        return ["title"] if first is None else text_columns_of(first)


def canonical_items(batch: pa.RecordBatch, column_of: Mapping[str, str], *, separator: str) -> pa.RecordBatch:
    """Return a batch of a table as canonical items: `id`, `title`, `category`, then every other column as it is.

    >>> batch = pa.RecordBatch.from_pydict({"sku": ["a"], "title": ["Pan"], "price": [3]})
    >>> canonical_items(batch, {"id": "sku", "title": "title"}, separator=" > ").schema.names
    ['id', 'title', 'category', 'price']
    """
    size = batch.num_rows
    title = batch.column(column_of["title"]) if "title" in column_of else pa.repeat(pa.scalar(""), size)
    if "category" in column_of:
        category = _category_paths(batch.column(column_of["category"]), separator)
    else:
        category = pa.array([[]] * size, CATEGORY)
    others = other_columns(batch.schema.names, column_of, _CANONICAL)
    return pa.RecordBatch.from_arrays(
        [
            _ids_of(batch.column(column_of["id"])),
            text_values(title),
            category,
            *(batch.column(name) for name in others.values()),
        ],
        names=[*_CANONICAL, *others],
    )


def text_columns_of(batch: pa.RecordBatch) -> list[str]:
    """Return the title and every other text column of a canonical batch; a column of numbers only is not text."""
    rest = [name for name in batch.schema.names if name not in _CANONICAL and _is_text(batch.column(name))]
    return ["title", *rest]


def joined_texts(batch: pa.RecordBatch, columns: Iterable[str]) -> pa.StringArray:
    """Return the texts of these columns of a canonical batch as one text per item; empty where an item has none."""
    parts = [text_values(batch.column(name)) for name in columns]
    # no nulls here: Arrow's join that skips nulls loses a last row in which all are null
    prefixed = [pc.binary_join_element_wise(_FIELD_SEPARATOR, part, "") for part in parts]
    pieces = [pc.if_else(pc.equal(part, ""), "", piece) for part, piece in zip(parts, prefixed, strict=True)]
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*pieces, ""), len(_FIELD_SEPARATOR))


def _is_text(values: pa.Array) -> bool:
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        return False
    filled = pc.filter(text_values(values), pc.not_equal(text_values(values), ""))
    numbers = pc.match_substring_regex(filled, r"^[-+]?[0-9]+([.,][0-9]+)?([eE][-+]?[0-9]+)?$")
    return len(filled) == 0 or not pc.all(numbers).as_py()


def _ids_of(values: pa.Array) -> pa.StringArray:
    return pc.utf8_trim_whitespace(pc.cast(values, pa.string()))


def text_values(values: pa.Array) -> pa.StringArray:
    """Return any column as trimmed text: lists are joined by spaces, nulls are empty."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values = pc.binary_join(pc.cast(values, pa.list_(pa.string())), " ")
    return pc.fill_null(pc.utf8_trim_whitespace(pc.cast(values, pa.string())), "")


def _category_paths(values: pa.Array, separator: str) -> pa.ListArray:
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return pc.fill_null(pc.cast(values, CATEGORY), pa.scalar([], CATEGORY))
    texts = pc.fill_null(pc.cast(values, pa.string()), "").to_pylist()
    paths = [[part.strip() for part in text.split(separator) if part.strip()] for text in texts]
    return pa.array(paths, CATEGORY)


def _refuse_bad_ids(ids: pa.StringArray, *, path: Path, column: str) -> None:
    start = first_row(path)
    blank = pc.or_kleene(ids.is_null(), pc.equal(pc.utf8_trim_whitespace(ids), "")).to_numpy(zero_copy_only=False)
    if blank.any():
        raise DataError(f"{path}: row {start + int(blank.argmax())}, column {column!r}: the id is missing.")
    codes = pc.dictionary_encode(ids).indices.to_numpy()
    seen_before = codes <= np.maximum.accumulate(np.concatenate([[-1], codes[:-1]]))
    if seen_before.any():  # a first appearance always gets a new, larger code
        repeat = int(seen_before.argmax())
        first = int(np.flatnonzero(codes == codes[repeat])[0])
        raise DataError(
            f"{path}: row {start + repeat}, column {column!r}: id {ids[repeat].as_py()!r} is already in row "
            f"{start + first}. Ids must be unique; {int(seen_before.sum()):,} rows repeat one."
        )
