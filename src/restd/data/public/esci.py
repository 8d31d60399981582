"""Amazon's Shopping Queries Dataset (ESCI), from its two parquet files and the ESCI-S file with categories.

Judgments are stored as integer codes and products are streamed, so the largest locale needs about half a gigabyte.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from restd._arrow import pc
from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.lines import json_lines, required_id
from restd.data.schema import GRADES, ITEM_COLUMNS, JUDGMENTS
from restd.data.source import Source
from restd.data.text import plain_text
from restd.errors import ConfigError, DataError

_TEXTS: Final = {
    "title": "product_title",
    "brand": "product_brand",
    "color": "product_color",
    "bullet": "product_bullet_point",
    "description": "product_description",
}

ITEMS: Final = pa.schema([*ITEM_COLUMNS, *((name, pa.string()) for name in list(_TEXTS)[1:])])
ROWS: Final = JUDGMENTS.append(pa.field("seen", pa.bool_()))
"""`seen`: the product occurs in the published training split, with any label."""

LOCALES: Final = ("us", "es", "jp")
PUBLISHED: Final = {
    "us": {"products": 288_372, "test queries": 6_014},
    "es": {"products": 101_957, "test queries": 1_656},
    "jp": {"products": 119_052, "test queries": 1_883},
}
"""Counts per locale after the paper's filters."""

_MIN_PATH_CHARACTERS: Final = 3
_MIN_PATH_LEVELS: Final = 3
_VALID_SHARE: Final = 0.1
_VALID_SEED: Final = 42
_BATCH_ROWS: Final = 16_384

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Examples:
    """Judged rows in file order: four parallel columns, and the texts and ids of the codes in the first two."""

    query: NDArray[np.int32]
    item: NDArray[np.int32]
    grade: NDArray[np.float32]
    train: Mask
    queries: pa.Array
    query_ids: pa.Array
    items: pa.Array

    @property
    def positive(self) -> Mask:
        """True for the labels E, S and C."""
        return self.grade > 0

    def keep(self, rows: NDArray[Any]) -> "Examples":
        """Return the rows at a mask or at sorted positions; codes stay valid."""
        columns = {name: getattr(self, name)[rows] for name in ("query", "item", "grade", "train")}
        return replace(self, **columns)

    def items_in(self, rows: Mask) -> Mask:
        """Return a mask over item codes: the items of the masked rows."""
        item_mask = np.zeros(len(self.items), dtype=bool)
        item_mask[self.item[rows]] = True
        return item_mask


def esci_source(
    examples: Path,
    products: Path,
    *,
    locale: str,
    small_version: bool = True,
    categories: Path | None = None,
    profile: str = "paper",
    catalogue: str = "train",
    strict: bool = False,
) -> Source:
    """Return products as items and judged rows as judgments, with the label as grade.

    Args:
        examples: shopping_queries_dataset_examples.parquet.
        products: shopping_queries_dataset_products.parquet.
        locale: us, es or jp.
        small_version: use the rows of the small version (the harder queries) only, not all rows.
        categories: JSON lines with `asin` and `category`, plain or gzip; required by the paper's filters.
        profile: "paper" applies the paper's filters (`paper_examples`); "all" keeps every row whose product is listed.
        catalogue: "train" has the products of the training split; "all" adds those that occur in test rows only, so
            that no test row is dropped for its product.
        strict: raise an error, instead of adding a note, if counts differ from the published ones.
    """
    locale = locale.lower()
    _check_settings(locale, small_version, categories, profile, catalogue, strict)
    all_rows = read_examples(examples, locale=locale, small_version=small_version)
    known = pc.is_in(all_rows.items, value_set=_product_ids(products, locale=locale)).to_numpy(zero_copy_only=False)
    rows = all_rows.keep(known[all_rows.item])
    paths = read_paths(categories, rows.items) if categories is not None else [()] * len(rows.items)
    if profile == "paper":
        rows = paper_examples(rows, paths, locale=locale, catalogue=catalogue)
    seen = rows.items_in(rows.train)
    listed = seen if catalogue == "train" else rows.items_in(np.ones_like(rows.train))
    judged = _merge_duplicates(rows.keep(listed[rows.item]))
    valid = _valid_queries(judged)
    notes = _notes(judged, listed=listed, valid=valid)
    if unknown := int((~known[all_rows.item]).sum()):
        notes.append(f"{unknown:,} rows were dropped because their products are not in {products.name}.")
    if profile == "paper" and catalogue == "train":
        notes = _differences(judged, listed=listed, locale=locale, strict=strict) + notes
    elif outside := int((~listed[rows.item]).sum()):
        notes.append(f"{outside:,} test rows were dropped: products not in the training split (catalogue='train').")
    files = {"examples": examples, "products": products, "categories": categories}
    return Source(
        name="esci",
        settings={
            **{name: None if path is None else str(path) for name, path in files.items()},
            "locale": locale,
            "small_version": small_version,
            "profile": profile,
            "catalogue": catalogue,
            "valid_seed": _VALID_SEED,
        },
        items=lambda: _items(products, judged.items, listed, paths, locale=locale),
        judgments=lambda: _judgments(judged, valid=valid, seen=seen),
        notes=tuple(notes),
    )


def paper_examples(rows: Examples, paths: Sequence[tuple[str, ...]], *, locale: str, catalogue: str) -> Examples:
    """Return the rows that pass the paper's filters; `paths` has the category path of each item code.

    In this order: products need a category path; repeated (query, product, label) rows count once; test rows need a
    product of the training split (for `us`, the test row must be positive and the product positive in a training row);
    the first positive product of a test query needs a path of three levels.
    """
    has_path = np.array([len("\t".join(path)) >= _MIN_PATH_CHARACTERS for path in paths], dtype=bool)
    rows = rows.keep(has_path[rows.item])
    label = np.searchsorted(np.sort(list(GRADES.values())), rows.grade)
    _, first = np.unique(_pair_codes(rows) * len(GRADES) + label, return_index=True)
    rows = rows.keep(np.sort(first))

    eligible = rows.positive if locale == "us" else np.ones_like(rows.train)
    allowed = eligible
    if catalogue == "train":
        allowed = eligible & rows.items_in(rows.train & eligible)[rows.item]
    rows = rows.keep(rows.train | allowed)

    levels = np.array([len(path) for path in paths], dtype=np.int64)
    positives = np.flatnonzero(~rows.train & rows.positive)
    queries, first = np.unique(rows.query[positives], return_index=True)
    deep_queries = queries[levels[rows.item[positives[first]]] >= _MIN_PATH_LEVELS]
    return rows.keep(rows.train | np.isin(rows.query, deep_queries))


def read_examples(path: Path, *, locale: str, small_version: bool) -> Examples:
    """Read the judged rows of one locale. Queries with the same text are one query with the first of their ids."""
    columns: dict[str, pa.DataType] = dict.fromkeys(
        ("query", "query_id", "product_id", "product_locale", "esci_label", "split"), pa.string()
    )
    if small_version:
        columns["small_version"] = pa.int64()
    batches, locales = [], set()
    for batch in _batches(path, columns, required=columns):
        locales.update(pc.unique(batch["product_locale"]).to_pylist())
        mask = pc.equal(batch["product_locale"], locale)
        if small_version:
            mask = pc.and_(mask, pc.equal(batch["small_version"], 1))
        batches.append(batch.filter(mask))
    table = pa.Table.from_batches(batches) if batches else None
    if table is None or not table.num_rows:
        available = ", ".join(sorted(locales)) or "none"
        raise DataError(f"{path} has no usable rows of locale {locale!r}. Choose one of its locales: {available}.")
    query, queries = _encode(table["query"])
    item, items = _encode(table["product_id"])
    _, first = np.unique(query, return_index=True)
    query_ids = table["query_id"].take(pa.array(first)).combine_chunks()
    if len(pc.unique(query_ids)) < len(queries):
        raise DataError(f"{path} has one query_id for several query texts. Use the published file unchanged.")
    grades = _lookup(table["esci_label"], GRADES, path=path, name="esci_label")
    train = _lookup(table["split"], {"train": 1.0, "test": 0.0}, path=path, name="split")
    return Examples(query, item, grades, train > 0, queries, query_ids, items)


def read_paths(path: Path, items: pa.Array) -> list[tuple[str, ...]]:
    """Return the category path of each item, or an empty one; of several lines, the last one with a path counts."""
    codes = {asin: code for code, asin in enumerate(items.to_pylist())}
    paths: list[tuple[str, ...]] = [()] * len(codes)
    # Many products share a path; one object per distinct path saves memory.
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    for number, record in json_lines(path, replace_surrogates=True):
        asin, category = required_id(record, "asin", path=path, number=number), record.get("category") or []
        if not (isinstance(category, list) and all(isinstance(level, str) for level in category)):
            raise DataError(f"{path}, line {number}: expected category to be a list of strings, got {category!r:.40}.")
        code = codes.get(asin)
        if code is not None and any(category):
            category_path = tuple(category)
            paths[code] = shared.setdefault(category_path, category_path)
    return paths


def _check_settings(
    locale: str, small_version: bool, categories: Path | None, profile: str, catalogue: str, strict: bool
) -> None:
    choices = {"locale": (locale, LOCALES), "profile": (profile, ("paper", "all"))}
    choices["catalogue"] = (catalogue, ("train", "all"))
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ConfigError(f"Unknown {name} {value!r}. Choose one of {', '.join(allowed)}.")
    if profile == "paper" and not small_version:
        raise ConfigError("profile='paper' needs the small version. Set small_version=True or profile='all'.")
    if strict and (profile, catalogue) != ("paper", "train"):
        raise ConfigError("strict needs profile='paper' and catalogue='train': counts are published for these only.")
    if profile == "paper" and categories is None:
        raise DataError(
            "profile='paper' filters by category, but no categories file was passed. "
            "Pass categories= (the ESCI-S file), or use profile='all', which needs none."
        )


def _differences(rows: Examples, *, listed: Mask, locale: str, strict: bool) -> list[str]:
    counts = {"products": int(listed.sum()), "test queries": len(np.unique(rows.query[~rows.train]))}
    published = PUBLISHED[locale]
    differing = [name for name in published if counts[name] != published[name]]
    if differing and strict:
        expected = " and ".join(f"{published[name]:,} {name}, got {counts[name]:,}" for name in differing)
        raise DataError(f"Expected, for {locale}, {expected}. Use the published files, or set strict=False.")
    return [
        f"Found {counts[name]:,} {name} for {locale}, but the paper has {published[name]:,}; results are not "
        "comparable with the paper's."
        for name in differing
    ]


def _notes(rows: Examples, *, listed: Mask, valid: Mask) -> list[str]:
    def describe(split: Mask) -> str:
        pairs, positives = split.sum(), (split & rows.positive).sum()
        return f"{len(np.unique(rows.query[split])):,} queries with {pairs:,} judgments, {positives:,} of them positive"

    notes = [
        f"{listed.sum():,} products; training: {describe(rows.train)}; test: {describe(~rows.train)}.",
        f"{valid.sum():,} training queries form the split valid (10 %, seed {_VALID_SEED}), with all their rows.",
    ]
    if shared := len(np.intersect1d(rows.query[rows.train], rows.query[~rows.train])):
        notes.append(f"{shared:,} test queries are also training queries; they stay in both splits.")
    return notes


def _valid_queries(rows: Examples) -> Mask:
    """Draw training queries for the split valid; return a mask over query codes."""
    codes = np.unique(rows.query[rows.train])
    # Sorted by text, so that the draw does not depend on the order of the file.
    names = rows.queries.take(pa.array(codes)).to_pylist()
    codes = codes[sorted(range(len(names)), key=names.__getitem__)]
    valid = np.zeros(len(rows.queries), dtype=bool)
    order = np.random.default_rng(_VALID_SEED).permutation(len(codes))
    valid[codes[order[: round(_VALID_SHARE * len(codes))]]] = True
    return valid


def _pair_codes(rows: Examples) -> NDArray[np.int64]:
    return rows.query.astype(np.int64) * len(rows.items) + rows.item


def _merge_duplicates(rows: Examples) -> Examples:
    """Return one row per pair and split, at the position of the first, with the highest grade."""
    _, first, group = np.unique(_pair_codes(rows) * 2 + rows.train, return_index=True, return_inverse=True)
    best = np.zeros(len(first), dtype=np.float32)
    np.maximum.at(best, group, rows.grade)
    return replace(rows, grade=best[group]).keep(np.sort(first))


def _judgments(rows: Examples, *, valid: Mask, seen: Mask) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows.query), _BATCH_ROWS):
        part = rows.keep(np.arange(start, min(start + _BATCH_ROWS, len(rows.query))))
        split = np.where(part.train, np.where(valid[part.query], "valid", "train"), "test")
        query = pa.array(part.query)
        columns = [rows.query_ids.take(query), rows.queries.take(query), rows.items.take(pa.array(part.item))]
        columns += [pa.array(part.grade), pa.array(split.tolist(), pa.string()), pa.array(seen[part.item])]
        yield pa.RecordBatch.from_arrays(columns, schema=ROWS)


def _items(
    path: Path, ids: pa.Array, listed: Mask, paths: Sequence[tuple[str, ...]], *, locale: str
) -> Iterator[pa.RecordBatch]:
    """Yield the listed products in file order, each once, with the texts of one batch in memory at a time."""
    pending = listed.copy()
    columns = dict.fromkeys(("product_id", "product_locale", *_TEXTS.values()), pa.string())
    for batch in _batches(path, columns, required=("product_id", "product_locale")):
        batch = batch.filter(pc.equal(batch["product_locale"], locale))
        codes = pc.fill_null(pc.index_in(batch["product_id"], value_set=ids), -1).to_numpy()
        rows = np.flatnonzero((codes >= 0) & pending[codes])
        _, first = np.unique(codes[rows], return_index=True)
        rows = rows[np.sort(first)]
        if not len(rows):
            continue
        pending[codes[rows]] = False
        batch = batch.take(pa.array(rows))
        texts = {name: [plain_text(text) for text in batch[column].to_pylist()] for name, column in _TEXTS.items()}
        categories = [list(paths[code]) for code in codes[rows]]
        yield pa.RecordBatch.from_pydict({"id": batch["product_id"], "category": categories, **texts}, schema=ITEMS)


def _product_ids(path: Path, *, locale: str) -> pa.Array:
    columns: dict[str, pa.DataType] = {"product_id": pa.string(), "product_locale": pa.string()}
    parts = [
        batch["product_id"].filter(pc.equal(batch["product_locale"], locale))
        for batch in _batches(path, columns, required=columns)
    ]
    return pa.chunked_array(parts, pa.string()).combine_chunks()


def _batches(path: Path, columns: Mapping[str, pa.DataType], *, required: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns of a parquet file, cast to the given types; `required` columns must have no nulls."""
    try:
        with pq.ParquetFile(path) as file:
            if missing := [name for name in columns if name not in file.schema_arrow.names]:
                raise DataError(
                    f"{path} has no column {' or '.join(missing)} (its columns: {', '.join(file.schema_arrow.names)}). "
                    "Use the published file unchanged."
                )
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns)):
                arrays = {name: pc.cast(batch[name], kind) for name, kind in columns.items()}
                for name in required:
                    if arrays[name].null_count:
                        raise DataError(f"{path} has empty cells in column {name}. Use the published file unchanged.")
                yield pa.RecordBatch.from_pydict(arrays)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"Cannot read {path} as parquet ({error}). Use the published file unchanged.") from error


def _encode(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.Array]:
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary


def _lookup(column: pa.ChunkedArray, values: Mapping[str, float], *, path: Path, name: str) -> NDArray[np.float32]:
    codes, names = _encode(column)
    for value in names.to_pylist():
        if value not in values:
            raise DataError(f"{path}, column {name}: expected one of {', '.join(values)}, got {value!r}.")
    return np.array([values[value] for value in names.to_pylist()], dtype=np.float32)[codes]


DATASETS.add(
    DatasetEntry(
        "esci",
        "Your copy of Amazon's shopping queries (ESCI): products and judged queries.",
        task="search",
        make=esci_source,
        source="Reddy et al. 2022, Shopping Queries Dataset",
    )
)
