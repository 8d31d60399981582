"""Histories out of tables and lists, with their items: what stays, what is dropped, what the notes say."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restd.data import Catalog, check_data, write_dataset
from restd.data.history_sources import histories_source, is_json, prepare, read_lists
from restd.errors import ConfigError, DataError
from tests.test_histories import table_of


@pytest.fixture
def files(tmp_path):
    """Four users of whom one has too few events, five items of which one has no event and one has no row."""
    events = {"a": [1, 2, 3], "b": ["1", " 2 ", "3"], "c": [3, 2, 1, 3, 9], "d": [4]}
    (tmp_path / "events.json").write_text(json.dumps(events))
    rows = [(1, "Red mug"), (2, "Pot"), (3, "Pan"), (4, "Lid"), (5, "Never")]
    (tmp_path / "items.tsv").write_text("sku\ttitle\tprice\n" + "".join(f"{n}\t{name}\t{n}.5\n" for n, name in rows))
    return tmp_path


def source_of(folder, **options):
    return histories_source(folder / "events.json", folder / "items.tsv", item_columns={"id": "sku"}, **options)


def test_lists_become_histories_and_only_their_items_stay(files):
    source = source_of(files, core=3)
    assert pa.Table.from_batches(source.items()).to_pydict() == {
        "id": ["1", "2", "3"],
        "title": ["Red mug", "Pot", "Pan"],
        "category": [[], [], []],
        "price": ["1.5", "2.5", "3.5"],
    }
    assert pa.Table.from_batches(source.histories()).to_pylist()[3:] == [
        {"user": user, "item": item, "time": time}
        for user, items in (("b", "123"), ("c", "321"))
        for time, item in enumerate(items)
    ]
    assert source.judgments is None
    assert source.notes == (
        "3 users, 3 items, 9 events.",
        "Each item counts once per user, at its first time: 1 repeated events were dropped.",
        "The 3-core dropped 1 users, 1 items and 1 events: all that remain have at least 3 events.",
        "Events are sorted by time; 0 have the same time as the one before, and there the order of the file decides.",
        "0 held-out items occur earlier in their user's history.",
        "1 events of 1 items that are not in items.tsv were dropped.",
        "The lists of the file are read as they are, oldest item first.",
        "3 of the 5 items of items.tsv occur in the histories; the other 2 are left out.",
        "Text columns, which restd index encodes unless --text lists others: title.",
    )


@pytest.mark.parametrize("core", [0, 1])
def test_without_a_core_users_with_few_events_stay_and_are_told(files, core):
    source = source_of(files, core=core)
    assert len(pa.Table.from_batches(source.histories())) == 10
    assert "No core: users and items with few events stay." in source.notes
    assert any(note.endswith("; 1 users have fewer than 3 events and none held out.") for note in source.notes)


def test_histories_too_short_to_hold_anything_out_are_told():
    made = prepare(table_of([(0, 1, 1), (1, 1, 1), (0, 2, 1)]), core=0)
    assert "No user has the 3 events that leave-one-out needs, so nothing can be held out." in made.notes
    assert (
        "Events are sorted by time; 1 have the same time as the one before, and there the order of the file decides."
        in (made.notes)
    )


def test_settings_are_enough_to_make_the_data_again(files):
    settings = json.loads(json.dumps(source_of(files, core=2).settings))
    assert settings == {
        "events": str(files / "events.json"),
        "items": str(files / "items.tsv"),
        "columns": {},
        "item_columns": {"id": "sku"},
        "category_separator": " > ",
        "core": 2,
    }


def test_a_table_of_events_and_items_whose_columns_begin_empty(tmp_path):
    (tmp_path / "events.csv").write_text("who,item,time\n" + "".join(f"u,{n},{n}\n" for n in range(9000)))
    records = [{"id": n, "note": f"n{n}" if n > 8500 else None, "size": n if n < 8500 else 0.5} for n in range(9001)]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, [{"note": "", **records[0]}, *records[1:]])))
    events, items = tmp_path / "events.csv", tmp_path / "items.jsonl"
    write_dataset(histories_source(events, items, columns={"user": "who"}, core=0), tmp_path / "set")
    table = pq.read_table(tmp_path / "set" / "items.parquet")
    assert (len(table), table["note"].to_pylist()[-1], table["size"].to_pylist()[-1]) == (9000, "n8999", 0.5)
    items.write_text("\n".join(json.dumps({**record, "size": [1] if record["id"] > 8500 else 1}) for record in records))
    write_dataset(histories_source(events, items, columns={"user": "who"}, core=0), tmp_path / "set")
    assert pq.read_table(tmp_path / "set" / "items.parquet")["size"].to_pylist()[8500:8502] == ["1", "[1]"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"is not one JSON object .* Expected \{user: \[item, \.\.\.\]\}; a file of JSON lines is named \.jsonl"),
        ('{"a": [1]}\n{"b": [2]}', "is not one JSON object .Extra data"),
        ('{"a": [1], "a": [2]}', "is not one JSON object .it has 1 users twice"),
        ('{"a": [1], " a": [2]}', "is not one JSON object .it has 1 users twice"),
        ("[1]", "is a JSON list. Expected one object"),
        ("{}", "contains no events"),
        ('{"a": []}', "contains no events"),
        ('{"a": 3}', "user 'a' has 3. Expected a list of items, oldest first"),
        ('{"": [3]}', "a user's name is empty"),
        ('{"a": [1, null]}', "user 'a' has the item None. Items must be texts or whole numbers"),
        ('{"a": [true]}', "user 'a' has the item True. Items must be texts or whole"),
        ('{"a": [1.5]}', "user 'a' has the item 1.5. Items must be texts or whole"),
        ('{"a": [" "]}', "user 'a' has the item ' '. Items must be texts or whole"),
        ('{"a": ["\\ud800"]}', "has an id that is not text"),
    ],
)
def test_bad_lists_are_one_sentence(tmp_path, text, message):
    (tmp_path / "events.json").write_text(text)
    with pytest.raises(DataError, match=message) as raised:
        read_lists(tmp_path / "events.json")
    assert "\n" not in str(raised.value)


def test_lists_may_be_gzipped_and_a_broken_or_absent_file_is_told(tmp_path):
    path = tmp_path / "events.json.gz"
    path.write_bytes(gzip.compress(b'{"a": [1, 2]}'))
    assert is_json(path)
    assert read_lists(path).to_pydict() == {"user": ["a", "a"], "item": ["1", "2"], "time": [0, 1]}
    path.write_bytes(path.read_bytes()[:-9])
    for broken in (path, tmp_path / "absent.json"):
        with pytest.raises(DataError, match="cannot be read"):
            read_lists(broken)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"core": -1}, ConfigError, "core is -1, but must be at least 0"),
        ({"core": 4}, DataError, "The 4-core of .* is empty"),
        ({"columns": {"user": "who"}}, ConfigError, "has no columns to map. Remove --map-histories"),
    ],
)
def test_impossible_settings_are_refused(files, options, error, message):
    with pytest.raises(error, match=message):
        source_of(files, **options)


def test_items_of_another_shop_are_refused(files):
    (files / "items.tsv").write_text("sku\ttitle\nx\tMug\n")
    with pytest.raises(
        DataError, match=r"None of the 5 items of the histories is in items\.tsv\. The histories' first item is"
    ):
        source_of(files)


def test_check_counts_histories(files):
    (files / "histories.csv").write_text("who,item\n" + "".join(f"{who},{item}\n" for who, item in ("a1", "a2", "a7")))
    with (files / "histories.csv").open("a") as stream:
        stream.write("a,1\nb,2\nb,2\n")
    (files / "events.json").unlink()
    catalog = Catalog(files / "items.tsv", columns={"id": "sku"})
    check = check_data(files, catalog=catalog, history_columns={"user": "who"})
    assert check.to_dict()["histories"] == {
        "users": 2,
        "items": 3,
        "events": 6,
        "median_events": 3.0,
        "fewest_events": 2,
        "most_events": 4,
        "short": 1,
        "repeats": 2,
        "leaks": 1,
        "unknown_items": 1,
    }
    assert [warning.split(":")[0] for warning in check.warnings] == [
        "1 users have fewer than 3 events",
        "2 events repeat an item of the same user, 1 held-out items among them",
        "1 items of the histories are not in the catalogue",
    ]


def test_the_commands_write_and_check(files, command):
    events, items, out = files / "events.json", files / "items.tsv", files / "set"
    words = ("data", "histories", events, "--items", items, "--map", "id=sku", "--out", out)
    code, printed, err = command(*words, "--core", 3)
    assert (code, printed) == (0, f"{out}: 3 items, 9 histories\n")
    assert "Note: 3 users, 3 items, 9 events." in err
    code, printed, _ = command("data", "check", out)
    assert code == 0
    assert "events per user, fewest to most" in printed
    assert json.loads(command("data", "check", out, "--json")[1])["histories"]["events"] == 9
    code, printed, _ = command(*words, "--core", 0, "--json")
    assert json.loads(printed)["rows"] == {"items": 4, "histories": 10}
    code, _, err = command(*words)
    assert code == 2
    assert "Use a smaller --core" in err
