"""Semantic IDs of unequal length: tables, keys, the trie, indexes on disk and imports."""

import json
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings

from restd.codes import Trie
from restd.codes.ending import check_ended, is_padding, without_padding
from restd.errors import ConfigError, DataError
from restd.index import SidIndex, SidTable, import_index, measure_quality
from restd.snapshot import Snapshot
from tests.unequal import SIZES, identifiers, padded


def names(count):
    return pa.array([f"i{number}" for number in range(count)])


def index_of(table, sizes=SIZES):
    sids = padded(table, len(sizes))
    return SidIndex(SidTable(names(len(table)), sids, sizes, ends=True), sids, None, None, None, "none")


@given(identifiers(empty=True))
def test_the_trie_is_that_of_a_dictionary_of_identifiers(table):
    """A prefix goes on with the codes of longer identifiers, and ends where it is one; then nothing is to choose."""
    trie, following, rows = Trie.of(padded(table), SIZES), defaultdict(set), defaultdict(list)
    for row, sid in enumerate(table):
        rows[sid].append(row)
        for depth, code in enumerate((*sid, 0)[: len(SIZES)]):
            following[sid[:depth]].add(code)
    waiting, leaves = [((), 0, 0)], {}
    while waiting:
        prefix, depth, node = waiting.pop()
        if depth == len(SIZES):
            leaves[prefix] = trie.items_of(torch.tensor([node]))[0]
            continue
        has_ended = len(prefix) < depth
        codes = set(trie.children(depth, torch.tensor([node]))[0].nonzero()[:, 0].tolist())
        assert codes == ({0} if has_ended else following[prefix])
        for code in codes:
            child = int(trie.advance(depth, torch.tensor([node]), torch.tensor([code]))[0])
            waiting.append((prefix if code == 0 else (*prefix, code), depth + 1, child))
    assert leaves == dict(rows)


@given(identifiers())
def test_items_are_looked_up_with_and_without_padding(table):
    stored = index_of(table).table
    for row, sid in enumerate(table):
        same = [f"i{other}" for other, other_sid in enumerate(table) if other_sid == sid]
        assert stored.sid(f"i{row}") == sid
        assert stored.items(sid) == stored.items(padded([sid])[0].tolist()) == same
    assert stored.items((3, 2, 3, 1)) == stored.items((9,)) == stored.items(()) == []
    assert stored.shown(np.arange(len(table))) == table
    assert stored.unique == len(set(table))


@given(identifiers(empty=True))
def test_padding_is_what_follows_the_first_terminal_code(table):
    sids = torch.from_numpy(padded(table))
    wanted = [[level > len(sid) for level in range(len(SIZES))] for sid in table]
    assert is_padding(sids).tolist() == wanted
    assert [without_padding(sid) for sid in sids.tolist()] == table


@settings(max_examples=20)
@given(identifiers())
def test_an_index_is_saved_cut_and_loaded(tmp_path_factory, table):
    index, folder = index_of(table), tmp_path_factory.mktemp("index")
    index.save(folder)
    loaded = SidIndex.load(folder)
    assert loaded.ends
    assert np.array_equal(loaded.sids, index.sids)
    assert loaded.layout() == index.layout() == {"sizes": list(SIZES), "codebooks": None, "ends": True}
    assert Snapshot.of(loaded).hash == Snapshot.of(index).hash
    keep = np.arange(len(table)) % 2 == 0
    part = index.subset(keep)
    assert part.ends
    assert part.table.shown(np.arange(len(part))) == table[::2]
    if len(table) > 1:
        assert index.remove(["i0"]).layout() == index.layout()
    assert measure_quality(part).items == len(part)


def test_an_index_of_one_length_is_stored_and_hashed_as_ever(tmp_path):
    sids = np.array([[0, 1, 2], [3, 0, 1]], np.int16)
    index = SidIndex(SidTable(names(2), sids, SIZES), sids, None, None, None, "none")
    assert json.dumps(index.layout(), sort_keys=True) == '{"codebooks": null, "sizes": [4, 3, 4]}'
    index.save(tmp_path / "fixed")
    assert SidIndex.load(tmp_path / "fixed").ends is False
    # of the version that had one length only
    assert Snapshot.of(index).hash == "020060e0cd0d62eba838252deed7e05de79a7feb448f4bfaa70fa664e00636a3"


def test_quality_counts_the_codes_that_items_have():
    quality = measure_quality(index_of([(1,), (1, 1), (2, 1), (2, 2), (3, 2, 1), (3, 2, 1)]))
    first, second, third = quality.levels
    assert (first.codes, first.used, first.prefixes) == (3, 3, 3)
    assert (second.codes, second.used, second.prefixes, second.items_per_prefix) == (2, 2, 4, 5 / 4)
    assert second.single_child == pytest.approx(1 / 3)  # only 3 leaves nothing to choose: 1 may end, 2 has two codes
    assert (third.codes, third.used, third.prefixes, third.largest_prefix) == (3, 1, 1, 2)
    assert (third.single_child, quality.unique) == (1.0, 5 / 6)
    emptied = measure_quality(index_of([(1,), (2,)])).levels[2]
    assert (emptied.used, emptied.perplexity, emptied.gini, emptied.prefixes, emptied.single_child) == (0, 0, 0, 0, 0)


def imported(tmp_path, sids, name="codes.parquet"):
    pq.write_table(pa.table({"id": names(len(sids)), "sid": sids}), tmp_path / name)
    return import_index(tmp_path / name)


@given(identifiers())
def test_an_import_gives_the_identifiers_back(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("import")
    index = imported(folder, [list(sid) for sid in table])
    lengths = set(map(len, table))
    assert index.ends is (len(lengths) > 1)
    assert index.table.shown(np.arange(len(table))) == table
    assert len(index.sizes) == max(lengths)
    text = imported(folder, ["-".join(map(str, sid)) for sid in table], "texts.parquet")
    assert np.array_equal(text.sids, index.sids)


def test_what_cannot_be_imported_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"lengths \[1, 2\], and some have code 0, which ends .* Add 1 to every code"):
        imported(tmp_path, [[0], [1, 2]])
    with pytest.raises(DataError, match=r"row 2 has no codes\. Expected at least one\."):
        imported(tmp_path, [[1, 2], []])
    with pytest.raises(DataError, match="row 2 has a code that is not a whole number"):
        imported(tmp_path, ["1-2", "1-x-2"])
    np.save(tmp_path / "books.npy", np.ones((2, 4, 2), np.float32))
    pq.write_table(pa.table({"id": ["a", "b"], "sid": [[1], [1, 2]]}), tmp_path / "codes.parquet")
    with pytest.raises(DataError, match="SIDs of unequal length, which have no codebooks"):
        import_index(tmp_path / "codes.parquet", codebooks=tmp_path / "books.npy")


def test_identifiers_that_go_on_behind_their_end_are_refused():
    check_ended(np.array([[1, 0, 0], [1, 2, 3]]), SIZES)
    for bad in ([1, 0, 2], [0, 0, 0]):
        with pytest.raises(ConfigError, match=r"Row 1 has the codes .* nothing but 0 behind it"):
            SidTable(names(2), np.array([[1, 1, 1], bad], np.int16), SIZES, ends=True)
    with pytest.raises(ConfigError, match="do not fit a 64-bit key"):
        SidTable(names(1), np.ones((1, 10), np.int16), (101,) * 10, ends=True)


def test_nothing_can_be_added_to_what_was_imported():
    with pytest.raises(ConfigError, match="imported without a quantiser, so no items can be added"):
        index_of([(1,), (1, 2)]).add(["new"], np.ones((1, 4), np.float32))
