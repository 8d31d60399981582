import gzip
import json

import pyarrow as pa
import pytest

from restd.data import Catalog, write_dataset
from restd.data.public.yelp import ITEMS, yelp_source
from restd.errors import ConfigError, DataError

BUSINESSES = [
    {"business_id": "p", "name": " Pho Bar ", "categories": "Soup, Noodles", "city": "Reno", "stars": 4.5},
    {"business_id": "q", "name": "Quilts", "categories": None, "stars": None},
    {"business_id": "z", "name": "Nobody", "categories": "Bars"},
]
REVIEWS = [
    {"user_id": user, "business_id": business, "date": date, "stars": 1, "text": "x"}
    for user, business, date in [
        ("ann", "q", "2019-01-01 10:00:00"),
        ("ann", "p", "2018-12-31 23:59:59"),
        ("bob", "p", "2019-12-31 23:59:59"),
        ("bob", "q", "2019-12-31"),
        ("bob", "p", "2020-01-01 00:00:00"),
        ("ann", "gone", "2019-06-01 00:00:00"),
    ]
]


@pytest.fixture
def files(tmp_path):
    write(tmp_path / "business.json", BUSINESSES)
    write(tmp_path / "review.json", REVIEWS)
    return tmp_path


def write(path, lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def source_of(folder, **options):
    return yelp_source(folder / "business.json", folder / "review.json", **options)


def rows_of(stream):
    return pa.Table.from_batches(stream()).to_pylist()


def events_of(source):
    return [(row["user"], row["item"]) for row in rows_of(source.histories)]


def test_businesses_and_reviews(files):
    source = source_of(files, core=2)
    assert pa.Table.from_batches(source.items()).schema == ITEMS
    assert rows_of(source.items) == [
        {"id": "p", "title": "Pho Bar", "category": [], "categories": "Soup, Noodles", "stars": 4.5},
        {"id": "q", "title": "Quilts", "category": [], "categories": "", "stars": None},
    ]
    assert events_of(source) == [("ann", "p"), ("ann", "q"), ("bob", "q"), ("bob", "p")]
    assert source.judgments is None
    assert source.notes[:3] == (
        "6 reviews in review.json; every review is an event, regardless of its rating.",
        "2 users, 2 items, 4 events.",
        "Each item counts once per user, at its first time: 1 repeated events were dropped.",
    )
    assert "1 events of 1 items that are not in business.json were dropped." in source.notes
    assert source.settings["core"] == 2


def test_the_text_is_name_and_categories(files, tmp_path):
    write_dataset(source_of(files, core=2), tmp_path / "set")
    catalog = Catalog(tmp_path / "set")
    assert catalog.texts(next(catalog.batches())).to_pylist() == ["Pho Bar. Soup, Noodles", "Quilts"]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ({"since": "2019-01-01"}, [("ann", "q"), ("bob", "q"), ("bob", "p")]),
        ({"until": "2018-12-31"}, [("ann", "p")]),
        ({"since": "2019-12-31", "until": "2019-12-31"}, [("bob", "q"), ("bob", "p")]),
        ({"until": "9999-12-31"}, [("ann", "p"), ("ann", "q"), ("bob", "q"), ("bob", "p")]),
    ],
)
def test_days_are_included_at_both_ends(files, days, expected):
    source = source_of(files, core=0, **days)
    assert events_of(source) == expected
    assert any("outside the period" in note for note in source.notes)


def test_files_may_be_gzipped(files):
    for name in ("business.json", "review.json"):
        (files / f"{name}.gz").write_bytes(gzip.compress((files / name).read_bytes()))
    source = yelp_source(files / "business.json.gz", files / "review.json.gz", core=2)
    assert events_of(source) == events_of(source_of(files, core=2))


@pytest.mark.parametrize(
    ("days", "message"),
    [
        ({"since": "last year"}, "since: expected a day such as 2019-12-31, got 'last year'"),
        ({"until": "2019-13-01"}, "until: expected a day such as 2019-12-31, got '2019-13-01'"),
        (
            {"since": "2020-01-01", "until": "2019-01-01"},
            r"since \(2020-01-01\) must not be later than until \(2019",
        ),
        ({"core": -2}, "core is -2, but must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(files, days, message):
    with pytest.raises(ConfigError, match=message):
        source_of(files, **days)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("review.json", "{", r"review\.json, line 1: not a JSON object"),
        ("review.json", {**REVIEWS[0], "date": "yesterday"}, "line 1: 'date' is 'yesterday', but a time is required"),
        ("review.json", {**REVIEWS[0], "date": 3}, "line 1: 'date' is 3"),
        ("review.json", {**REVIEWS[0], "user_id": ""}, "line 1: 'user_id' is ''"),
        ("review.json", "", "review.json contains no events"),
        ("business.json", {"name": "x"}, r"business\.json, line 1: 'business_id' is None"),
        (
            "business.json",
            {"business_id": "p", "name": 3},
            "line 1: expected strings .*name 3 and categories None",
        ),
        ("business.json", {"business_id": "p", "categories": ["A"]}, r"expected strings .* categories \['A'\]"),
        ("business.json", {"business_id": "x"}, r"None of the 3 items of the histories is in business\.json"),
    ],
)
def test_bad_lines_are_one_sentence(files, name, line, message):
    write(files / name, [line])
    with pytest.raises(DataError, match=message) as raised:
        source_of(files, core=0)
    assert "\n" not in str(raised.value)


def test_days_without_reviews_are_told(files):
    with pytest.raises(DataError, match=r"has 6 reviews, but none from 2021-01-01 to the last day\. Choose other days"):
        source_of(files, since="2021-01-01")


def test_the_command(files, tmp_path, command):
    words = ("data", "yelp", "--businesses", files / "business.json", "--reviews", files / "review.json")
    words += ("--out", tmp_path / "set", "--core", 2)
    assert command(*words)[:2] == (0, f"{tmp_path / 'set'}: 2 items, 4 histories\n")
    code, _, err = command(*words, "--since", "2018-01-01", "--until", "2017-01-01")
    assert code == 2
    assert "must not be later than until" in err
