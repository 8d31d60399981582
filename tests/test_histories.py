"""Histories as values: order, repeats, cores, what is held out; and the tables they are read from."""

import gzip
import json
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.data import Histories, leave_one_out, read_histories
from restd.data.histories import FEWEST, count_leaks, in_order, training_events
from restd.errors import DataError

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
    return {user: [names[item] for item in histories.event_items[begin:end]] for user, begin, end in ends}


def expected_lists(events):
    lists = defaultdict(list)
    for user, item, _ in sorted(events, key=lambda event: event[2]):  # stable, as the reader must be
        lists[f"u{user}"].append(f"i{item}")
    return lists


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
        with pytest.raises(DataError, match=rf"The {count}-core of .* is empty: .* Use a smaller --core\."):
            histories.core(count)
        return
    core = histories.core(count)
    assert [(user, item) for user, items in lists_of(core).items() for item in items] == pairs
    assert lists_of(core.core(count)) == lists_of(core)


@given(EVENTS, st.randoms(use_true_random=False))
def test_keep_takes_events_and_leaves_no_empty_user_or_item(events, random):
    histories = histories_of(events)
    mask = np.array([random.random() < 0.5 for _ in events])
    rest = histories.keep(mask)
    assert rest.events == mask.sum()
    expected = defaultdict(list)
    names = histories.items.to_pylist()
    for owner, item in zip(histories.user[mask], histories.event_items[mask], strict=True):
        expected[histories.users[int(owner)].as_py()].append(names[item])
    assert lists_of(rest) == expected
    assert sorted(set(rest.event_items.tolist())) == list(range(len(rest.items)))


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
    expected = {user: [item for item in items if int(item[1:]) in known] for user, items in lists_of(histories).items()}
    assert lists_of(renumbered) == {user: items for user, items in expected.items() if items}


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
            split: expected
            for split, expected in (
                ("train", [(items[:end], items[end]) for end in range(1, len(items) - 2)]),
                ("valid", [(items[:-2], items[-2])]),
                ("test", [(items[:-1], items[-1])]),
            )
            if expected
        }
        for user, items in lists.items()
    }
    for user, splits in pairs.items():
        targets = {splits["valid"][0][1], splits["test"][0][1]}
        seen = {item for history, target in splits["train"] for item in (*history, target)}
        assert not targets & seen, user
    assert count_leaks(histories) == 0
    trained = [histories.users[int(user)].as_py() for user in histories.user[training_events(histories)]]
    assert Counter(trained) == {user: len(items) - 2 for user, items in lists.items()}


def test_without_once_a_leak_is_counted():
    events = [(0, item, time) for time, item in enumerate([1, 2, 3, 1])] + [(1, 5, 0), (1, 5, 1)]
    assert count_leaks(histories_of(events)) == 1
    assert count_leaks(histories_of([(0, item, time) for time, item in enumerate([1, 1, 1, 2])])) == 2
    assert count_leaks(histories_of(events).once()) == 0


def test_users_keep_their_count_when_events_go_missing():
    histories = histories_of([(0, item, item) for item in range(5)] + [(1, item, item) for item in (3, 4)])
    renumbered, dropped = histories.over(pa.array(["i3", "i4"]))
    assert dropped == 3
    assert renumbered.full_lengths.tolist() == [5, 2]
    (prefix,) = leave_one_out(renumbered, "test")
    assert prefix.items == ("i3",)
    assert len(leave_one_out(renumbered, "valid")) == 0  # nothing is left of what came before
    assert count_leaks(renumbered) == 0


def test_an_unknown_split_is_refused():
    with pytest.raises(DataError, match=r"Unknown split 'dev' of histories\. Expected one of: train, valid, test"):
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
    with pytest.raises(DataError, match=f"row {(1 << 16) + 1}, column 'time': 'x' is neither a number nor a date"):
        read_histories(path)
    path.write_text(json.dumps({"user": [1], "item": "x"}))
    with pytest.raises(DataError, match=r"column 'user' has type list<.*>\. Expected text or numbers in each row"):
        read_histories(path)
