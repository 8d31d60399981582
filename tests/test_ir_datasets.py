"""Data sets of `ir_datasets`, registered from files written here: nothing is downloaded."""

import sys
from typing import NamedTuple

import pytest

from restd.data import Catalog, make_source, read_judgments, write_dataset
from restd.data.public.ir_datasets import ir_datasets_source
from restd.errors import ConfigError, DataError, MissingExtraError

ir_datasets = pytest.importorskip("ir_datasets", reason="needs the extra ir-datasets")
TINY = "restd-test/tiny"


class Article(NamedTuple):
    doc_id: str
    title: str
    body: str
    rank: int

    def default_text(self):
        return f"{self.title} {self.body}"


class Keyed(NamedTuple):
    doc_id: str
    answer: str

    def default_text(self):
        return self.answer


class Documents(ir_datasets.formats.BaseDocs):
    """Documents of another type than the package's plain one, made as they are read."""

    def __init__(self, kind, rows):
        self.kind, self.rows = kind, rows

    def docs_iter(self):
        return (self.kind(*row) for row in self.rows)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A data set with three parts, one without, and their files."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    (tmp_path / "docs.tsv").write_text("d1\tA red planet.\nd2\tKettles boil water.\n", "utf-8")
    known = dict(ir_datasets.registry._registered)

    def write(name, queries, qrels):
        paths = {}
        for option, rows in (("queries_tsv", queries), ("qrels_trec", qrels)):
            if rows:
                path = tmp_path / f"{name.replace('/', '-')}.{option}"
                path.write_text("".join(f"{row}\n" for row in rows), "utf-8")
                paths[option] = str(path)
        made = ir_datasets.create_dataset(docs_tsv=str(tmp_path / "docs.tsv"), **paths)
        ir_datasets.registry._registered[name] = made

    write(TINY, ["q1\tred planet", "q2\tboil water"], [])
    write(f"{TINY}/train", ["q1\tred planet"], ["q1 0 d1 2", "q1 0 d2 -1"])
    write(f"{TINY}/dev", ["q2\tboil water"], ["q2 0 d2 1"])
    write("restd-test/whole", ["q1\tred planet", "q2\tboil water"], ["q1 0 d1 1", "q2 0 d2 1"])
    yield write
    ir_datasets.registry._registered.clear()
    ir_datasets.registry._registered.update(known)


def rows_of(folder):
    return [
        (row["query_id"], row["query"], row["item"], row["grade"], row["split"])
        for row in read_judgments(folder).to_pylist()
    ]


def test_parts_become_splits_and_grades_stay(tiny, tmp_path):
    written = write_dataset(ir_datasets_source(TINY), tmp_path / "out")
    assert written.rows == {"items": 2, "judgments": 3}
    assert written.notes == (f"{TINY} has no judgments for test.",)
    assert rows_of(tmp_path / "out") == [
        ("q1", "red planet", "d1", 2.0, "train"),
        ("q1", "red planet", "d2", 0.0, "train"),
        ("q2", "boil water", "d2", 1.0, "valid"),
    ]
    assert Catalog(tmp_path / "out").texts_of(["d2", "d1"]) == ["Kettles boil water.", "A red planet."]


def test_one_part_is_its_own_split(tiny, tmp_path):
    write_dataset(ir_datasets_source(f"{TINY}/dev"), tmp_path / "out")
    assert rows_of(tmp_path / "out") == [("q2", "boil water", "d2", 1.0, "valid")]


def test_judgments_without_splits_are_test_or_drawn(tiny, tmp_path):
    source = ir_datasets_source("restd-test/whole")
    write_dataset(source, tmp_path / "out")
    assert [row[-1] for row in rows_of(tmp_path / "out")] == ["test", "test"]
    assert source.notes == ("restd-test/whole names no splits: its judgments are all test.",)
    drawn = make_source("ir-datasets", dataset="restd-test/whole", split="drawn")
    write_dataset(drawn, tmp_path / "drawn")
    assert {row[1]: row[-1] for row in rows_of(tmp_path / "drawn")} == {"red planet": "train", "boil water": "test"}


def test_documents_of_any_type_are_read_as_they_come(tiny, tmp_path):
    rows = [(f"d{number}", f"Title {number}", f"Body {number}", number) for number in range(9_000)]
    ir_datasets.registry._registered["restd-test/wide"] = ir_datasets.Dataset(Documents(Article, rows))
    source = ir_datasets_source("restd-test/wide")
    first = next(iter(source.items()))
    assert (first.num_rows, first.to_pylist()[1]) == (
        4096,
        {"id": "d1", "title": "Title 1", "category": [], "text": "Body 1"},
    )
    assert write_dataset(source, tmp_path / "out").rows == {"items": 9_000}
    assert source.notes == ("restd-test/wide has no judgments: only its items are read.",)
    keyed = ir_datasets.Dataset(Documents(Keyed, [("d1", "An answer")]))
    ir_datasets.registry._registered["restd-test/keyed"] = keyed
    (batch,) = ir_datasets_source("restd-test/keyed").items()
    assert batch.to_pylist() == [{"id": "d1", "title": "", "category": [], "text": "An answer"}]


def test_the_command_writes_it(tiny, tmp_path, command):
    code, printed, problems = command("data", "ir-datasets", TINY, "--out", tmp_path / "out")
    assert (code, "2 items, 3 judgments" in printed) == (0, True), problems
    code, _, problems = command("data", "ir-datasets", TINY, "--out", tmp_path / "other", "--split", "half")
    assert code == 2
    assert "half" in problems


def test_what_cannot_be_read_is_a_sentence(tiny, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=rf"no data set 'restd-test/tyni'\. Did you mean '{TINY}'"):
        ir_datasets_source("restd-test/tyni")
    with pytest.raises(ConfigError, match="needs: dataset"):
        make_source("ir-datasets")
    tiny("restd-test/lost", ["q1\tred planet"], ["q9 0 d1 1"])
    with pytest.raises(DataError, match="for the query 'q9', which is not among its queries"):
        write_dataset(ir_datasets_source("restd-test/lost"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    queries = ir_datasets.formats.TsvQueries(ir_datasets.util.LocalDownload(str(tmp_path / "docs.tsv")))
    ir_datasets.registry._registered["restd-test/none"] = ir_datasets.Dataset(queries)
    with pytest.raises(DataError, match="'restd-test/none' of ir_datasets has no documents"):
        ir_datasets_source("restd-test/none")
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(MissingExtraError, match=r"restd-retrieval\[ir-datasets\]"):
        ir_datasets_source(TINY)
