import gzip
import json

import pyarrow as pa
import pytest

from restd.data import history_sources
from restd.data.public.amazon import ITEMS, amazon_source
from restd.data.schema import ITEM_COLUMNS
from restd.errors import DataError


def review(user, asin, time, **other):
    return {"reviewerID": user, "asin": asin, "overall": 1.0, "unixReviewTime": time, "reviewText": "x", **other}


REVIEWS = [
    review("ann", "B", 20, reviewTime="09 13, 2009"),
    review("bob", "A", 5, verified=True),
    review("ann", "A", 10),
    review("bob", "B", 5),
    review("ann", "B", 30),
    review("bob", "C", 7),
]
OLD = [
    "{'asin': 'B', 'title': \"Bob's &amp; <b>Mug</b>\", 'categories': [['Home', 'Cups'], ['Gifts']], 'price': 7.5}",
    "{'asin': 'A', 'description': 'Holds\\ntea', 'brand': None, 'categories': [['Home']]}",
    "{'asin': 'Z', 'title': 'Never reviewed'}",
]
NEW = [
    {
        "asin": "B",
        "title": "Mug",
        "category": ["Home", "", "Cups"],
        "description": ["Red", "", "mug"],
        "price": "$7.50",
    },
    {"asin": "A", "title": "Pot", "brand": "by\n  Oru", "category": [], "description": [], "price": ".a-box{}"},
    {"asin": "B", "title": "Again"},
    {"asin": "Z", "title": "Never \ud800"},
]


def write(path, lines):
    text = "\n\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def rows_of(stream):
    return pa.Table.from_batches(stream()).to_pylist()


@pytest.fixture
def reviews(tmp_path):
    return write(tmp_path / "reviews.json.gz", REVIEWS)


def test_reviews_alone_become_histories_of_items_without_text(reviews):
    source = amazon_source(reviews, core=2)
    assert [(row["user"], row["item"], row["time"]) for row in rows_of(source.histories)] == [
        ("ann", "A", 0),
        ("ann", "B", 1),
        ("bob", "A", 0),
        ("bob", "B", 1),
    ]
    assert pa.Table.from_batches(source.items()).schema == ITEM_COLUMNS
    assert {row["id"] for row in rows_of(source.items)} == {"A", "B"}
    assert source.notes[:5] == (
        "6 reviews in reviews.json.gz; every review is an event, regardless of its rating.",
        "2 users, 2 items, 4 events.",
        "Each item counts once per user, at its first time: 1 repeated events were dropped.",
        "The 2-core dropped 0 users, 1 items and 1 events: all that remain have at least 2 events.",
        "Events are sorted by time; 1 have the same time as the one before, and there the order of the file decides.",
    )
    assert source.notes[-1].startswith("No metadata was passed, so items have no text to encode")
    assert source.settings == {"reviews": str(reviews), "metadata": None, "core": 2}


def test_products_of_2014_are_python_literals(reviews, tmp_path):
    metadata = write(tmp_path / "meta.json.gz", OLD)
    source = amazon_source(reviews, metadata=metadata, core=0)
    assert pa.Table.from_batches(source.items()).schema == ITEMS
    blank = {"brand": "", "description": ""}
    assert rows_of(source.items) == [
        {"id": "B", "title": "Bob's & Mug", "category": ["Home", "Cups"], **blank, "price": 7.5},
        {"id": "A", "title": "", "category": ["Home"], **blank, "description": "Holds tea", "price": None},
    ]
    assert "1 events of 1 items that are not in meta.json.gz were dropped." in source.notes


@pytest.mark.parametrize("size", [1, 100])
def test_products_of_2018_are_streamed_once_each(reviews, tmp_path, monkeypatch, size):
    monkeypatch.setattr(history_sources, "_BATCH_ROWS", size)
    source = amazon_source(reviews, metadata=write(tmp_path / "meta.json", NEW), core=2)
    expected = [
        {
            "id": "B",
            "title": "Mug",
            "category": ["Home", "Cups"],
            "brand": "",
            "description": "Red mug",
            "price": 7.5,
        },
        {"id": "A", "title": "Pot", "category": [], "brand": "by Oru", "description": "", "price": None},
    ]
    assert rows_of(source.items) == expected
    assert rows_of(source.items) == expected
    assert len(rows_of(source.histories)) == 4


def test_half_a_character_does_not_stop_the_reading(reviews, tmp_path):
    metadata = write(
        tmp_path / "meta.json", ['{"asin": "A", "title": "Pot \\ud800"}', '{"asin": "B", "title": "\\u00e9"}']
    )
    titles = [row["title"] for row in rows_of(amazon_source(reviews, metadata=metadata, core=0).items)]
    assert titles == ["Pot ?", "é"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"reviews\.json, line 3: not a JSON object .*; write one object per line"),
        ("[1]", "line 3: not a JSON object .type list."),
        ("{'asin': 'A'}", "line 3: not a JSON object"),
        (review("", "A", 1), "line 3: 'reviewerID' is '', but an id is required; the keys are: reviewerID, asin, "),
        (review("ann", None, 1), "line 3: 'asin' is None"),
        (review("ann", True, 1), "line 3: 'asin' is True"),
        (review("ann", "A", "soon"), "line 3: 'unixReviewTime' is 'soon', but a time is required"),
        (review("ann", "A", None), "line 3: 'unixReviewTime' is None"),
        (review("ann", "A", True), "line 3: 'unixReviewTime' is True"),
        ({"user_id": "ann", "asin": "A", "timestamp": 1}, r"line 3: .* the keys are: user_id, asin, timestamp"),
        (review("ann", "A", 2**70), "a time out of range"),
    ],
)
def test_bad_reviews_are_one_sentence(tmp_path, line, message):
    path = write(tmp_path / "reviews.json", [REVIEWS[0], line])
    with pytest.raises(DataError, match=message) as raised:
        amazon_source(path)
    assert "\n" not in str(raised.value)


def test_unusable_files_are_data_errors(reviews, tmp_path):
    with pytest.raises(DataError, match=r"absent\.json cannot be read"):
        amazon_source(tmp_path / "absent.json")
    with pytest.raises(
        DataError, match=r"contains no events\. Expected one JSON object per line with reviewerID, asin and unix"
    ):
        amazon_source(write(tmp_path / "empty.json", []))
    with pytest.raises(DataError, match=r"meta\.json, line 1: 'asin' is None"):
        amazon_source(reviews, metadata=write(tmp_path / "meta.json", ["{'title': 'x'}"]))
    with pytest.raises(DataError, match=r"meta\.json, line 1: not a JSON object"):
        amazon_source(reviews, metadata=write(tmp_path / "meta.json", ["__import__('os')"]))
    with pytest.raises(DataError, match=r"None of the 3 items .* is in meta\.json\. .* that of meta\.json None"):
        amazon_source(reviews, metadata=write(tmp_path / "meta.json", []))


def test_the_command(reviews, tmp_path, command):
    words = ("data", "amazon", "--reviews", reviews, "--out", tmp_path / "set")
    assert command(*words, "--core", 2)[:2] == (0, f"{tmp_path / 'set'}: 2 items, 4 histories\n")
    metadata = write(tmp_path / "meta.json", OLD)
    code, printed, _ = command(*words, "--metadata", metadata, "--core", 0, "--json")
    assert (code, json.loads(printed)["rows"]) == (0, {"items": 2, "histories": 4})
    assert command(*words)[0] == 2
