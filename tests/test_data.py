"""Tables in any format, and errors that name row and column."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.data import Catalog, Source, check_data, read_histories, read_judgments, refuse_unknown_items, write_dataset
from restd.data.judgments import split_of_queries
from restd.data.readers import column_names
from restd.data.text import words
from restd.errors import ArtifactError, DataError

ROWS = [
    {"asin": "1", "name": "Red mug", "blurb": "Holds tea", "path": "Kitchen > Mugs"},
    {"asin": "2", "name": "", "blurb": 'An item, "quoted",\nin two lines', "path": "Kitchen > Kettles"},
    {"asin": "3", "name": "Äpfel 林檎", "blurb": "", "path": ""},
    {"asin": "4", "name": " ", "blurb": "", "path": ""},
]
COLUMNS = {"id": "asin", "title": "name", "category": "path"}


def as_csv(rows, separator=","):
    def quote(text):
        return '"' + text.replace('"', '""') + '"'

    lines = [separator.join(rows[0])] + [separator.join(quote(value) for value in row.values()) for row in rows]
    return "\n".join(lines) + "\n"


def write_rows(path, rows=ROWS):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(as_csv(rows).encode()))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        path.write_text(as_csv(rows, "\t" if path.suffix == ".tsv" else ","), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["items.csv", "items.tsv", "items.jsonl", "items.parquet", "items.csv.gz"])
@pytest.mark.parametrize("size", [1, 3, 8192])
def test_every_format_gives_the_same_items(tmp_path, name, size):
    catalog = Catalog(write_rows(tmp_path / name), columns=COLUMNS)
    assert catalog.ids().to_pylist() == ["1", "2", "3", "4"]
    batches = list(catalog.batches(size))
    assert max(batch.num_rows for batch in batches) <= size
    table = pa.Table.from_batches(batches)
    assert table["title"].to_pylist() == ["Red mug", "", "Äpfel 林檎", ""]
    assert table["category"].to_pylist() == [["Kitchen", "Mugs"], ["Kitchen", "Kettles"], [], []]
    texts = [text for batch in batches for text in catalog.texts(batch).to_pylist()]
    assert texts == ["Red mug. Holds tea", 'An item, "quoted",\nin two lines', "Äpfel 林檎", ""]


def test_chosen_text_columns_in_their_order(tmp_path):
    path = write_rows(tmp_path / "items.csv")
    catalog = Catalog(path, columns=COLUMNS, text=("blurb", "path", "name"))
    first = next(catalog.batches())
    assert catalog.texts(first)[0].as_py() == "Holds tea. Kitchen Mugs. Red mug"
    with pytest.raises(DataError, match="no column 'weight' to encode"):
        Catalog(path, columns=COLUMNS, text=("weight",)).ids()


def test_identity_follows_content_and_reading(tmp_path):
    first = write_rows(tmp_path / "a.csv")
    second = write_rows(tmp_path / "b.csv")
    assert Catalog(first, columns=COLUMNS).identity() == Catalog(second, columns=COLUMNS).identity()
    assert Catalog(first, columns=COLUMNS).identity() != Catalog(first, columns={"id": "asin"}).identity()
    write_rows(second, ROWS[:3])
    assert Catalog(first, columns=COLUMNS).identity() != Catalog(second, columns=COLUMNS).identity()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("title\nmug\n", "no column 'id'; it has: title. Map yours with --map id=COLUMN"),
        ("id,title\na,x\nb,y\na,z\n", "row 4, column 'id': id 'a' is already in row 2"),
        ("id,title\na,x\n,y\n", "row 3, column 'id': the id is missing"),
        ("id,title\na,x,extra\n", "has 3 columns, the header 2"),
        ("id,title,title\na,x,y\n", "has column 'title' twice"),
        ("id,title\n", "contains no items"),
        ("", "is empty"),
        (b"id,title\na,x\nb,\xff\xfe\n", "row 3, column 'title': the bytes are not UTF-8"),
    ],
)
def test_bad_item_tables(tmp_path, content, message):
    path = tmp_path / "items.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        list(zip(Catalog(path).batches(), Catalog(path).ids(), strict=False))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": "a"}\n{"id": \n', "line 2: not a JSON object .Expecting value.; write one object per line"),
        (b'{"id": "a"}\n["b"]\n', "line 2: not a JSON object .type list."),
        (b'{"id": "a"}\n{"id": "\xff"}\n', "line 2: byte 9 is not UTF-8"),
    ],
)
def test_bad_json_lines(tmp_path, content, message):
    path = tmp_path / "items.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        Catalog(path).ids()


def test_missing_and_strange_files(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        Catalog(tmp_path / "nothing.csv").ids()
    (tmp_path / "items.xlsx").write_bytes(b"x")
    with pytest.raises(DataError, match="unknown format"):
        Catalog(tmp_path / "items.xlsx").ids()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match="could not be read"):
        Catalog(tmp_path / "broken.parquet").ids()
    with pytest.raises(DataError, match=r"unknown name 'colour'\. Expected one of"):
        Catalog(write_rows(tmp_path / "items.csv"), columns={"colour": "name"}).ids()


def judgments_csv(tmp_path, text):
    path = tmp_path / "judgments.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_judgments_with_everything_or_nothing_given(tmp_path):
    full = read_judgments(
        judgments_csv(tmp_path, "qid,query,item,grade,split\n7,mug,1,E,train\n7,mug,2,s,train\n8,pot,1,0.5,test\n"),
        columns={"query_id": "qid"},
    )
    assert full["query_id"].to_pylist() == ["7", "7", "8"]
    assert full["grade"].to_pylist() == [3.0, 2.0, 0.5]
    bare = read_judgments(judgments_csv(tmp_path, "query,item\nmug,1\nmug,2\npot,1\n"))
    assert bare["query_id"].to_pylist() == ["q0", "q0", "q1"]
    assert bare["grade"].to_pylist() == [1.0, 1.0, 1.0]
    assert bare["split"].to_pylist()[0] == bare["split"].to_pylist()[1]


def test_many_numeric_grades(tmp_path):
    rows = "".join(f"q{n},1,{n / 7:.5f}\n" for n in range(3_000))
    grades = read_judgments(judgments_csv(tmp_path, "query,item,grade\n" + rows))["grade"].to_numpy()
    assert np.allclose(grades, np.arange(3_000) / 7, atol=1e-4)
    with pytest.raises(DataError, match="negative or infinite"):
        read_judgments(judgments_csv(tmp_path, "query,item,grade\n" + rows + "q,1,-2\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "query,item,grade\nmug,1,E\nmug,2,X\n",
            "row 3, column 'grade': unknown grade 'X'",
        ),
        ("query,item,grade\nmug,1,-1\n", "row 2, column 'grade': unknown grade '-1'"),
        ("query,item\nmug,1\n,2\n", "row 3, column 'query' is empty"),
        (
            "query,item,split\nmug,1,dev\n",
            "column 'split': unknown split 'dev'. Expected one of: train",
        ),
        ("query\nmug\n", "no column 'item'"),
        ("query,item\n", "contains no judgments"),
    ],
)
def test_bad_judgments(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_judgments(judgments_csv(tmp_path, text))


def test_judgments_of_unknown_items(tmp_path):
    path = judgments_csv(tmp_path, "query,item\nmug,1\nmug,99\n")
    with pytest.raises(DataError, match="row 3, column 'item': '99' is not in the catalogue"):
        refuse_unknown_items(read_judgments(path), pa.array(["1"]), path=path)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=30))
def test_a_query_always_falls_into_the_same_split(queries):
    split = split_of_queries(pa.array(queries)).to_pylist()
    again = split_of_queries(pa.array(queries[::-1])).to_pylist()[::-1]
    assert split == again
    assert len({(query, name) for query, name in zip(queries, split, strict=True)}) == len(set(queries))


def test_splits_have_the_promised_sizes():
    names = split_of_queries(pa.array([f"query {n}" for n in range(5_000)])).to_pylist()
    shares = [names.count(name) / 5_000 for name in ("train", "valid", "test")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


def test_histories_are_sorted_and_ties_keep_the_files_order(tmp_path):
    path = tmp_path / "histories.csv"
    path.write_text("user,item,time\nb,1,5\na,2,9\nb,3,4\na,4,9\na,5,1\n")
    assert read_histories(path).to_pydict() == {
        "user": ["b", "b", "a", "a", "a"],
        "item": ["3", "1", "5", "2", "4"],
        "time": [4, 5, 1, 9, 9],
    }
    path.write_text("user,item,time\na,1,2026-01-02T00:00:00\na,2,2026-01-01T00:00:00\n")
    assert read_histories(path)["item"].to_pylist() == ["2", "1"]
    path.write_text("user,item\na,2\na,1\n")
    assert read_histories(path)["item"].to_pylist() == ["2", "1"]
    path.write_text("user,item,time\na,2,5\na,1,noon\n")
    with pytest.raises(DataError, match="row 3, column 'time': 'noon' is neither a number nor a date"):
        read_histories(path)


def source_of(items, judgments=None):
    def stream(table):
        return lambda: iter(pa.Table.from_pylist(table).to_batches())

    return Source("made", {"n": len(items)}, stream(items), None if judgments is None else stream(judgments))


def test_a_written_data_set_is_checked_when_read(tmp_path):
    items = [{"id": str(n), "title": f"item {n}", "category": ["a", "b"]} for n in range(5)]
    written = write_dataset(source_of(items), tmp_path / "set")
    assert written.rows == {"items": 5}
    assert len(Catalog(tmp_path / "set").ids()) == 5
    path = tmp_path / "set" / "items.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError, match="was changed"):
        Catalog(tmp_path / "set")


def test_check_counts_what_is_doubtful(tmp_path):
    items = [
        {"id": "1", "title": "mug", "category": ["k", "m"]},
        {"id": "2", "title": "mug", "category": ["k"]},
        {"id": "3", "title": "", "category": []},
        {"id": "4", "title": "pot", "category": ["k", "m"]},
    ]
    judged = [
        ("mug", "1", 3.0, "train"),
        ("mug", "1", 3.0, "train"),
        ("mug", "2", 1.0, "train"),
        ("mug", "2", 2.0, "train"),
        ("pot", "4", 3.0, "test"),
        ("mug", "1", 3.0, "test"),
        ("lid", "4", 0.0, "test"),
    ]
    rows = [
        {"query_id": query, "query": query, "item": item, "grade": grade, "split": split}
        for query, item, grade, split in judged
    ]
    write_dataset(source_of(items, rows), tmp_path / "set")
    check = check_data(tmp_path / "set")
    assert check.catalog.items == 4
    assert (check.catalog.empty_titles, check.catalog.without_text, check.catalog.repeated_texts) == (1, 1, 1)
    assert (check.catalog.categories, check.catalog.depth, check.catalog.without_category) == (2, 2, 1)
    assert check.judgments is not None
    assert check.judgments.repeated_pairs == 3
    assert check.judgments.contradicting_pairs == 1
    assert check.judgments.queries_in_two_splits == 1
    assert check.judgments.held_out_positives_unseen == 0.5
    assert check.judgments.items_with_training_query == 0.5
    test = check.judgments.splits["test"]
    assert (test.queries, test.without_positives, test.positives) == (3, 1, 2)
    assert test.histogram["0"] == 1
    assert test.histogram["1"] == 2
    assert len(check.warnings) == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Naïve CAFÉ—crème", ["naive", "cafe", "creme"]),
        ("パン", ["パン"]),
        ("ﾊﾟﾝ屋さん", ["パン", "ン屋", "屋さ", "さん"]),
        ("USBケーブル3m", ["usb", "ケー", "ーブ", "ブル", "3m"]),
        ("", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_mapped_names_win_over_columns_that_bear_them(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("asin,name,title\n1,Red mug,ignored\n")
    catalog = Catalog(path, columns={"id": "asin", "title": "name"})
    batch = next(catalog.batches())
    assert batch.to_pydict() == {"id": ["1"], "title": ["Red mug"], "category": [[]], "title_original": ["ignored"]}
    assert Catalog(path, columns={"id": "asin", "title": "asin"}).ids().to_pylist() == ["1"]
    (tmp_path / "judgments.csv").write_text("q,item,rel,query,grade\nmug,1,E,old,I\n")
    table = read_judgments(tmp_path / "judgments.csv", columns={"query": "q", "grade": "rel"})
    assert table["query"].to_pylist() == ["mug"]
    assert table["grade"].to_pylist() == [3.0]
    assert table["query_original"].to_pylist() == ["old"]


def test_numbers_are_no_text_in_any_format(tmp_path):
    rows = [{"id": str(n), "title": "mug" if n else "", "price": 1.5 + n, "note": "x1" if n else "2"} for n in range(3)]
    (tmp_path / "items.csv").write_text(as_csv([{k: str(v) for k, v in row.items()} for row in rows]))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "items.parquet")
    for name in ("items.csv", "items.parquet"):
        catalog = Catalog(tmp_path / name)
        assert catalog.text_columns == ["title", "note"]
        assert catalog.texts(next(catalog.batches())).to_pylist() == ["2", "mug. x1", "mug. x1"]


def test_odd_column_types(tmp_path):
    table = pa.table(
        {
            "id": [" 1 ", "2"],
            "colour": pa.array(["red", "blue"]).dictionary_encode(),
            "category": pa.array([None, ["a"]], pa.list_(pa.string())),
        }
    )
    pq.write_table(table, tmp_path / "items.parquet")
    catalog = Catalog(tmp_path / "items.parquet")
    assert catalog.ids().to_pylist() == ["1", "2"]
    batch = next(catalog.batches())
    assert catalog.texts(batch).to_pylist() == ["red", "blue"]
    assert batch["category"].to_pylist() == [[], ["a"]]
    assert check_data(tmp_path / "items.parquet", catalog=catalog).catalog.without_category == 1


def test_json_lines_whose_first_record_lacks_a_column(tmp_path):
    (tmp_path / "items.jsonl").write_text('{"id": 1}\n{"id": 2, "title": "mug"}\n{"id": 99999999999999999999}\n')
    catalog = Catalog(tmp_path / "items.jsonl")
    assert pa.Table.from_batches(list(catalog.batches(1)))["title"].to_pylist() == ["", "mug", ""]


def test_a_key_of_json_lines_that_appears_late_is_a_column(tmp_path):
    late = [{"id": n} for n in range(1_500)] + [{"id": 1_500, "colour": "teal"}]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, late)))
    catalog = Catalog(tmp_path / "items.jsonl")
    *_, last = catalog.batches(rows=500)
    assert last.schema.names == ["id", "title", "category", "colour"]
    assert (catalog.text_columns, catalog.texts(last).to_pylist()) == (["title", "colour"], ["teal"])


def test_a_column_of_json_lines_that_begins_empty_is_text(tmp_path):
    late = [
        {"id": n, "colour": "teal" if n >= 8_192 else None, "sizes": [n] if n > 8_192 else []} for n in range(9_000)
    ]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, late)))
    catalog = Catalog(tmp_path / "items.jsonl")
    batches = list(catalog.batches())
    assert catalog.text_columns == ["title", "colour"]
    assert catalog.texts(batches[-1]).to_pylist()[0] == "teal"
    assert {batch.schema.field("sizes").type for batch in batches} == {pa.list_(pa.int64())}


def test_types_of_json_lines_do_not_depend_on_where_batches_end(tmp_path):
    values = [1, 2.5, None, 2**60, 3]  # Arrow does not take so large a number for a fraction
    mixed = [True, "x", None, {"a": 1}, 7]
    records = [{"id": n, "number": values[n], "mixed": mixed[n], "never": None, "none": []} for n in range(5)]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, records)))
    for rows in (1, 2, 5):
        table = pa.Table.from_batches(list(Catalog(tmp_path / "items.jsonl").batches(rows)))
        assert table["number"].to_pylist() == [
            "1",
            "2.5",
            None,
            str(2**60),
            "3",
        ]
        assert table["mixed"].to_pylist() == ["True", "x", None, "{'a': 1}", "7"]
        assert (table["never"].type, table["none"].type) == (pa.string(), pa.list_(pa.string()))


def test_a_file_of_json_lines_that_changed_is_read_again(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text('{"id": 1}\n')
    assert column_names(path) == ["id"]
    path.write_text('{"id": 1, "title": "mug"}\n')
    assert column_names(path) == ["id", "title"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("items.csv", "id,title\n1,mug\n".encode("utf-16"), "UTF-8"),
        ("items.jsonl", b'{"id": {"a": 1}}\n', "neither text nor numbers"),
        ("items.jsonl", b'{"id": "1", "title": "\\ud800"}\n', "half a character"),
    ],
)
def test_more_bad_tables(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(zip(Catalog(tmp_path / name).batches(), Catalog(tmp_path / name).ids(), strict=False))


def test_fractions_of_time_decide_the_order(tmp_path):
    (tmp_path / "histories.csv").write_text("user,item,time\na,2,1.9\na,1,1.1\n")
    assert read_histories(tmp_path / "histories.csv")["item"].to_pylist() == ["1", "2"]
