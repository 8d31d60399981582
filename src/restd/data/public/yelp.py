"""Yelp reviews of businesses as histories, from the JSON lines of the academic data set, plain or gzip."""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.history_sources import CORE, only_first, prepare, read_events
from restd.data.lines import json_lines, required_id
from restd.data.schema import ITEM_COLUMNS
from restd.data.source import Source
from restd.errors import ConfigError, DataError

ITEMS: Final = pa.schema([*ITEM_COLUMNS, ("categories", pa.string()), ("stars", pa.float64())])
"""The text is name and categories, as in the paper. The city is left out, because it would be encoded as text.

The category path is empty, because Yelp's categories are an unordered set.
"""

_DAY: Final = 24 * 60 * 60


def yelp_source(
    businesses: Path, reviews: Path, *, since: str | None = None, until: str | None = None, core: int = CORE
) -> Source:
    """Return reviews as events, regardless of their rating, from the day `since` to the day `until`, both included."""
    days = _day(since, name="since"), _day(until, name="until")
    if days[0] and days[1] and days[0] > days[1]:
        raise ConfigError(f"since ({since}) must not be later than until ({until}). Swap the two.")
    events = read_events(reviews, user="user_id", item="business_id", time="date", seconds=seconds_of)
    selected = _within(events, *days)
    period = f"{since or 'the first day'} to {until or 'the last day'}"
    if not len(selected):
        raise DataError(f"{reviews} has {len(events):,} reviews, but none from {period}. Choose other days.")
    known = pa.array(list(dict.fromkeys(name for name, _ in _businesses(businesses))), pa.string())
    prepared = prepare(selected, core=core, known=known, where=businesses.name)
    total = f"{len(events):,} reviews in {reviews.name}; every review is an event, regardless of its rating."
    outside = f"{len(events) - len(selected):,} reviews outside the period from {period} were dropped."
    return Source(
        name="yelp",
        settings={
            "businesses": str(businesses),
            "reviews": str(reviews),
            "since": since,
            "until": until,
            "core": core,
        },
        items=lambda: only_first(_businesses(businesses), prepared.histories.items, ITEMS),
        histories=prepared.histories.to_batches,
        notes=(total, *([outside] if since or until else []), *prepared.notes),
    )


def seconds_of(value: Any) -> int:
    """Return the Unix time of a date, or of a date and time, in Yelp's format.

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
        raise ConfigError(f"{name}: expected a day such as 2019-12-31, got {text!r}.") from None


def _within(events: pa.Table, since: date | None, until: date | None) -> pa.Table:
    time = events["time"].to_numpy()
    keep_mask = np.ones(len(events), bool)
    if since:
        keep_mask &= time >= seconds_of(since.isoformat())
    if until:
        keep_mask &= time < seconds_of(until.isoformat()) + _DAY
    return events.filter(pa.array(keep_mask))


def _businesses(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, record in json_lines(path, replace_surrogates=True):
        name = required_id(record, "business_id", path=path, number=number)
        yield name, _business(name, record, f"{path}, line {number}")


def _business(name: str, record: Mapping[str, Any], where: str) -> dict[str, Any]:
    title, categories, stars = (record.get(key) for key in ("name", "categories", "stars"))
    if not isinstance(title, str | None) or not isinstance(categories, str | None):
        raise DataError(
            f"{where}: expected strings such as 'A, B', got name {title!r:.40} and categories {categories!r:.40}."
        )
    return {
        "id": name,
        "title": (title or "").strip(),
        "category": [],
        "categories": (categories or "").strip(),
        "stars": float(stars) if isinstance(stars, int | float) else None,
    }


DATASETS.add(
    DatasetEntry(
        "yelp",
        "Your copy of Yelp's academic data set: the businesses of each reviewer, in order.",
        task="recommend",
        make=yelp_source,
        source="Yelp Open Dataset",
    )
)
