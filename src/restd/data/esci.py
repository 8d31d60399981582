"""Amazon's shopping queries (ESCI), from the two published parquet files and, for categories, the ESCI-S file.

Judgments are held as integer codes and products are streamed, so the largest locale fits in about half a gigabyte.
"""

import html
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from restd._arrow import pc
from restd.data.schema import GRADES, ITEM_COLUMNS, JUDGMENTS
from restd.data.source import Source
from restd.data.trec import numbered_lines
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
"""`seen`: the product occurs in a row of the published training split, whatever its label."""

LOCALES: Final = ("us", "es", "jp")
PUBLISHED: Final = {
    "us": {"products": 288_372, "test queries": 6_014},
    "es": {"products": 101_957, "test queries": 1_656},
    "jp": {"products": 119_052, "test queries": 1_883},
}
"""What the paper's preparation leaves of each locale."""

_MIN_PATH_CHARACTERS: Final = 3
_MIN_PATH_LEVELS: Final = 3
_VALID_SHARE: Final = 0.1
_VALID_SEED: Final = 42
_BATCH_ROWS: Final = 16_384

_MARKUP: Final = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>", re.IGNORECASE | re.DOTALL)

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Examples:
    """Judged rows in file order: four parallel columns, and what the codes in the first two stand for."""

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
        """Return the rows chosen by a mask or by sorted positions; codes keep their meaning."""
        columns = {name: getattr(self, name)[rows] for name in ("query", "item", "grade", "train")}
        return replace(self, **columns)

    def items_in(self, rows: Mask) -> Mask:
        """Return, per item code, whether any of the masked rows has the item."""
        found = np.zeros(len(self.items), dtype=bool)
        found[self.item[rows]] = True
        return found


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
    """Products as items; every judged row is a judgment of the grade its label is worth.

    Args:
        examples: shopping_queries_dataset_examples.parquet.
        products: shopping_queries_dataset_products.parquet.
        locale: us, es or jp.
        small_version: keep only the rows of the reduced set, the harder queries; otherwise all rows.
        categories: JSON lines with `asin` and `category`, plain or gzip; needed by the paper's filters.
        profile: "paper" applies the paper's filters (`paper_examples`), "all" keeps every row of a known product.
        catalogue: "train" has the products of the training split; "all" also those that only test rows name, and
            with it no test row is dropped for its product.
        strict: make other counts than the published ones an error and not a note.
    """
    locale = locale.lower()
    _check_settings(locale, small_version, categories, profile, catalogue, strict)
    judged = read_examples(examples, locale=locale, small_version=small_version)
    known = pc.is_in(judged.items, value_set=_product_ids(products, locale=locale)).to_numpy(zero_copy_only=False)
    rows = judged.keep(known[judged.item])
    paths = read_paths(categories, rows.items) if categories is not None else [()] * len(rows.items)
    if profile == "paper":
        rows = paper_examples(rows, paths, locale=locale, catalogue=catalogue)
    seen = rows.items_in(rows.train)
    listed = seen if catalogue == "train" else rows.items_in(np.ones_like(rows.train))
    kept = _fold(rows.keep(listed[rows.item]))
    valid = _valid_queries(kept)
    notes = _notes(kept, listed=listed, valid=valid)
    if unknown := int((~known[judged.item]).sum()):
        notes.append(f"{unknown:,} rows were dropped for products that {products.name} lacks.")
    if profile == "paper" and catalogue == "train":
        notes = _differences(kept, listed=listed, locale=locale, strict=strict) + notes
    elif outside := int((~listed[rows.item]).sum()):
        notes.append(f"{outside:,} test rows were dropped for products outside the training split (catalogue='train').")
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
        items=lambda: _items(products, kept.items, listed, paths, locale=locale),
        judgments=lambda: _judgments(kept, valid=valid, seen=seen),
        notes=tuple(notes),
    )


def paper_examples(rows: Examples, paths: Sequence[tuple[str, ...]], *, locale: str, catalogue: str) -> Examples:
    """Return the rows that the paper's preparation keeps; `paths` has the category path of each item code.

    In this order: products need a category path; a (query, product, label) counts once; test rows need a product of
    the training split, which for us must be a positive one there, as must be the row; test queries need a first
    positive product whose path has three levels.
    """
    pathed = np.array([len("\t".join(path)) >= _MIN_PATH_CHARACTERS for path in paths], dtype=bool)
    rows = rows.keep(pathed[rows.item])
    label = np.searchsorted(np.sort(list(GRADES.values())), rows.grade)
    _, first = np.unique(_pair_codes(rows) * len(GRADES) + label, return_index=True)
    rows = rows.keep(np.sort(first))

    only_positive = rows.positive if locale == "us" else np.ones_like(rows.train)
    allowed = only_positive
    if catalogue == "train":
        allowed = only_positive & rows.items_in(rows.train & only_positive)[rows.item]
    rows = rows.keep(rows.train | allowed)

    levels = np.array([len(path) for path in paths], dtype=np.int64)
    positives = np.flatnonzero(~rows.train & rows.positive)
    queries, first = np.unique(rows.query[positives], return_index=True)
    chosen = queries[levels[rows.item[positives[first]]] >= _MIN_PATH_LEVELS]
    return rows.keep(rows.train | np.isin(rows.query, chosen))


def read_examples(path: Path, *, locale: str, small_version: bool) -> Examples:
    """Read the judged rows of one locale; queries are told apart by their text, and bear the first id it had."""
    columns: dict[str, pa.DataType] = dict.fromkeys(
        ("query", "query_id", "product_id", "product_locale", "esci_label", "split"), pa.string()
    )
    if small_version:
        columns["small_version"] = pa.int64()
    kept, locales = [], set()
    for batch in _batches(path, columns, required=columns):
        locales.update(pc.unique(batch["product_locale"]).to_pylist())
        mask = pc.equal(batch["product_locale"], locale)
        if small_version:
            mask = pc.and_(mask, pc.equal(batch["small_version"], 1))
        kept.append(batch.filter(mask))
    table = pa.Table.from_batches(kept) if kept else None
    if table is None or not table.num_rows:
        found = ", ".join(sorted(locales)) or "none"
        raise DataError(f"{path} has no rows to use of locale {locale!r} (it has: {found}); choose another locale.")
    query, queries = _encode(table["query"])
    item, items = _encode(table["product_id"])
    _, first = np.unique(query, return_index=True)
    query_ids = table["query_id"].take(pa.array(first)).combine_chunks()
    if len(pc.unique(query_ids)) < len(queries):
        raise DataError(f"{path} gives one query_id to several query texts; use the published file as it is.")
    grades = _lookup(table["esci_label"], GRADES, path=path, name="esci_label")
    train = _lookup(table["split"], {"train": 1.0, "test": 0.0}, path=path, name="split")
    return Examples(query, item, grades, train > 0, queries, query_ids, items)


def read_paths(path: Path, items: pa.Array) -> list[tuple[str, ...]]:
    """Return the category path of each item, empty where the file has none; the last line with a path wins."""
    if path.suffix == ".zst":
        raise DataError(f"{path} is compressed with zstd; unpack it first with `zstd -d {path.name}`.")
    codes = {asin: code for code, asin in enumerate(items.to_pylist())}
    paths: list[tuple[str, ...]] = [()] * len(codes)
    # Few paths serve many products: one object for each keeps this small.
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            asin, category = record["asin"], record.get("category") or []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}, line {number}: not a JSON object with an 'asin'; use the ESCI-S file.") from error
        if not (isinstance(category, list) and all(isinstance(level, str) for level in category)):
            raise DataError(f"{path}, line {number}: category {category!r:.40} is not a list of texts; write its path.")
        code = codes.get(asin) if isinstance(asin, str) else None
        if code is not None and any(category):
            own = tuple(category)
            paths[code] = shared.setdefault(own, own)
    return paths


def plain_text(text: str | None) -> str:
    """Return a product text without markup and with single spaces.

    >>> plain_text("<p>Fits &lt;b&gt;most&lt;/b&gt;<br/>cups &amp; mugs, 3 < 5</p>")
    'Fits most cups & mugs, 3 < 5'
    """
    # Entities first: many descriptions were escaped twice, and their tags appear only then.
    return " ".join(_MARKUP.sub(" ", html.unescape(text or "")).split())


def _check_settings(
    locale: str, small_version: bool, categories: Path | None, profile: str, catalogue: str, strict: bool
) -> None:
    choices = {"locale": (locale, LOCALES), "profile": (profile, ("paper", "all"))}
    choices["catalogue"] = (catalogue, ("train", "all"))
    for name, (value, wanted) in choices.items():
        if value not in wanted:
            raise ConfigError(f"{name} {value!r} is unknown; choose one of {', '.join(wanted)}.")
    if profile == "paper" and not small_version:
        raise ConfigError("profile='paper' is defined on the small version; set small_version=True or profile='all'.")
    if strict and (profile, catalogue) != ("paper", "train"):
        raise ConfigError("strict compares with counts published for profile='paper' and catalogue='train'; use those.")
    if profile == "paper" and categories is None:
        raise DataError(
            "profile='paper' filters by category and no categories file was given; pass categories=, the ESCI-S file, "
            "or use profile='all', which needs none."
        )


def _differences(rows: Examples, *, listed: Mask, locale: str, strict: bool) -> list[str]:
    found = {"products": int(listed.sum()), "test queries": len(np.unique(rows.query[~rows.train]))}
    wanted = PUBLISHED[locale]
    differing = [name for name in wanted if found[name] != wanted[name]]
    if differing and strict:
        told = " and ".join(f"{found[name]:,} {name} where {wanted[name]:,} were wanted" for name in differing)
        raise DataError(f"The files for {locale} leave {told}; use the published files, or strict=False to go on.")
    return [
        f"Found {found[name]:,} {name} where the paper's preparation of {locale} has {wanted[name]:,}; "
        "results are not comparable to it."
        for name in differing
    ]


def _notes(rows: Examples, *, listed: Mask, valid: Mask) -> list[str]:
    def told(split: Mask) -> str:
        pairs, positives = split.sum(), (split & rows.positive).sum()
        return f"{len(np.unique(rows.query[split])):,} queries with {pairs:,} judgments, {positives:,} of them positive"

    notes = [
        f"{listed.sum():,} products; for training {told(rows.train)}; for test {told(~rows.train)}.",
        f"{valid.sum():,} of the training queries are the split valid (10 %, seed {_VALID_SEED}), with all their rows.",
    ]
    if shared := len(np.intersect1d(rows.query[rows.train], rows.query[~rows.train])):
        notes.append(f"{shared:,} test queries are also training queries; they were kept in both.")
    return notes


def _valid_queries(rows: Examples) -> Mask:
    """Choose training queries for the split valid; the result is a mask over query codes."""
    codes = np.unique(rows.query[rows.train])
    # Sorted by text, so that the choice depends on the queries and not on the order of the file.
    names = rows.queries.take(pa.array(codes)).to_pylist()
    codes = codes[sorted(range(len(names)), key=names.__getitem__)]
    valid = np.zeros(len(rows.queries), dtype=bool)
    order = np.random.default_rng(_VALID_SEED).permutation(len(codes))
    valid[codes[order[: round(_VALID_SHARE * len(codes))]]] = True
    return valid


def _pair_codes(rows: Examples) -> NDArray[np.int64]:
    return rows.query.astype(np.int64) * len(rows.items) + rows.item


def _fold(rows: Examples) -> Examples:
    """Return one row per pair and split, at its first place, with the highest of its grades."""
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
    """Yield the listed products in file order, each once, with only a batch of their texts in memory."""
    waiting = listed.copy()
    columns = dict.fromkeys(("product_id", "product_locale", *_TEXTS.values()), pa.string())
    for batch in _batches(path, columns, required=("product_id", "product_locale")):
        batch = batch.filter(pc.equal(batch["product_locale"], locale))
        codes = pc.fill_null(pc.index_in(batch["product_id"], value_set=ids), -1).to_numpy()
        places = np.flatnonzero((codes >= 0) & waiting[codes])
        _, first = np.unique(codes[places], return_index=True)
        places = places[np.sort(first)]
        if not len(places):
            continue
        waiting[codes[places]] = False
        batch = batch.take(pa.array(places))
        texts = {name: [plain_text(text) for text in batch[column].to_pylist()] for name, column in _TEXTS.items()}
        own = [list(paths[code]) for code in codes[places]]
        yield pa.RecordBatch.from_pydict({"id": batch["product_id"], "category": own, **texts}, schema=ITEMS)


def _product_ids(path: Path, *, locale: str) -> pa.Array:
    columns: dict[str, pa.DataType] = {"product_id": pa.string(), "product_locale": pa.string()}
    parts = [
        batch["product_id"].filter(pc.equal(batch["product_locale"], locale))
        for batch in _batches(path, columns, required=columns)
    ]
    return pa.chunked_array(parts, pa.string()).combine_chunks()


def _batches(path: Path, columns: Mapping[str, pa.DataType], *, required: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns of a parquet file as the types given; `required` ones must have no null."""
    try:
        with pq.ParquetFile(path) as file:
            if missing := [name for name in columns if name not in file.schema_arrow.names]:
                raise DataError(
                    f"{path} has no column {' or '.join(missing)} (it has: {', '.join(file.schema_arrow.names)}); "
                    "use the published file as it is."
                )
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns)):
                arrays = {name: pc.cast(batch[name], kind) for name, kind in columns.items()}
                for name in required:
                    if arrays[name].null_count:
                        raise DataError(f"{path} has empty cells in column {name}; use the published file as it is.")
                yield pa.RecordBatch.from_pydict(arrays)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as parquet ({error}); use the published file as it is.") from error


def _encode(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.Array]:
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary


def _lookup(column: pa.ChunkedArray, values: Mapping[str, float], *, path: Path, name: str) -> NDArray[np.float32]:
    codes, names = _encode(column)
    for value in names.to_pylist():
        if value not in values:
            raise DataError(f"{path}, column {name}: {value!r} is unknown; it should be {', '.join(values)}.")
    return np.array([values[value] for value in names.to_pylist()], dtype=np.float32)[codes]
