"""Yelp's reviews of businesses as histories, from the JSON lines of its academic data set, plain or gzip."""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from restd.data.schema import ITEM_COLUMNS
from restd.data.sequences import CORE, numbered_records, only_first, prepare, read_events, text_of
from restd.data.source import Source
from restd.errors import ConfigError, DataError

ITEMS: Final = pa.schema([*ITEM_COLUMNS, ("categories", pa.string()), ("stars", pa.float64())])
"""The text is the paper's, name and categories: a city would be encoded with them, and is left out.

The category path stays empty, because Yelp's categories are a set in no order.
"""

_DAY: Final = 24 * 60 * 60


def yelp_source(
    businesses: Path, reviews: Path, *, since: str | None = None, until: str | None = None, core: int = CORE
) -> Source:
    """Reviews as events, whatever their stars, from the day `since` to the day `until`, both included."""
    days = _day(since, name="since"), _day(until, name="until")
    if days[0] and days[1] and days[0] > days[1]:
        raise ConfigError(f"since {since} is later than until {until}, which leaves no day; exchange the two.")
    events = read_events(reviews, user="user_id", item="business_id", time="date", seconds=seconds_of)
    chosen = _within(events, *days)
    if not len(chosen):
        raise DataError(
            f"{reviews} has no review from {since or 'the first day'} to {until or 'the last'}, of {len(events):,} in "
            "all; choose other days."
        )
    known = pa.array(list(dict.fromkeys(name for name, _ in _businesses(businesses))), pa.string())
    made = prepare(chosen, core=core, known=known, where=businesses.name)
    told = f"{len(events):,} reviews in {reviews.name}; every review is an event, whatever its stars."
    outside = (
        f"{len(events) - len(chosen):,} reviews before {since or 'any day'} or after {until or 'any day'} were dropped."
    )
    return Source(
        name="yelp",
        settings={
            "businesses": str(businesses),
            "reviews": str(reviews),
            "since": since,
            "until": until,
            "core": core,
        },
        items=lambda: only_first(_businesses(businesses), made.histories.items, ITEMS),
        histories=made.histories.to_batches,
        notes=(told, *([outside] if since or until else []), *made.notes),
    )


def seconds_of(value: Any) -> int:
    """Return the seconds of a date, or a date and time, as Yelp writes them.

    >>> seconds_of("1970-01-02"), seconds_of("1970-01-01 00:01:00")
    (86400, 60)
    """
    return int(datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp())


def _day(text: str | None, *, name: str) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{name} {text!r} is not a day; write it like 2019-12-31.") from None


def _within(events: pa.Table, since: date | None, until: date | None) -> pa.Table:
    time = events["time"].to_numpy()
    kept = np.ones(len(events), bool)
    if since:
        kept &= time >= seconds_of(since.isoformat())
    if until:
        kept &= time < seconds_of(until.isoformat()) + _DAY
    return events.filter(pa.array(kept))


def _businesses(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, record in numbered_records(path):
        name = text_of(record, "business_id", path=path, number=number)
        yield name, _business(name, record, f"{path}, line {number}")


def _business(name: str, record: Mapping[str, Any], where: str) -> dict[str, Any]:
    title, categories, stars = (record.get(key) for key in ("name", "categories", "stars"))
    if not isinstance(title, str | None) or not isinstance(categories, str | None):
        raise DataError(
            f"{where}: name {title!r:.40} or categories {categories!r:.40} is no text; wanted Yelp's, such as 'A, B'."
        )
    return {
        "id": name,
        "title": (title or "").strip(),
        "category": [],
        "categories": (categories or "").strip(),
        "stars": float(stars) if isinstance(stars, int | float) else None,
    }
