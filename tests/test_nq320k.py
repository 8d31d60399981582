import gzip
import json

import numpy as np
import pyarrow as pa
import pytest

from restd.data.public import nq320k
from restd.data.public.nq320k import ITEMS, PAIRS, nq320k_source
from restd.errors import DataError

DOCS = 'docid\ttitle\ttext\nd1\tMars\tThe "red" planet.\nd2\tBach\tWrote fugues.\nd3\tIron\tRusts.\n'
TRAIN = "query\tdocid\nwhat is red\td1\nwhat rusts\td3\n"
TEST = "query\tdocid\nwho wrote fugues\td2\nwhich planet is red\td1\n"


@pytest.fixture
def write(tmp_path):
    def make(docs=DOCS, train=TRAIN, test=TEST, kind=".tsv"):
        paths = []
        for name, text in (("docs", docs), ("train", train), ("test", test)):
            suffix = ".jsonl" if text.startswith("{") else kind
            paths.append(tmp_path / f"{name}{suffix}")
            paths[-1].write_text(text)
        return paths

    return make


def items_of(source):
    return pa.Table.from_batches(source.items())


def judgments_of(source):
    return pa.Table.from_batches(source.judgments())


def test_documents_and_pairs_become_the_canonical_tables(write):
    source = nq320k_source(*write())
    assert items_of(source).schema == ITEMS
    assert items_of(source).to_pylist() == [
        {"id": "d1", "title": "Mars", "category": [], "text": 'The "red" planet.'},
        {"id": "d2", "title": "Bach", "category": [], "text": "Wrote fugues."},
        {"id": "d3", "title": "Iron", "category": [], "text": "Rusts."},
    ]
    rows = judgments_of(source)
    assert rows.schema == PAIRS
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        ("train-1", "what is red", "d1", 1.0, "train", True),
        ("train-2", "what rusts", "d3", 1.0, "train", True),
        ("test-1", "who wrote fugues", "d2", 1.0, "test", False),
        ("test-2", "which planet is red", "d1", 1.0, "test", True),
    ]
    assert items_of(source).equals(items_of(source))


def test_counts_other_than_the_published_are_told(write):
    notes = nq320k_source(*write()).notes
    assert [note.split(", but")[0] for note in notes[:5]] == [
        "Found 3 documents",
        "Found 2 training pairs",
        "Found 2 test queries",
        "Found 1 seen test queries",
        "Found 1 unseen test queries",
    ]
    assert "109,739" in notes[0]


def test_counts_as_published_are_not_told(write, monkeypatch):
    counts = {"documents": 3, "training pairs": 2, "test queries": 2, "seen test queries": 1, "unseen test queries": 1}
    monkeypatch.setattr(nq320k, "PUBLISHED", counts)
    assert not any(note.startswith("Found") for note in nq320k_source(*write()).notes)
    monkeypatch.setattr(nq320k, "PUBLISHED", counts | {"unseen test queries": 2})
    assert sum(note.startswith("Found") for note in nq320k_source(*write()).notes) == 1


def test_the_published_counts_agree_with_each_other():
    published = nq320k.PUBLISHED
    assert published["seen test queries"] + published["unseen test queries"] == published["test queries"]


@pytest.mark.parametrize(
    ("docs", "text"),
    [
        ('{"id": 1, "title": "Mars", "abstract": "Red."}', "Red."),
        ('{"DocID": "1", "title": null, "document": "Red."}', "Red."),
        ('{"doc_id": 1, "abstract": "short", "body": "Long."}', "Long."),
        ('{"id": 9, "docid": 1, "text": null}', ""),
    ],
)
def test_usual_column_names_are_understood(write, docs, text):
    pairs = '{"question": "what is red", "doc_id": 1}\n\n'
    source = nq320k_source(*write(docs, pairs, pairs))
    (row,) = items_of(source).to_pylist()
    assert (row["id"], row["text"]) == ("1", text)
    assert judgments_of(source)["item"].to_pylist() == ["1", "1"]


def test_csv_may_quote_and_break_lines_and_files_may_be_gzip(write, tmp_path):
    docs, _, _ = write()
    train = tmp_path / "train.csv"
    train.write_text('docid,query\nd1,"what, is\nred"\n')
    test = tmp_path / "test.tsv.gz"
    test.write_bytes(gzip.compress(TEST.encode()))
    rows = judgments_of(nq320k_source(docs, train, test)).to_pylist()
    assert [row["query"] for row in rows] == ["what, is red", "who wrote fugues", "which planet is red"]


def test_valid_is_one_percent_of_the_queries_with_all_their_pairs(write):
    pairs = [f"question {number}\td{doc}" for number in range(300) for doc in (1, 2)]
    train = "query\tdocid\n" + "\n".join(pairs)
    rows = judgments_of(nq320k_source(*write(train=train))).to_pylist()
    split = {name: {row["query"] for row in rows if row["split"] == name} for name in ("train", "valid")}
    assert (len(split["train"]), len(split["valid"])) == (297, 3)
    drawn = np.random.default_rng(42).permutation(300)[:3]
    assert split["valid"] == {sorted(split["train"] | split["valid"])[position] for position in drawn}
    assert sum(row["split"] == "valid" for row in rows) == 6
    shuffled = "query\tdocid\n" + "\n".join(pairs[::-1])
    again = judgments_of(nq320k_source(*write(train=shuffled))).to_pylist()
    assert {row["query"] for row in again if row["split"] == "valid"} == split["valid"]


def test_repeated_pairs_are_dropped_and_shared_queries_kept_and_both_told(write):
    train = TRAIN + "what is red\td1\nwhat is red\td2\n"
    source = nq320k_source(*write(train=train, test="query\tdocid\nwhat is red\td1\n"))
    rows = [(row["query_id"], row["item"]) for row in judgments_of(source).to_pylist()]
    assert rows == [("train-1", "d1"), ("train-2", "d3"), ("train-1", "d2"), ("test-1", "d1")]
    assert "Found 4 training pairs" in source.notes[1]
    assert source.notes[-2].startswith("1 rows were dropped because they repeat a pair")
    assert source.notes[-1].startswith("1 test queries are also training queries")


def test_many_documents_come_in_several_batches(write, monkeypatch):
    monkeypatch.setattr(nq320k, "_BATCH_ROWS", 2)
    assert [batch.num_rows for batch in nq320k_source(*write()).items()] == [2, 1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train": TRAIN + "why\td9\n"}, r"train\.tsv, row 4: document 'd9' is not among the 3 documents"),
        ({"test": TEST + "  \td1\n"}, r"test\.tsv, row 4: the query is empty"),
        ({"docs": DOCS + "d1\tMars\tAgain.\n"}, r"docs\.tsv, row 5: document 'd1' is already in row 2"),
        ({"docs": DOCS + "d4\tTwo\tcells\tmore\n"}, r"docs\.tsv, row 5: expected 3 columns as in the header, got 4"),
        ({"docs": DOCS + " \tNo id\tText\n"}, r"docs\.tsv, row 5: expected a document id .*, got ' '"),
        (
            {"docs": "d1\tMars\tRed.\nd2\tBach\tFugues.\n"},
            r"row 2: expected a column named docid or .*, got d1, mars, red\.",
        ),
        (
            {"docs": "docid\ttitle\nd1\tMars\n"},
            r"row 2: expected a column named text or document or body or abstract",
        ),
        ({"docs": ""}, r"docs\.tsv has no documents"),
        ({"docs": '{"id": true, "text": ""}'}, r"docs\.jsonl, row 1: expected a document id .*, got True"),
        ({"docs": '{"id": "d1", "text": ["a"]}'}, r"docs\.jsonl, row 1: expected text to be a string, got \['a'\]"),
        ({"docs": '{"id": "d1"'}, r"docs\.jsonl, line 1: not a JSON object"),
        ({"docs": json.dumps({"id": "d1", "text": ""}) + "\n[1]"}, r"docs\.jsonl, line 2: not a JSON object"),
        ({"docs": 'id,text\nd1,"open\n', "kind": ".csv"}, r"docs\.csv, row 2: invalid CSV"),
        ({"kind": ".xml"}, r"docs\.xml: unknown suffix '\.xml'"),
    ],
)
def test_bad_files_are_named_by_row(write, files, message):
    with pytest.raises(DataError, match=message):
        nq320k_source(*write(**files))


def test_a_missing_file_is_a_data_error(write, tmp_path):
    docs, train, _ = write()
    with pytest.raises(DataError, match=r"absent\.tsv cannot be read"):
        nq320k_source(docs, train, tmp_path / "absent.tsv")
