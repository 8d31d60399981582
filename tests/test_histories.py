import gzip
import json
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.data import Catalog, Histories, check_data, leave_one_out, read_histories, write_dataset
from restd.data.histories import FEWEST, count_leaks, in_order, trained_events
from restd.data.sequences import histories_source, is_json, prepare, read_lists
from restd.errors import ConfigError, DataError

EVENTS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(0, 5)),  # user, item, time: repeats and ties abound
    min_size=1,
    max_size=60,
)


def table_of(events):
    users, items, times = zip(*events, strict=True)
    columns = {"user": [f"u{user}" for user in users], "item": [f"i{item}" for item in items], "time": list(times)}
    return pa.table(columns)


def histories_of(events):
    return Histories.of_table(in_order(table_of(events)))


def lists_of(histories):
    """Users and their items as plain values."""
    ends = zip(histories.users.to_pylist(), histories.first[:-1], histories.first[1:], strict=True)
    names = histories.items.to_pylist()
    return {user: [names[item] for item in histories.taken[begin:end]] for user, begin, end in ends}


def expected_lists(events):
    found = defaultdict(list)
    for user, item, _ in sorted(events, key=lambda event: event[2]):  # stable, as the reader must be
        found[f"u{user}"].append(f"i{item}")
    return found


@given(EVENTS)
def test_events_are_in_order_of_time_and_ties_in_order_of_the_file(events):
    histories = histories_of(events)
    assert lists_of(histories) == expected_lists(events)
    assert histories.users.to_pylist() == [f"u{user}" for user in dict.fromkeys(event[0] for event in events)]
    assert histories.lengths.sum() == histories.events == len(events)


@given(EVENTS)
def test_once_keeps_the_first_time_of_an_item(events):
    assert lists_of(histories_of(events).once()) == {
        user: list(dict.fromkeys(items)) for user, items in expected_lists(events).items()
    }


@given(EVENTS, st.integers(2, 4))
def test_the_core_is_the_largest_part_in_which_all_have_enough(events, count):
    histories = histories_of(events).once()
    pairs = [(user, item) for user, items in lists_of(histories).items() for item in items]
    while True:  # one at a time: whatever the order, what is left at the end is the same
        owners, items = Counter(user for user, _ in pairs), Counter(item for _, item in pairs)
        poor = next((pair for pair in pairs if owners[pair[0]] < count or items[pair[1]] < count), None)
        if poor is None:
            break
        pairs.remove(poor)
    if not pairs:
        with pytest.raises(DataError, match=rf"No user and item have {count} events each .*; ask for a smaller core\."):
            histories.core(count)
        return
    held = histories.core(count)
    assert [(user, item) for user, items in lists_of(held).items() for item in items] == pairs
    assert lists_of(held.core(count)) == lists_of(held)


@given(EVENTS, st.randoms(use_true_random=False))
def test_keep_takes_events_and_leaves_no_empty_user_or_item(events, random):
    histories = histories_of(events)
    mask = np.array([random.random() < 0.5 for _ in events])
    kept = histories.keep(mask)
    assert kept.events == mask.sum()
    wanted = defaultdict(list)
    names = histories.items.to_pylist()
    for owner, item in zip(histories.user[mask], histories.taken[mask], strict=True):
        wanted[histories.users[int(owner)].as_py()].append(names[item])
    assert lists_of(kept) == wanted
    assert sorted(set(kept.taken.tolist())) == list(range(len(kept.items)))


@given(EVENTS, st.sets(st.integers(0, 8), min_size=1))
def test_over_renumbers_items_and_counts_the_unknown(events, known):
    histories = histories_of(events)
    ids = pa.array([f"i{item}" for item in sorted(known, reverse=True)])
    lost = sum(item not in known for _, item, _ in events)
    if lost == len(events):
        with pytest.raises(DataError, match=r"None of the \d+ items of the histories is in the index"):
            histories.over(ids)
        return
    renumbered, dropped = histories.over(ids)
    assert dropped == lost
    assert renumbered.items is ids
    wanted = {user: [item for item in items if int(item[1:]) in known] for user, items in lists_of(histories).items()}
    assert lists_of(renumbered) == {user: items for user, items in wanted.items() if items}


@given(EVENTS)
def test_leave_one_out_holds_out_the_last_two_and_nothing_leaks(events):
    histories = histories_of(events).once()
    lists = {user: items for user, items in lists_of(histories).items() if len(items) >= FEWEST}
    if not lists:
        with pytest.raises(DataError, match="No user has the 3 events that leave-one-out needs"):
            leave_one_out(histories, "test")
        return
    names = histories.items.to_pylist()
    pairs = defaultdict(lambda: defaultdict(list))
    for split in ("train", "valid", "test"):
        prefixes = leave_one_out(histories, split)
        assert [prefix.items for prefix in prefixes[:2]] == [prefix.items for prefix in list(prefixes)[:2]]
        for prefix, target in zip(prefixes, prefixes.targets, strict=True):
            pairs[prefix.user][split].append((list(prefix.items), names[target]))
    assert pairs == {
        user: {
            split: wanted
            for split, wanted in (
                ("train", [(items[:end], items[end]) for end in range(1, len(items) - 2)]),
                ("valid", [(items[:-2], items[-2])]),
                ("test", [(items[:-1], items[-1])]),
            )
            if wanted
        }
        for user, items in lists.items()
    }
    for user, splits in pairs.items():
        targets = {splits["valid"][0][1], splits["test"][0][1]}
        seen = {item for history, target in splits["train"] for item in (*history, target)}
        assert not targets & seen, user
    assert count_leaks(histories) == 0
    trained = [histories.users[int(user)].as_py() for user in histories.user[trained_events(histories)]]
    assert Counter(trained) == {user: len(items) - 2 for user, items in lists.items()}


def test_without_once_a_leak_is_counted():
    events = [(0, item, time) for time, item in enumerate([1, 2, 3, 1])] + [(1, 5, 0), (1, 5, 1)]
    assert count_leaks(histories_of(events)) == 1
    assert count_leaks(histories_of([(0, item, time) for time, item in enumerate([1, 1, 1, 2])])) == 2
    assert count_leaks(histories_of(events).once()) == 0


def test_an_unknown_split_is_refused():
    with pytest.raises(DataError, match="There is no split 'dev' of histories; wanted one of train, valid, test"):
        leave_one_out(histories_of([(0, 1, 1)]), "dev")


@given(EVENTS)
def test_what_is_written_reads_back(events):
    histories = histories_of(events).once()
    again = Histories.of_table(in_order(pa.Table.from_batches(histories.to_batches())))
    assert lists_of(again) == lists_of(histories)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".jsonl.gz", ".parquet"])
def test_every_format_gives_the_same_histories(tmp_path, suffix):
    rows = [("u", "b", 2), ("v", "a", 1), ("u", "a", 1), ("u", "c", 2)]
    path = tmp_path / f"events{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"who": ["u", "v", "u", "u"], "item": list("baac"), "time": [2, 1, 1, 2]}), path)
    elif "jsonl" in suffix:
        text = "\n".join(json.dumps({"who": user, "item": item, "time": time}) for user, item, time in rows)
        path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    else:
        lines = [("who", "item", "time"), *((user, item, str(time)) for user, item, time in rows)]
        path.write_text("\n".join(("," if suffix == ".csv" else "\t").join(line) for line in lines))
    histories, repeats = Histories.read(path, columns={"user": "who"})
    assert lists_of(histories) == {"u": ["a", "b", "c"], "v": ["a"]}
    assert repeats == 0


@pytest.mark.parametrize(
    "times",
    [
        ("2", "1", "3"),
        ("1.5", "1.25", "2"),
        ("2020-01-02", "2020-01-01", "2020-01-03"),
        ("2020-01-01T00:00:00.5", "2020-01-01T00:00:00.25", "2020-01-01T00:00:01"),
        ("2020-01-01T08:00:00Z", "2020-01-01T08:00:00+01:00", "2020-01-01T09:00:00Z"),
    ],
)
def test_times_of_many_kinds(tmp_path, times):
    path = tmp_path / "events.csv"
    path.write_text("user,item,time\n" + "".join(f"u,{item},{time}\n" for item, time in enumerate(times)))
    assert read_histories(path)["item"].to_pylist() == ["1", "0", "2"]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (("1", "soon"), r"events\.csv: row 3, column 'when': 'soon' is neither a number nor a date"),
        (("1", ""), r"row 3, column 'when': '' is neither"),
        (("1.5", "nan"), r"row 3, column 'when': 'nan' is neither"),
        (("1.5", "inf"), r"row 3, column 'when': 'inf' is neither"),
        (("1", "2020-01-01"), r"row 2, column 'when': '1' is neither"),
    ],
)
def test_times_that_do_not_parse_are_named(tmp_path, times, message):
    path = tmp_path / "events.csv"
    path.write_text("user,item,when\n" + "".join(f"u,a,{time}\n" for time in times))
    with pytest.raises(DataError, match=message):
        read_histories(path, columns={"time": "when"})


def test_json_lines_may_change_the_kind_of_their_values(tmp_path):
    path = tmp_path / "events.jsonl"
    records = [{"user": 1, "item": 7, "time": 2, "text": None}, {"user": "1", "item": "x", "time": 1.5, "text": "t"}]
    path.write_text("\n".join(json.dumps(record) for record in records for _ in range(1 << 16)))
    assert lists_of(Histories.read(path)[0]) == {"1": ["x", "7"]}
    path.write_text("\n".join(json.dumps({**records[0], "time": time}) for time in (1, "x") for _ in range(1 << 16)))
    with pytest.raises(DataError, match="column 'time' holds numbers as well as text"):
        read_histories(path)
    path.write_text(json.dumps({"user": [1], "item": "x"}))
    with pytest.raises(DataError, match="column 'user' holds ids that are neither text nor numbers"):
        read_histories(path)


@pytest.fixture
def files(tmp_path):
    """Four users of whom one has too few events, five items of which one is never taken and one has no row."""
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
        "An item counts once a user, at its first time: 1 events that repeat one were dropped.",
        "The 3-core dropped 1 users, 1 items and 1 events: all that remain have at least 3 events.",
        "Events are in order of time; 0 have the time of the one before, and there the order of the file decides.",
        "0 held-out items occur in their own history or their user's training.",
        "1 events were dropped for the 1 items that items.tsv lacks.",
        "The lists of the file are taken as they are, oldest first.",
        "3 of the 5 items of items.tsv occur in the histories; the 2 others are left out.",
        "Text columns, encoded unless restd index --text names others: title.",
    )


@pytest.mark.parametrize("core", [0, 1])
def test_without_a_core_users_with_few_events_stay_and_are_told(files, core):
    source = source_of(files, core=core)
    assert len(pa.Table.from_batches(source.histories())) == 10
    assert "No core was asked for: users and items with few events stay." in source.notes
    assert any(note.endswith("; 1 users have fewer than 3 events and hold nothing out.") for note in source.notes)


def test_histories_too_short_to_hold_anything_out_are_told():
    made = prepare(table_of([(0, 1, 1), (1, 1, 1), (0, 2, 1)]), core=0)
    assert "No user has the 3 events that leave-one-out needs, so nothing can be held out." in made.notes
    assert (
        "Events are in order of time; 1 have the time of the one before, and there the order of the file decides."
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
    with pytest.raises(DataError, match=r"a column holds text in some rows and numbers in others .*; write one kind"):
        write_dataset(histories_source(events, items, columns={"user": "who"}, core=0), tmp_path / "set")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"is not one JSON object .*; wanted \{user: \[item, \.\.\.\]\}, or name JSON lines \.jsonl"),
        ('{"a": [1]}\n{"b": [2]}', "is not one JSON object .Extra data"),
        ('{"a": [1], "a": [2]}', "is not one JSON object .it names 1 users twice"),
        ("[1]", "holds a JSON list; wanted one object"),
        ("{}", "holds no events"),
        ('{"a": []}', "holds no events"),
        ('{"a": 3}', "user 'a' has 3; wanted a list of items, oldest first"),
        ('{"": [3]}', "a user's name is empty"),
        ('{"a": [1, null]}', "user 'a' has the item None; wanted whole numbers or texts"),
        ('{"a": [true]}', "user 'a' has the item True; wanted whole"),
        ('{"a": [1.5]}', "user 'a' has the item 1.5; wanted whole"),
        ('{"a": [" "]}', "user 'a' has the item ' '; wanted whole"),
        ('{"a": ["\\ud800"]}', "has an id that is no text"),
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
        ({"core": -1}, ConfigError, "A core of -1 is impossible; wanted at least 0"),
        ({"core": 4}, DataError, "No user and item have 4 events each"),
        ({"columns": {"user": "who"}}, ConfigError, "has no columns to map; leave --map-histories out"),
    ],
)
def test_impossible_settings_are_refused(files, options, error, message):
    with pytest.raises(error, match=message):
        source_of(files, **options)


def test_items_of_another_shop_are_refused(files):
    (files / "items.tsv").write_text("sku\ttitle\nx\tMug\n")
    with pytest.raises(
        DataError, match=r"None of the 5 items of the histories is in items\.tsv; the first of theirs is"
    ):
        source_of(files)


def test_check_counts_histories(files):
    (files / "histories.csv").write_text("who,item\n" + "".join(f"{who},{item}\n" for who, item in ("a1", "a2", "a7")))
    with (files / "histories.csv").open("a") as stream:
        stream.write("a,1\nb,2\nb,2\n")
    (files / "events.json").unlink()
    catalog = Catalog(files / "items.tsv", columns={"id": "sku"})
    found = check_data(files, catalog=catalog, history_columns={"user": "who"})
    assert found.to_dict()["histories"] == {
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
    assert [warning.split(":")[0] for warning in found.warnings] == [
        "1 users have fewer than 3 events",
        "2 events repeat an item of the same user, and 1 held-out items are among them",
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
    assert "events a user, fewest to most" in printed
    assert json.loads(command("data", "check", out, "--json")[1])["histories"]["events"] == 9
    code, printed, _ = command(*words, "--core", 0, "--json")
    assert json.loads(printed)["rows"] == {"items": 4, "histories": 10}
    code, _, err = command(*words)
    assert code == 2
    assert "ask for a smaller core" in err
