"""The flat trie against a dictionary of prefixes."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.codes import Trie
from restd.codes.keys import pack, radices, unpack
from restd.codes.trie import _depth, _expand
from restd.errors import ConfigError


@st.composite
def tables(draw):
    sizes = tuple(draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    rows = draw(st.lists(st.tuples(*(st.integers(0, size - 1) for size in sizes)), min_size=1, max_size=40))
    return np.array(rows, np.int16).reshape(-1, len(sizes)), sizes


class DictTrie:
    def __init__(self, sids):
        self.children = defaultdict(set)
        self.rows = defaultdict(list)
        for row, sid in enumerate(map(tuple, sids.tolist())):
            self.rows[sid].append(row)
            for depth in range(len(sid)):
                self.children[sid[:depth]].add(sid[depth])


def check_against_dict(trie, sids, sizes):
    naive = DictTrie(sids)
    frontier = [((), 0)]
    for depth, size in enumerate(sizes):
        assert trie.nodes(depth) == len(frontier)
        nodes = torch.tensor([node for _, node in frontier])
        allowed = trie.children(depth, nodes)
        assert allowed.shape == (len(nodes), size)
        following = []
        for (prefix, node), mask in zip(frontier, allowed, strict=True):
            assert set(mask.nonzero()[:, 0].tolist()) == naive.children[prefix]
            for code in range(size):
                found = int(trie.advance(depth, torch.tensor([node]), torch.tensor([code]))[0])
                assert (found >= 0) == (code in naive.children[prefix])
                if found >= 0:
                    following.append(((*prefix, code), found))
        frontier = following
        assert [node for _, node in frontier] == list(range(len(frontier)))
    assert [prefix for prefix, _ in frontier] == sorted(naive.rows)
    assert trie.items_of(torch.arange(trie.leaves)) == [naive.rows[prefix] for prefix, _ in frontier]
    assert trie.sids().tolist() == [list(prefix) for prefix, _ in frontier]


@given(tables())
def test_spans_hold_the_items_below_every_prefix(table):
    sids, sizes = table
    for items in (sids, np.unique(sids, axis=0)):
        trie, own = Trie.of(items, sizes), torch.from_numpy(items.astype(np.int64))
        for depth in range(trie.levels + 1):
            starts, ends = trie.spans(depth, torch.arange(trie.nodes(depth)))
            assert starts.tolist() == [0, *ends[:-1].tolist()], "one node after the other"
            assert int(ends[-1]) == len(trie.rows)
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                below = own[trie.rows[start:end]][:, :depth]
                assert len(below)
                assert (below == below[0]).all()


@given(tables())
def test_a_copy_on_a_device_is_the_same(table):
    trie = Trie.of(*table)
    copy, leaves = trie.to("cpu"), torch.arange(trie.leaves)
    assert copy.items_of(leaves) == trie.items_of(leaves)
    assert torch.equal(copy.sids(), trie.sids())


@given(tables())
def test_equals_a_dictionary(table):
    sids, sizes = table
    check_against_dict(Trie.of(sids, sizes), sids, sizes)


@given(tables(), st.data())
def test_lists_serve_as_well_as_bitmaps(table, data):
    sids, sizes = table
    trie = Trie.of(sids, sizes)
    bare = Trie(
        tuple(type(depth)(depth.first_child, depth.codes, None, depth.size, depth.fanout) for depth in trie.depths),
        trie.leaf_first,
        trie.rows,
    )
    check_against_dict(bare, sids, sizes)


@given(tables(), st.randoms(use_true_random=False))
def test_restriction_equals_a_trie_of_fewer_items(table, random):
    sids, sizes = table
    keep = np.array([random.random() < 0.5 for _ in sids])
    trie = Trie.of(sids, sizes)
    if not keep.any():
        with pytest.raises(ConfigError):
            trie.restrict(torch.from_numpy(keep))
        return
    smaller = trie.restrict(torch.from_numpy(keep))
    rebuilt = Trie.of(sids[keep], sizes)
    kept = np.flatnonzero(keep)
    assert smaller.sids().tolist() == rebuilt.sids().tolist()
    everything = torch.arange(rebuilt.leaves)
    expected = [[int(kept[row]) for row in rows] for rows in rebuilt.items_of(everything)]
    assert smaller.items_of(everything) == expected
    for ours, theirs in zip(smaller.depths, rebuilt.depths, strict=True):
        assert ours.first_child.tolist() == theirs.first_child.tolist()
        assert ours.codes.tolist() == theirs.codes.tolist()
        assert (ours.bitmap is None) == (theirs.bitmap is None)
        if ours.bitmap is not None and theirs.bitmap is not None:
            assert ours.bitmap.tolist() == theirs.bitmap.tolist()


@given(tables())
def test_find(table):
    sids, sizes = table
    trie = Trie.of(sids, sizes)
    everything = unpack(np.arange(min(np.prod(sizes), 400)), sizes)
    stored = set(map(tuple, sids.tolist()))
    found = trie.find(torch.from_numpy(everything.astype(np.int64))).tolist()
    assert [leaf >= 0 for leaf in found] == [tuple(sid) in stored for sid in everything.tolist()]


@given(tables())
def test_keys_keep_the_order_and_come_back(table):
    sids, sizes = table
    keys = pack(sids, sizes)
    assert unpack(keys, sizes).tolist() == sids.tolist()
    assert sorted(map(tuple, sids.tolist())) == [tuple(sid) for sid in sids[np.argsort(keys, kind="stable")].tolist()]


def test_large_tries_drop_bitmaps_where_children_are_few(rng):
    sids = np.unique(rng.integers(0, 256, (60_000, 4)), axis=0).astype(np.int16)
    trie = Trie.of(sids, (256,) * 4)
    assert [depth.bitmap is not None for depth in trie.depths] == [True, True, False, False]
    chosen = torch.from_numpy(sids[rng.integers(0, len(sids), 500)].astype(np.int64))
    leaves = trie.find(chosen)
    assert trie.sids()[leaves].tolist() == chosen.tolist()
    stored = set(map(tuple, sids.tolist()))
    others = [sid for sid in map(tuple, rng.integers(0, 256, (500, 4)).tolist()) if sid not in stored]
    siblings = [(*sid[:3], code) for sid in sids[:20].tolist() for code in (0, 128, 255)]
    absent = [*others, *(sid for sid in siblings if sid not in stored)]
    assert len(absent) > 500
    assert (trie.find(torch.tensor(absent)) == -1).all()


def test_too_many_addresses_for_a_key():
    with pytest.raises(ConfigError, match="64-bit"):
        radices((256,) * 8)


def test_an_empty_trie_is_refused():
    with pytest.raises(ConfigError, match="at least one item"):
        Trie.of(np.empty((0, 2), np.int16), (4, 4))


def test_no_prefix_and_no_such_code_lead_nowhere(rng):
    small = np.array([[0, 1], [2, 3]], np.int16)
    large = np.unique(rng.integers(0, 256, (60_000, 4)), axis=0).astype(np.int16)
    for trie in (Trie.of(small, (4, 4)), Trie.of(large, (256,) * 4)):
        for depth in range(trie.levels):
            assert not trie.children(depth, torch.tensor([-1])).any()
            for node, code in ((-1, 0), (0, -1), (0, 9999)):
                assert trie.advance(depth, torch.tensor([node]), torch.tensor([code])).tolist() == [-1]


@pytest.mark.parametrize(
    ("nodes", "leaves", "dense"),
    [(1, 1, True), (16, 16, True), (17, 17, False), (17, 17_408, True), (17, 17_407, False)],
)
def test_bitmaps_are_kept_up_to_64_kib_or_four_bytes_a_leaf(nodes, leaves, dense):
    """A bitmap of 32,761 codes or more takes 4,096 bytes."""
    edges, codes = torch.arange(nodes + 1, dtype=torch.int32), torch.zeros(nodes, dtype=torch.int16)
    for size in (32_761, 32_767):
        depth = _depth(edges, codes, size, leaves=leaves)
        assert (depth.bitmap is not None) == dense
        assert (depth.size, depth.fanout) == (size, 1)


def test_ranges_are_written_out():
    row, child = _expand(torch.tensor([2, 5, 5]), torch.tensor([4, 5, 8]))
    assert (row.tolist(), child.tolist()) == ([0, 0, 2, 2, 2], [2, 3, 5, 6, 7])


@given(tables())
def test_lists_of_codes_answer_as_bitmaps_do(table):
    trie = Trie.of(*table)
    listed = replace(trie, depths=tuple(replace(depth, bitmap=None) for depth in trie.depths))
    check_against_dict(listed, *table)
    for depth in range(trie.levels):
        nodes = torch.arange(-1, trie.nodes(depth))
        assert torch.equal(listed.children(depth, nodes), trie.children(depth, nodes))


def test_leaves_of_one_item_each_need_no_list_of_items():
    sids = np.stack([np.arange(400) // 20, np.arange(400) % 20], axis=1).astype(np.int16)
    assert Trie.of(sids, (20, 20)).leaf_first is None
    shared = np.concatenate([sids, sids[:1]])
    trie = Trie.of(shared, (20, 20))
    assert trie.leaf_first is not None
    keep = torch.ones(401, dtype=torch.bool)
    assert trie.restrict(keep).leaf_first is not None
    keep[400] = False
    assert trie.restrict(keep).leaf_first is None
