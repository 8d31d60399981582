"""Amazon's reviews as histories, from the JSON lines of 2014 and of 2018, plain or gzip.

Both years name the keys we need of a review alike; what they say of products differs, and either form is read. The
product lines of 2014 are Python literals and not JSON; they are read as literals, and nothing in them is run.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from restd.data.esci import plain_text
from restd.data.schema import ITEM_COLUMNS
from restd.data.sequences import CORE, numbered_records, only_first, prepare, read_events, text_of
from restd.data.source import Source

ITEMS: Final = pa.schema([*ITEM_COLUMNS, ("brand", pa.string()), ("description", pa.string()), ("price", pa.float64())])

_PRICE: Final = re.compile(r"\$?\s*([0-9][0-9,]*(?:\.[0-9]+)?)")


def amazon_source(reviews: Path, *, metadata: Path | None = None, core: int = CORE) -> Source:
    """Reviews as events, whatever their stars; `metadata` gives the products' titles, categories, brands and prices.

    Without `metadata` items have an id and no text. With it, reviews of products that it lacks are dropped.
    """
    events = read_events(reviews, user="reviewerID", item="asin", time="unixReviewTime", seconds=_seconds)
    known = None if metadata is None else _known(metadata)
    made = prepare(events, core=core, known=known, where=metadata.name if metadata else "")
    notes = [f"{len(events):,} reviews in {reviews.name}; every review is an event, whatever its stars.", *made.notes]
    if metadata is None:
        notes.append("No metadata was given, so items have no text to encode; give the file of products too.")
    held = made.histories
    return Source(
        name="amazon",
        settings={"reviews": str(reviews), "metadata": None if metadata is None else str(metadata), "core": core},
        items=lambda: _bare(held.items) if metadata is None else only_first(_products(metadata), held.items, ITEMS),
        histories=held.to_batches,
        notes=tuple(notes),
    )


def price_of(value: Any) -> float | None:
    """Return a price in dollars; a range, or whatever else stands in its place, is none.

    >>> price_of("$1,299.00"), price_of(7), price_of("$5.00 - $9.00"), price_of(None)
    (1299.0, 7.0, None, None)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _PRICE.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(found[1].replace(",", "")) if found else None


def path_of(record: Mapping[str, Any]) -> list[str]:
    """Return a product's category path: `category` as 2018 has it, else the first of the `categories` of 2014.

    >>> path_of({"category": ["Beauty", "Nails"]}), path_of({"categories": [["Beauty", "Hair"], ["Gifts"]]})
    (['Beauty', 'Nails'], ['Beauty', 'Hair'])
    """
    found = record.get("category") or record.get("categories") or []
    if isinstance(found, list) and found and isinstance(found[0], list):
        found = found[0]
    parts = found if isinstance(found, list) else [found]
    return [text for part in parts if (text := _text(part))]


def _seconds(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(value)
    return int(value)


def _known(metadata: Path) -> pa.Array:
    return pa.array(list(dict.fromkeys(asin for asin, _ in _records(metadata))), pa.string())


def _records(metadata: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, record in numbered_records(metadata, _parse):
        yield text_of(record, "asin", path=metadata, number=number), record


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
    """Return a text, or a list of them as one, without markup; anything else is no text."""
    if isinstance(value, list):
        return " ".join(filter(None, map(_text, value)))
    return plain_text(value) if isinstance(value, str) else ""


def _bare(ids: pa.Array) -> Iterator[pa.RecordBatch]:
    rows = [{"id": name, "title": "", "category": []} for name in ids.to_pylist()]
    yield pa.RecordBatch.from_pylist(rows, schema=ITEM_COLUMNS)
