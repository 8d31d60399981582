import gzip

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.data.trec import QRELS, RUN, read_qrels, read_run, write_qrels, write_run
from restd.errors import DataError

WORDS = st.text(min_size=1, max_size=6).filter(lambda text: text.split() == [text] and "\ufeff" not in text)
PAIRS = st.tuples(WORDS, WORDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("trec")


def qrels(rows):
    return pa.Table.from_pylist([dict(zip(QRELS.names, row, strict=True)) for row in rows], schema=QRELS)


def run(rows):
    return pa.Table.from_pylist([dict(zip(RUN.names, row, strict=True)) for row in rows], schema=RUN)


@given(st.dictionaries(PAIRS, st.floats(0, 2**100, width=32), max_size=8))
def test_qrels_read_back_as_written(folder, graded):
    table = qrels([(query, item, grade) for (query, item), grade in graded.items()])
    write_qrels(table, folder / "qrels.txt")
    assert read_qrels(folder / "qrels.txt").equals(table)


@given(st.dictionaries(PAIRS, st.floats(allow_nan=False), max_size=8), WORDS)
def test_ranked_runs_read_back_as_written(folder, scored, tag):
    by_query = {}
    for (query, item), score in scored.items():
        by_query.setdefault(query, []).append((item, score))
    rows = [
        (query, rank, item, score)
        for query, hits in by_query.items()
        for rank, (item, score) in enumerate(sorted(hits, key=lambda hit: -hit[1]), start=1)
    ]
    write_run(run(rows), folder / "run.txt", tag=tag)
    assert read_run(folder / "run.txt").equals(run(rows))


def test_qrels_accept_tabs_blank_lines_gzip_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "qrels.txt.gz"
    path.write_bytes(gzip.compress("\ufeffq1\t0\td1\t2\r\n\r\nq2 0  d\u00e9 0.5\n".encode()))
    assert read_qrels(path).to_pylist() == [
        {"query_id": "q1", "item": "d1", "grade": 2.0},
        {"query_id": "q2", "item": "dé", "grade": 0.5},
    ]


def test_qrels_below_zero_are_read_as_zero(tmp_path):
    (tmp_path / "q").write_text("q 0 d -2\n")
    assert read_qrels(tmp_path / "q")["grade"].to_pylist() == [0.0]


def test_run_is_sorted_by_query_then_score_then_rank_then_file_order(tmp_path):
    lines = ["b Q0 x 3 1.0 t", "a Q0 y 1 0.5 t", "b Q0 z 2 1.0 t", "b Q0 w 9 2.0 t", "a Q0 v 1 0.5 t", "a Q0 u 0 .1 t"]
    (tmp_path / "run").write_text("\n".join(lines))
    table = read_run(tmp_path / "run")
    assert table["query_id"].to_pylist() == ["b", "b", "b", "a", "a", "a"]
    assert table["item"].to_pylist() == ["w", "z", "x", "y", "v", "u"]
    assert table["rank"].to_pylist() == [9, 2, 3, 1, 1, 0]
    assert table.schema == RUN


def test_empty_files_are_empty_tables(tmp_path):
    (tmp_path / "empty").write_text("")
    assert read_qrels(tmp_path / "empty").equals(QRELS.empty_table())
    assert read_run(tmp_path / "empty").equals(RUN.empty_table())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q 0 d 1\nq 0 e\n", r"qrels, line 2: column 4 \(grade\) is missing; a line has 4 columns: query id,"),
        ("q 0 d 1 x\n", r"qrels, line 1: column 5 is too many"),
        ("q 0 d good\n", r"qrels, line 1, column 4: grade 'good' is not a number"),
        ("q 0 d nan\n", r"qrels, line 1, column 4: grade 'nan'"),
        ("q 0 d inf\n", r"qrels, line 1, column 4: grade 'inf' is too large"),
        ("q 0 d 1e39\n", r"qrels, line 1, column 4: grade '1e39' is too large"),
        ("q 0 d 1\np 0 d 1\nq 0 d 2\n", r"qrels, line 3, column 3: document 'd' of query 'q' is already on line 1"),
    ],
)
def test_bad_qrels_are_named_by_line_and_column(tmp_path, text, message):
    (tmp_path / "qrels").write_text(text)
    with pytest.raises(DataError, match=message):
        read_qrels(tmp_path / "qrels")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q Q0 d 1 0.5\n", r"run, line 1: column 6 \(tag\) is missing"),
        ("q Q0 d 1 high t\n", r"run, line 1, column 5: score 'high'"),
        ("q Q0 d -1 0.5 t\n", r"run, line 1, column 4: rank '-1'"),
        ("q Q0 d 1.0 0.5 t\n", r"run, line 1, column 4: rank '1.0'"),
        ("q Q0 d 2147483648 0.5 t\n", r"run, line 1, column 4: rank '2147483648'"),
        ("q Q0 d 1 0.5 t\nq Q0 d 2 0.4 t\n", r"run, line 2, column 3: document 'd'"),
    ],
)
def test_bad_runs_are_named_by_line_and_column(tmp_path, text, message):
    (tmp_path / "run").write_text(text)
    with pytest.raises(DataError, match=message):
        read_run(tmp_path / "run")


def test_unreadable_files_are_data_errors(tmp_path):
    with pytest.raises(DataError, match="absent cannot be read"):
        read_qrels(tmp_path / "absent")
    (tmp_path / "latin").write_bytes(b"q 0 d 1\nq 0 caf\xe9 1\n")
    with pytest.raises(DataError, match="latin, line 2: byte 8 is not UTF-8"):
        read_qrels(tmp_path / "latin")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"q 0 d 1\n")[:-9])
    with pytest.raises(DataError, match=r"cut\.gz cannot be read"):
        read_qrels(tmp_path / "cut.gz")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("q", "d", 1), ("q", "red kettle", 1)], "row 1: item 'red kettle' is empty or contains white space"),
        ([("a\u00a0b", "d", 1)], r"row 0: query_id 'a\\xa0b'"),
        ([("", "d", 1)], "row 0: query_id ''"),
        ([("q", "d", 1), ("q", "d", 2)], "row 1: item 'd' of query 'q' occurs twice"),
        ([("q", "d", -1)], r"row 0: grade -1\.0"),
        ([("q", "d", float("nan"))], "row 0: grade nan"),
        ([("q", None, 1)], "column 'item' of the table .* has 1 nulls"),
    ],
)
def test_what_would_not_read_back_is_not_written(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        write_qrels(qrels(rows), tmp_path / "qrels")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("row", "tag", "message"),
    [
        (("q", 1, "d", 0.5), "my run", "tag 'my run'"),
        (("q", -1, "d", 0.5), "t", "row 0: rank -1"),
        (("q", 1, "d", float("nan")), "t", "row 0: score nan"),
        (("q", 1, "d d", 0.5), "t", "row 0: item 'd d'"),
    ],
)
def test_runs_that_would_not_read_back_are_not_written(tmp_path, row, tag, message):
    with pytest.raises(DataError, match=message):
        write_run(run([row]), tmp_path / "run", tag=tag)


def test_tables_of_other_columns_are_refused(tmp_path):
    with pytest.raises(DataError, match="has columns query_id, item but not 'grade'"):
        write_qrels(pa.table({"query_id": ["q"], "item": ["d"]}), tmp_path / "q")
    with pytest.raises(DataError, match=r"column 'grade' .* is string, not float"):
        write_qrels(pa.table({"query_id": ["q"], "item": ["d"], "grade": ["high"]}), tmp_path / "q")


def test_extra_columns_are_left_out_and_grades_are_short(tmp_path):
    table = pa.table({"query_id": ["q", "q"], "query": ["x y", "x y"], "item": ["d", "e"], "grade": [3.0, 0.1]})
    write_qrels(table, tmp_path / "q")
    assert (tmp_path / "q").read_text() == "q 0 d 3\nq 0 e 0.1\n"
