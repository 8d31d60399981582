"""BEIR's folders, on files written here."""

import gzip
import json

import pytest

from restd.data import Catalog, read_judgments, write_dataset
from restd.data.public.beir import beir_source
from restd.errors import DataError

DOCUMENTS = [
    {"_id": "d1", "title": "Mars", "text": "A red planet.", "metadata": {}},
    {"_id": "d2", "title": "", "text": "Kettles boil water."},
]
QUERIES = [{"_id": "q1", "text": "red planet"}, {"_id": "q2", "text": "boil water"}]


def write_lines(path, records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")


@pytest.fixture
def folder(tmp_path):
    write_lines(tmp_path / "corpus.jsonl", DOCUMENTS)
    write_lines(tmp_path / "queries.jsonl", QUERIES)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t-1\n")
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq2\td2\t1\n")
    return tmp_path


def test_documents_and_judgments_keep_splits_and_grades(folder, tmp_path):
    written = write_dataset(beir_source(folder), tmp_path / "out")
    assert written.rows == {"items": 2, "judgments": 3}
    assert any("no judgments for valid" in note for note in written.notes)
    rows = read_judgments(tmp_path / "out").to_pylist()
    assert [(row["query_id"], row["item"], row["grade"], row["split"]) for row in rows] == [
        ("q1", "d1", 2.0, "train"),
        ("q1", "d2", 0.0, "train"),
        ("q2", "d2", 1.0, "test"),
    ]
    assert Catalog(tmp_path / "out").ids().to_pylist() == ["d1", "d2"]


def test_compressed_files_are_read(folder):
    plain = (folder / "corpus.jsonl").read_bytes()
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(plain))
    (batch,) = beir_source(folder).items()
    assert batch.column("text").to_pylist() == ["A red planet.", "Kettles boil water."]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq2 d2 1\n", r"line 2: expected query, document and grade"),
        ("qrels/test.tsv", "q9\td2\t1\n", r"line 1: the query 'q9' is not in"),
        ("corpus.jsonl", '{"title": "no id"}\n', r"'_id' is None"),
    ],
)
def test_faulty_files_are_named_with_their_line(folder, name, content, message):
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=message):
        write_dataset(beir_source(folder), folder / "out")


def test_another_folder_is_refused(tmp_path, folder):
    with pytest.raises(DataError, match=r"corpus\.jsonl does not exist"):
        beir_source(tmp_path / "qrels")
    for path in (folder / "qrels").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"has none of train\.tsv, dev\.tsv, test\.tsv"):
        beir_source(folder)
