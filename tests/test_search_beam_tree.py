"""The beam as a tree: it shows the very search that ran, and says what it does not show."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.codes import Trie
from restd.errors import ConfigError, DataError
from restd.search import HeadUse, Retriever, SearchOptions, beam_search
from restd.search.beam_tree import beam_tree
from restd.search.generate import Plan
from restd.search.trace import TracedSearch
from tests.steppers import TableStepper, memory_of
from tests.training import make_index, run, write_world

SIZES = (6, 5, 7)
ALL = 10_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    index = make_index(data, folder / "index")
    run(index, data, folder / "compact", objective="restd", updates=20)
    run(index, data, folder / "calir", backbone="calir", updates=20)
    return folder


@pytest.fixture(params=["compact", "calir"])
def retriever(request, folder):
    return Retriever.load(folder / request.param, keep_heads=request.param == "compact")


@pytest.fixture
def compact(folder):
    return Retriever.load(folder / "compact", keep_heads=True)


def made(sids, *, width, seed=0, steps=None, normalized=False):
    """A search of made-up scores over these Semantic IDs."""
    plan = Plan((), (), None, (np.zeros(0, np.int64),), (width,), (width,), (width,))
    stepper = TableStepper(SIZES, seed=seed, steps=steps)
    return TracedSearch(plan, stepper, memory_of([seed]), Trie.of(sids, SIZES), None, normalized)


def titles_of(sids):
    return pa.array([f"item {row}" for row in range(len(sids))])


def drawn(seed, count=60):
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.integers(size, size=count) for size in SIZES]).astype(np.int16)


def kept_at(level):
    return {node.prefix for node in level.nodes if node.kept}


@settings(max_examples=30)
@given(seed=st.integers(0, 99), width=st.integers(1, 70), steps=st.sampled_from([None, 2]), normalized=st.booleans())
def test_kept_nodes_are_the_beams_own_prefixes(seed, width, steps, normalized):
    """Ties included: scores that are multiples of a half are often equal."""
    sids = drawn(seed)
    search = made(sids, width=width, seed=seed, steps=steps, normalized=normalized)
    shown = []
    beams = search.run(width, shown.append)
    tree = beam_tree(search, titles_of(sids), nodes=ALL)
    real = [set(map(tuple, prefixes.tolist())) for prefixes in (level.prefixes[0] for level in shown[1:])]
    for level, prefixes in zip(tree.levels[:-1], real, strict=True):
        stored = {tuple(sid) for sid in sids[:, : level.level].tolist()}
        assert kept_at(level) == prefixes & stored, "slots that hold nothing have made-up prefixes"
    reached = beams.leaves[0] >= 0
    assert kept_at(tree.levels[-1]) == set(map(tuple, beams.sids[0][reached].tolist()))
    best_first = [node.prefix for node in tree.levels[-1].nodes if node.kept]
    assert best_first == list(map(tuple, beams.sids[0][reached].tolist()))


@settings(max_examples=20)
@given(seed=st.integers(0, 99), width=st.integers(1, 70), row=st.integers(0, 59), nodes=st.integers(2, 40))
def test_a_small_tree_is_a_part_of_the_whole_one(seed, width, row, nodes):
    sids = drawn(seed)
    search = made(sids, width=width, seed=seed, steps=3)
    whole = beam_tree(search, titles_of(sids), sid=sids[row].tolist(), nodes=ALL)
    small = beam_tree(search, titles_of(sids), sid=sids[row].tolist(), nodes=nodes)
    for level, full in zip(small.levels, whole.levels, strict=True):
        assert len(level.nodes) <= nodes
        assert (level.candidates, level.survivors, level.edge) == (full.candidates, full.survivors, full.edge)
        described = {node.prefix: (node.score, node.kept, node.rank, node.items, node.example) for node in full.nodes}
        assert all(
            described[node.prefix] == (node.score, node.kept, node.rank, node.items, node.example)
            for node in level.nodes
        )
        assert [node.rank for node in level.nodes] == sorted(node.rank for node in level.nodes)
        kept = sum(node.kept for node in level.nodes)
        assert (level.survivors_hidden, level.pruned_hidden) == (
            full.survivors - kept,
            full.candidates - full.survivors - (len(level.nodes) - kept),
        )
        assert [n.prefix for n in level.nodes if n.on_path] == [n.prefix for n in full.nodes if n.on_path]
    best = [node.prefix for node in whole.levels[-1].nodes if node.kept][: max(1, nodes - nodes // 4 - 1)]
    assert set(best) <= kept_at(small.levels[-1]), "the best answers are always shown"


@settings(max_examples=20)
@given(seed=st.integers(0, 99), width=st.integers(1, 70), nodes=st.integers(2, 40))
def test_every_parent_is_in_the_tree(seed, width, nodes):
    sids = drawn(seed)
    tree = beam_tree(made(sids, width=width, seed=seed), titles_of(sids), sid=sids[0].tolist(), nodes=nodes)
    numbers = [node.id for level in tree.levels for node in level.nodes]
    assert numbers == list(range(len(numbers)))
    above = {None: ()}
    for level in tree.levels:
        for node in level.nodes:
            assert above[node.parent] == node.prefix[:-1]
        above = {node.id: node.prefix for node in level.nodes if node.kept}


@settings(max_examples=20)
@given(seed=st.integers(0, 99), width=st.integers(1, 70))
def test_counts_are_those_of_the_catalogue(seed, width):
    sids = drawn(seed, count=200)
    tree = beam_tree(made(sids, width=width, seed=seed), titles_of(sids), nodes=ALL)
    for level in tree.levels:
        for node in level.nodes:
            below = np.flatnonzero((sids[:, : level.level] == node.prefix).all(axis=1))
            assert node.items == len(below)
            assert int(node.example.split()[1]) in below
    assert tree.levels[0].candidates == len({code for code, *_ in sids.tolist()})


def test_a_pruned_path_ends_where_it_was_pruned():
    sids = drawn(0)
    search = made(sids, width=2)
    _, reached = zip(*(search.trace(torch.from_numpy(sid.astype(np.int64)), 2) for sid in sids), strict=True)
    assert not all(reached)
    for sid, found in zip(sids, reached, strict=True):
        tree = beam_tree(search, titles_of(sids), sid=sid.tolist(), nodes=2)
        path = [node for level in tree.levels for node in level.nodes if node.on_path]
        assert [node.kept for node in path] == [True] * 3 if found else [True] * (len(path) - 1) + [False]
        assert [node.prefix for node in path] == [tuple(sid[: number + 1].tolist()) for number in range(len(path))]


OPTIONS = [
    SearchOptions(k=12, beam=2),
    SearchOptions(k=12, beam=3, widen=False),
    SearchOptions(k=5, beam=5, category_width=1),
    SearchOptions(k=5, beam=6, where=["title~green"], deny=["green-oak-desk"]),
    SearchOptions(k=7, beam=7, score_norm="trie_children"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_path_of_an_item_is_what_explain_says(retriever, options):
    for item in retriever.snapshot.ids.to_pylist()[::7]:
        explanation = retriever.explain("oak desk", item, options=options)
        tree = retriever.beam_tree("oak desk", item, options=options)
        assert tree.beam == explanation.beam
        for trace, level in zip(explanation.levels, tree.levels, strict=True):
            assert (trace.level + 1, trace.candidates, trace.survivors) == (
                level.level,
                level.candidates,
                level.survivors,
            )
            assert trace.edge == level.edge
            path = [(node.rank, node.score, node.kept) for node in level.nodes if node.on_path]
            assert path == ([] if trace.rank is None else [(trace.rank, trace.score, trace.kept)])


@pytest.mark.parametrize("options", OPTIONS)
def test_the_kept_leaves_are_the_beams_answer(retriever, options):
    """Items below the kept leaves, best first, are the list of the search, and as many as the search can give."""
    tree = retriever.beam_tree("oak desk", options=options, nodes=ALL)
    leaves = [node for node in tree.levels[-1].nodes if node.kept]
    rows, scores = retriever.rank(["oak desk"], 60, options=SearchOptions.of(options, beam=tree.beam, widen=False))
    listed = [tuple(retriever.index.sids[row].tolist()) for row in rows[0].tolist() if row >= 0]
    assert list(dict.fromkeys(listed)) == [leaf.prefix for leaf in leaves]
    assert sum(leaf.items for leaf in leaves) == len(listed)
    assert [leaf.score for leaf in leaves] == sorted(set(scores[0][: len(listed)].tolist()), reverse=True)


def test_a_hybrid_search_shows_the_beam_that_proposes(compact):
    compact.set_companions(["bm25"])
    hybrid = compact.beam_tree("oak desk", "red-oak-desk", beam=9, mode="hybrid")
    assert hybrid == compact.beam_tree("oak desk", "red-oak-desk", beam=9)


def test_a_look_ahead_is_in_the_scores(compact):
    use = HeadUse("look-ahead", weight=50.0)
    tree = compact.beam_tree("oak desk", k=1, beam=1, heads=use)
    best = compact.search("oak desk", k=1, beam=1, heads=use)[0]
    assert [node.prefix for node in tree.levels[-1].nodes if node.kept] == [best.sid]
    assert tree.levels[0].nodes != compact.beam_tree("oak desk", k=1, beam=1).levels[0].nodes
    with pytest.raises(ConfigError, match="no beam to explain"):
        compact.beam_tree("oak desk", heads=HeadUse("one-shot"))


def test_heads_that_are_not_there_are_an_error(folder):
    with pytest.raises(ConfigError, match="heads were not loaded"):
        Retriever.load(folder / "compact").beam_tree("oak desk", heads=HeadUse("look-ahead"))


def test_trees_are_plain_values(compact):
    tree = compact.beam_tree("oak desk", "red-oak-desk", beam=3)
    values = json.loads(json.dumps(tree.to_dict()))
    first = values["levels"][0]
    assert first["level"] == 1
    assert first["nodes"][0]["code"] == first["nodes"][0]["prefix"][-1]
    assert sum(node["on_path"] for node in first["nodes"]) == 1
    assert values["beam"] == 10, "as wide as k"


def test_mistakes_are_sentences(compact):
    with pytest.raises(DataError, match="the beam tree names item 'nobody'"):
        compact.beam_tree("oak desk", "nobody")
    with pytest.raises(ConfigError, match="nodes = 1: expected at least 2"):
        compact.beam_tree("oak desk", nodes=1)


def test_watching_does_not_change_the_search():
    sids = drawn(1)
    search = made(sids, width=9)
    plain = beam_search(search.stepper, search.memory, search.trie, width=9)
    watched = search.run(9, lambda level: None)
    assert torch.equal(plain.sids, watched.sids)
    assert torch.equal(plain.scores, watched.scores)
