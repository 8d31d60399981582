"""Amazon reviews as histories, from the JSON lines of the 2014 or 2018 release, plain or gzip.

Reviews have the same keys in both releases; products differ, and both forms are read. The product lines of 2014 are
Python literals, not JSON. They are parsed with `ast.literal_eval`, which runs no code.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.history_sources import CORE, only_first, prepare, read_events
from restd.data.lines import json_lines, required_id
from restd.data.schema import ITEM_COLUMNS
from restd.data.source import Source
from restd.data.text import plain_text

ITEMS: Final = pa.schema([*ITEM_COLUMNS, ("brand", pa.string()), ("description", pa.string()), ("price", pa.float64())])

_PRICE: Final = re.compile(r"\$?\s*([0-9][0-9,]*(?:\.[0-9]+)?)")


def amazon_source(reviews: Path, *, metadata: Path | None = None, core: int = CORE) -> Source:
    """Return reviews as events, regardless of their rating, and products as items.

    `metadata` is the file with titles, categories, brands and prices. Without it, items have an id and no text. With
    it, reviews of products that it does not list are dropped.
    """
    events = read_events(reviews, user="reviewerID", item="asin", time="unixReviewTime", seconds=_seconds)
    known = None if metadata is None else _product_ids(metadata)
    prepared = prepare(events, core=core, known=known, where=metadata.name if metadata else "")
    notes = [
        f"{len(events):,} reviews in {reviews.name}; every review is an event, regardless of its rating.",
        *prepared.notes,
    ]
    if metadata is None:
        notes.append("No metadata was passed, so items have no text to encode. Pass the file of products too.")
    histories = prepared.histories
    return Source(
        name="amazon",
        settings={"reviews": str(reviews), "metadata": None if metadata is None else str(metadata), "core": core},
        items=lambda: (
            _items_without_text(histories.items)
            if metadata is None
            else only_first(_products(metadata), histories.items, ITEMS)
        ),
        histories=histories.to_batches,
        notes=tuple(notes),
    )


def price_of(value: Any) -> float | None:
    """Return a price in dollars, or None for a range and for anything else that is not one price.

    >>> price_of("$1,299.00"), price_of(7), price_of("$5.00 - $9.00"), price_of(None)
    (1299.0, 7.0, None, None)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _PRICE.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(match[1].replace(",", "")) if match else None


def path_of(record: Mapping[str, Any]) -> list[str]:
    """Return the category path of a product: `category` (2018) or the first of `categories` (2014).

    >>> path_of({"category": ["Beauty", "Nails"]}), path_of({"categories": [["Beauty", "Hair"], ["Gifts"]]})
    (['Beauty', 'Nails'], ['Beauty', 'Hair'])
    """
    category = record.get("category") or record.get("categories") or []
    if isinstance(category, list) and category and isinstance(category[0], list):
        category = category[0]
    parts = category if isinstance(category, list) else [category]
    return [text for part in parts if (text := _text(part))]


def _seconds(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(value)
    return int(value)


def _product_ids(metadata: Path) -> pa.Array:
    return pa.array(list(dict.fromkeys(asin for asin, _ in _records(metadata))), pa.string())


def _records(metadata: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, record in json_lines(metadata, parse=_parse, replace_surrogates=True):
        yield required_id(record, "asin", path=metadata, number=number), record


def _products(metadata: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((asin, _product(asin, record)) for asin, record in _records(metadata))


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return ast.literal_eval(line.strip())


def _product(asin: str, record: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: _text(record.get(name)) for name in ("title", "brand", "description")}
    return {"id": asin, "category": path_of(record), "price": price_of(record.get("price")), **texts}


def _text(value: Any) -> str:
    """Return a string without markup, or a list of them joined by spaces; anything else gives an empty string."""
    if isinstance(value, list):
        return " ".join(filter(None, map(_text, value)))
    return plain_text(value) if isinstance(value, str) else ""


def _items_without_text(ids: pa.Array) -> Iterator[pa.RecordBatch]:
    rows = [{"id": name, "title": "", "category": []} for name in ids.to_pylist()]
    yield pa.RecordBatch.from_pylist(rows, schema=ITEM_COLUMNS)


DATASETS.add(
    DatasetEntry(
        "amazon",
        "Your copy of Amazon's reviews of 2014 or 2018: the products of each reviewer, in order.",
        task="recommend",
        make=amazon_source,
        source="McAuley et al. 2015; Ni et al. 2019",
    )
)
