"""A user's own tables: guessed columns, cleaned texts, counted drops, and a data set that can be read."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restd.data import Catalog, Histories, check_data, read_judgments, task_in, write_dataset
from restd.data.own_tables import guess_item_columns, guess_query_columns, own_tables_source
from restd.errors import DataError

MESSY = """\
ArticleNumber,Product Name,Long_Text,Categories,Price
A-1,"<b>Red</b> steel kettle; 1.7 l","<p>Boils water &amp; tea;<br>quickly</p>",Kitchen &gt; Kettles,19.90
A-2,Mesa de roble,"Para dos monitores; ""robusta"", 120 cm",Furniture > Desks,99.00
A-1,Red kettle again,a repeat,Kitchen > Kettles,19.90
A-3,電気ケトル 1.2L,お湯を沸かす,Kitchen > Kettles,29.00
,Nameless thing,no id at all,Other,1.00
A-4,,"Only a text, no title",Other,5.00
A-5,Grüner Wasserkocher,"line one
line two; R&D https://example.org/?a=1&b=2",Kitchen > Kettles,24.50
"""
CLICKS = """\
Search-Term,clicked_product,device
red kettle,A-1,phone
red kettle,A-3,phone
escritorio roble,A-2,desktop
red kettle,A-99,phone
,A-2,phone
やかん,A-3,desktop
"""


@pytest.fixture
def write(tmp_path):
    def write_file(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def many_items(count):
    words = ("red", "green", "blue", "oak", "steel", "glass", "round", "long")
    rows = [f"k{n},{words[n % 8]} {words[n // 8 % 8]} thing number {n}" for n in range(count)]
    return "\n".join(["sku,title", *rows, ""])


def test_a_messy_table_is_cleaned_and_every_step_is_told(write, tmp_path):
    source = own_tables_source(write("items.csv", MESSY), write("clicks.csv", CLICKS))
    written = write_dataset(source, tmp_path / "data")
    assert written.rows == {"items": 5, "judgments": 4}
    items = pa.Table.from_batches(list(Catalog(tmp_path / "data").batches())).to_pylist()
    assert [item["id"] for item in items] == ["A-1", "A-2", "A-3", "A-4", "A-5"]
    assert items[0] == {
        "id": "A-1",
        "title": "Red steel kettle; 1.7 l",
        "category": ["Kitchen", "Kettles"],
        "Long_Text": "Boils water & tea; quickly",
        "Price": "19.90",
    }
    assert items[1]["Long_Text"] == 'Para dos monitores; "robusta", 120 cm'
    assert items[3]["title"] == ""
    assert items[4]["Long_Text"].endswith("R&D https://example.org/?a=1&b=2")
    judgments = read_judgments(tmp_path / "data")
    assert list(zip(judgments["query"].to_pylist(), judgments["item"].to_pylist(), strict=True)) == [
        ("red kettle", "A-1"),
        ("red kettle", "A-3"),
        ("escritorio roble", "A-2"),
        ("やかん", "A-3"),
    ]
    assert judgments["grade"].to_pylist() == [1.0] * 4
    assert judgments["query_id"].to_pylist() == ["q0", "q0", "q1", "q2"]
    assert check_data(tmp_path / "data").catalog.items == 5
    for sentence in (
        "Guessed id = ArticleNumber (by its name).",
        "Guessed title = Product Name (by its name).",
        "Guessed category = Categories (by its name).",
        "Dropped 1 row without an id.",
        "Dropped 1 row that repeats an id; the first of each is kept.",
        "Removed HTML from values: 1 of Product Name, 1 of Long_Text, 1 of Categories.",
        "1 item has an empty title.",
        "Guessed query = Search-Term (by its name).",
        "Guessed item = clicked_product (by its name; an id of the items in 5 of the 6 rows that were looked at).",
        "No grade column: every row of the queries counts as a hit of grade 1.",
        "Columns of clicks.csv that were not used: device.",
        "Dropped 1 query row without a query or an item.",
        "Dropped 1 query row that names an item which the items table does not have.",
    ):
        assert sentence in source.notes, source.notes
    assert [batch.num_rows for batch in source.items()] == [5], "streams can be read twice"
    assert source.settings["columns"]["id"] == "ArticleNumber"


def test_columns_without_telling_names_are_found_by_content(write):
    items = write("items.csv", "a,b,c,d\nx1,Red kettle,3.50,u\nx2,Oak desk,4.50,u\nx3,Blue pan,5.50,v\n")
    guessed = guess_item_columns(items)
    assert guessed.columns == {"id": "a", "title": "b"}
    assert guessed.notes == (
        "Guessed id = a (unique in all 3 rows).",
        "Guessed title = b (its texts are short and differ).",
    )
    queries = write("queries.csv", "n,one,two,three\n1,red kettle,x1,new text\n2,red kettle,x2,other text\n")
    guessed = guess_query_columns(queries, ["x1", "x2", "x3"])
    assert (guessed.kind, guessed.columns) == ("judgments", {"item": "two", "query": "one"})
    assert guessed.reasons["query"] == "the only text column that repeats"


def test_without_an_id_column_rows_are_numbered(write, tmp_path):
    items = write("items.csv", "name,price\nRed kettle,3\nOak desk,3\nRed kettle,4\n")
    source = own_tables_source(items)
    assert [batch.column("id").to_pylist() for batch in source.items()] == [["row-1", "row-2", "row-3"]]
    assert any("rows are numbered: row-1" in note for note in source.notes)
    write_dataset(source, tmp_path / "data")
    assert Catalog(tmp_path / "data").ids().to_pylist() == ["row-1", "row-2", "row-3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sku,asin,title\n1,2,Red pan\n3,4,Oak desk\n",
            r"'sku' and 'asin' could each be the id.*--map id=sku or --map",
        ),
        ("id,one,two\n1,Red pan,Big sale\n2,Oak desk,No sale\n", r"could each be the title; the columns are: id, one"),
        ("id,item title,name\n", "contains no rows"),
        ("id,price\n1,3\n2,4\n", r"no column of text; it has: id, price.*--map title=NAME"),
        ("id;title\n1;Red pan\n", r"one column, 'id;title', with ';' inside. Expected commas"),
        ("id,title\n,Red pan\n,Oak desk\n", "no row with an id"),
        ("id,title\n1,Red pan\n2,Oak desk\n3,\n4,!!\n", "2 items with text. Without queries"),
        ("id,title\n1,Red pan\n2,Oak desk\n", "2 items with text. Without queries at least 3 are needed"),
    ],
)
def test_impossible_item_tables(write, text, message):
    with pytest.raises(DataError, match=message):
        own_tables_source(write("items.csv", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,item\nred pan,7\n", r"none of the 1 rows.*'k0' is one.*columns are: query, item.*--map-query item="),
        ("search_term,search_query,item\na b,c d,k1\n", r"--map-query query=search_term or --map-query query=search_q"),
        ("item,grade\nk1,3\n", r"no column was found for the query.*--map-query query=NAME"),
        ("query,sku,asin\na b,k1,k2\n", r"'sku' and 'asin' could each be the item"),
        ("query,item,score,rating\na b,k1,1,2\n", r"could each be the grade.*--map-query grade=score"),
        ("query,item\n,k1\n", r"no row is left: Dropped 1 query row without a query"),
    ],
)
def test_impossible_query_tables(write, text, message):
    with pytest.raises(DataError, match=message):
        own_tables_source(write("items.csv", many_items(10)), write("queries.csv", text))


def test_mapped_columns_decide(write):
    items = write("items.csv", "sku,asin,title\n1,x,Red pan\n3,y,Oak desk\n4,z,Blue cup\n")
    queries = write("queries.csv", "search_term,search_query,asin\na b,c d,z\n")
    source = own_tables_source(items, queries, columns={"id": "asin"}, query_columns={"query": "search_query"})
    assert source.judgments is not None
    assert next(source.judgments()).to_pylist()[0]["query"] == "c d"
    assert not any(note.startswith("Guessed id") for note in source.notes)
    with pytest.raises(DataError, match=r"no column 'nope' \(--map title=nope\); it has: sku, asin, title"):
        own_tables_source(items, columns={"title": "nope"})
    with pytest.raises(DataError, match=r"--map-query titel=asin: unknown name 'titel'. Expected one of: query"):
        own_tables_source(items, queries, columns={"id": "asin"}, query_columns={"titel": "asin"})


def test_grades_and_splits(write):
    rows = "red a,k1,Exact,Train\nred a,k2,I,training\nblue b,k3,C,dev\nblue c,k3,S,test\n"
    queries = write("queries.csv", "query,product_id,esci_label,split\n" + rows)
    source = own_tables_source(write("items.csv", many_items(10)), queries)
    assert source.judgments is not None
    table = pa.Table.from_batches(list(source.judgments()))
    assert table["grade"].to_pylist() == [3.0, 0.0, 1.0, 2.0]
    assert table["split"].to_pylist() == ["train", "train", "valid", "test"]
    assert "Query rows by split: train 2, valid 1, test 1." in source.notes


def test_a_fold_of_numbers_is_not_a_split_and_words_are_not_grades(write):
    queries = write("queries.csv", "query,item,label,fold\nred a,k1,good,1\nred a,k2,bad,2\n")
    source = own_tables_source(write("items.csv", many_items(10)), queries)
    assert "Column label was not taken for the grade: it needs numbers of at least 0 or the labels E, S, C, I." in (
        source.notes
    )
    assert any(note.startswith("Column fold was not taken for the split") for note in source.notes)
    assert any(note.startswith("No split column") for note in source.notes)


def test_items_alone_hold_out_a_tenth_of_the_items(write, tmp_path):
    source = own_tables_source(write("items.csv", many_items(400)))
    write_dataset(source, tmp_path / "data")
    rows = read_judgments(tmp_path / "data").to_pylist()
    items = {split: {row["item"] for row in rows if row["split"] == split} for split in ("train", "valid", "test")}
    assert 360 - 20 < len(items["train"]) < 360 + 20
    assert min(len(items["valid"]), len(items["test"])) >= 8
    assert not items["train"] & (items["valid"] | items["test"])
    assert not items["valid"] & items["test"]
    splits_of = {}
    for row in rows:
        splits_of.setdefault(row["query"], set()).add(row["split"])
    assert all(len(splits) == 1 for splits in splits_of.values())
    counts = [sum(row["item"] == item for row in rows) for item in sorted(items["test"])]
    assert max(counts) == 2
    assert any("not real ones" in note for note in source.notes)
    more = own_tables_source(write("more.csv", many_items(401)))
    assert more.judgments is not None
    held_out = {row["item"] for batch in more.judgments() for row in batch.to_pylist() if row["split"] == "test"}
    assert items["test"] <= held_out, "other items do not change who is held out"


def test_a_table_of_users_gives_histories(write, tmp_path):
    events = (
        "customer_id,sku,date\n"
        + "".join(f"u{n % 3},k{n},2026-01-{n + 1:02}\n" for n in range(12))
        + "u0,zz,2026-02-01\n"
    )
    source = own_tables_source(write("items.csv", many_items(20)), write("events.csv", events))
    assert source.judgments is None
    assert "events.csv has users and no queries: it is read as histories, in order of time." in source.notes
    assert "1 events of 1 items that are not in items.csv were dropped." in source.notes
    write_dataset(source, tmp_path / "data")
    assert task_in(tmp_path / "data") == "recommend"
    histories, _ = Histories.read(tmp_path / "data")
    assert (len(histories), histories.events) == (3, 12)
    assert histories.history(0, end=4).items == ("k0", "k3", "k6", "k9")


def test_json_lines_and_parquet(write, tmp_path):
    records = [
        {"asin": "a", "title": "Red <i>pan</i>", "features": ["<b>Steel</b>", "round"], "categories": ["Home", "Pans"]},
        {"asin": None, "title": "No id", "features": [], "categories": []},
        {"asin": "b", "title": None, "features": None, "categories": ["Home"]},
        {"asin": "c", "title": "Oak desk", "features": ["Long"], "categories": ["Office"]},
        {"asin": "d", "title": "Blue cup", "features": ["Small"], "categories": ["Home", "Cups"]},
    ]
    lines = write("items.jsonl", "\n".join(map(json.dumps, records)))
    table = tmp_path / "items.parquet"
    pq.write_table(pa.Table.from_pylist(records), table)
    for path in (lines, table):
        source = own_tables_source(path)
        rows = [row for batch in source.items() for row in batch.to_pylist()]
        assert [row["id"] for row in rows] == ["a", "b", "c", "d"]
        assert (rows[0]["title"], rows[0]["features"]) == ("Red pan", ["Steel", "round"])
        assert rows[0]["category"] == ["Home", "Pans"]
        assert "Dropped 1 row without an id." in source.notes


def test_the_separator_of_category_paths_is_found(write):
    items = write("items.csv", "id,title,genres\n1,Red pan,A|B\n2,Oak desk,A\n3,Blue cup,B|C\n")
    source = own_tables_source(items)
    assert next(source.items()).column("category").to_pylist() == [["A", "B"], ["A"], ["B", "C"]]
    assert "Category paths are split at '|', as most of them have it." in source.notes
