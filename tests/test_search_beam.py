"""The beam against brute force, on tables of numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.codes import Trie
from restd.errors import ConfigError
from restd.search import beam_search, exact_rank, exact_scores
from tests.steppers import TableStepper, memory_of, score_of

worlds = st.tuples(
    st.lists(st.integers(2, 4), min_size=1, max_size=4),
    st.integers(0, 10_000),
    st.integers(1, 30),
    st.sampled_from([None, 1, 2]),
)


def world(drawn):
    sizes, seed, count, steps = drawn
    rng = np.random.default_rng(seed)
    sids = np.stack([rng.integers(0, size, count) for size in sizes], axis=1).astype(np.int16)
    return TableStepper(sizes, seed=seed, steps=steps), Trie.of(sids, sizes), sids


def brute_force(stepper, number, sids):
    """Every SID with its score, best first, ties in SID order."""
    known = {tuple(sid) for sid in sids.tolist()}
    return sorted(((score_of(stepper, number, sid), sid) for sid in known), key=lambda pair: (-pair[0], pair[1]))


def filled(beams, query):
    kept = beams.leaves[query] >= 0
    sids = [tuple(sid) for sid in beams.sids[query][kept].tolist()]
    return sids, beams.scores[query][kept].tolist()


@given(worlds)
@settings(max_examples=40)
def test_a_beam_as_wide_as_the_catalogue_is_exact(drawn):
    stepper, trie, sids = world(drawn)
    beams = beam_search(stepper, memory_of([3, 4]), trie, width=len(sids))
    exact = exact_scores(stepper, memory_of([3, 4]), trie, rows=5)
    for query, number in enumerate((3, 4)):
        wanted = brute_force(stepper, number, sids)
        found, scores = filled(beams, query)
        assert found == [sid for _, sid in wanted]
        assert scores == pytest.approx([score for score, _ in wanted], abs=1e-5)
        by_leaf = dict(zip(map(tuple, trie.sids().tolist()), exact[query].tolist(), strict=True))
        assert [by_leaf[sid] for sid in found] == pytest.approx(scores, abs=1e-5)
        leaves = beams.leaves[query][beams.leaves[query] >= 0]
        ranks = exact_rank(exact[[query]].expand(len(leaves), -1), leaves)
        better = [sum(other > score + 1e-6 for other in scores) for score in scores]
        if drawn[3]:
            assert ranks.tolist() == [1 + count for count in better]


@given(worlds, st.integers(1, 6))
@settings(max_examples=40)
def test_only_stored_sids_come_back_each_once_and_as_many_as_there_are(drawn, width):
    stepper, trie, sids = world(drawn)
    known = {tuple(sid) for sid in sids.tolist()}
    found, scores = filled(beam_search(stepper, memory_of([1]), trie, width=width), 0)
    assert set(found) <= known
    assert len(set(found)) == len(found) == min(width, len(known))
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx([score_of(stepper, 1, sid) for sid in found], abs=1e-5)


@given(worlds, st.integers(1, 6))
@settings(max_examples=30)
def test_a_query_is_answered_alike_alone_and_in_a_batch(drawn, width):
    stepper, trie, _ = world(drawn)
    together = beam_search(stepper, memory_of([5, 6, 7]), trie, width=width)
    for query, number in enumerate((5, 6, 7)):
        assert filled(together, query) == filled(beam_search(stepper, memory_of([number]), trie, width=width), 0)


@given(worlds, st.lists(st.integers(1, 9), min_size=3, max_size=3), st.booleans())
@settings(max_examples=40)
def test_every_query_has_its_own_width(drawn, widths, normalized):
    """Ties included: what a query keeps does not depend on how wide the others are."""
    stepper, trie, _ = world(drawn)
    together = beam_search(stepper, memory_of([5, 6, 7]), trie, width=widths, trie_normalized=normalized)
    for query, (number, width) in enumerate(zip((5, 6, 7), widths, strict=True)):
        alone = beam_search(stepper, memory_of([number]), trie, width=width, trie_normalized=normalized)
        assert filled(together, query) == filled(alone, 0)


@given(worlds, st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=30)
def test_a_restricted_trie_is_brute_force_over_what_is_left(drawn, width, seed):
    stepper, trie, sids = world(drawn)
    keep = np.random.default_rng(seed).random(len(sids)) < 0.5
    keep[0] = True
    restricted = trie.restrict(torch.from_numpy(keep))
    found, _ = filled(beam_search(stepper, memory_of([2]), restricted, width=len(sids)), 0)
    assert found == [sid for _, sid in brute_force(stepper, 2, sids[keep])]
    assert len(filled(beam_search(stepper, memory_of([2]), restricted, width=width), 0)[0]) == min(width, len(found))


@given(worlds)
@settings(max_examples=20)
def test_children_share_one_probability(drawn):
    stepper, trie, sids = world(drawn)
    exact = exact_scores(stepper, memory_of([8]), trie, trie_normalized=True)
    assert float(exact.exp().sum()) == pytest.approx(1.0, abs=1e-4)
    beams = beam_search(stepper, memory_of([8]), trie, width=len(sids), trie_normalized=True)
    kept = beams.leaves[0] >= 0
    assert torch.allclose(exact[0, beams.leaves[0][kept]], beams.scores[0][kept], atol=1e-5)


def test_without_a_trie_every_code_follows_every_other():
    stepper = TableStepper((3, 2))
    beams = beam_search(stepper, memory_of([1]), None, width=6)
    every = np.array([[first, second] for first in range(3) for second in range(2)], np.int16)
    assert [tuple(sid) for sid in beams.sids[0].tolist()] == [sid for _, sid in brute_force(stepper, 1, every)]


def test_a_narrow_beam_loses_what_a_wide_one_finds():
    sids = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), -1).reshape(-1, 3).astype(np.int16)
    trie = Trie.of(sids, (4, 4, 4))
    lost = 0
    for seed in range(20):
        stepper = TableStepper((4, 4, 4), seed=seed)
        narrow = beam_search(stepper, memory_of([1]), trie, width=1).scores[0, 0]
        lost += bool(narrow < beam_search(stepper, memory_of([1]), trie, width=64).scores[0, 0] - 1e-6)
    assert lost > 0


def test_no_beam_at_all_is_refused():
    trie = Trie.of(np.zeros((1, 1), np.int16), (2,))
    with pytest.raises(ConfigError, match="A beam of 0 keeps nothing"):
        beam_search(TableStepper((2,)), memory_of([1]), trie, width=0)


@pytest.mark.parametrize("widths", [0, [], [3, 0]])
def test_a_width_of_nothing_is_named(widths):
    trie = Trie.of(np.zeros((1, 1), np.int16), (2,))
    with pytest.raises(ConfigError, match="A beam of 0 keeps nothing; expected a width of at least 1"):
        beam_search(TableStepper((2,)), memory_of([1, 2]), trie, width=widths)


def best_below(trie, exact):
    """Of every prefix, node by node at each length: the best score of a SID that begins with it."""
    sids = trie.sids()
    tables = []
    for length in range(1, trie.levels + 1):
        number = torch.unique(sids[:, :length], dim=0, return_inverse=True)[1]
        tables.append(torch.stack([exact[:, number == node].amax(1) for node in number.unique()], dim=1))
    return tables


@given(worlds, st.booleans())
@settings(max_examples=40)
def test_who_knows_the_best_below_each_prefix_finds_it_with_one_beam(drawn, normalized):
    """The estimate decides what is kept, and is no part of the score that comes back."""
    stepper, trie, _ = world(drawn)
    exact = exact_scores(stepper, memory_of([3, 4]), trie, trie_normalized=normalized)
    tables, seen = best_below(trie, exact), []

    def look_ahead(level, nodes):
        seen.append(level)
        assert nodes.min() >= -1
        known = tables[level].gather(1, nodes.clamp_min(0).flatten(1)).view(nodes.shape)
        return torch.where(nodes >= 0, 1e4 * known, 0.0)  # so much that nothing else decides

    options = {"trie_normalized": normalized, "look_ahead": look_ahead}
    beams = beam_search(stepper, memory_of([3, 4]), trie, width=1, **options)
    assert beams.scores[:, 0].tolist() == pytest.approx(exact.amax(1).tolist(), abs=1e-3)
    found = exact.gather(1, beams.leaves)[:, 0]
    assert beams.scores[:, 0].tolist() == pytest.approx(found.tolist(), abs=1e-5)
    assert seen == list(range(trie.levels - 1))
    wide = beam_search(stepper, memory_of([3, 4]), trie, width=trie.leaves + 3, **options)
    assert ((wide.leaves >= 0).sum(1) == trie.leaves).all()
    assert (wide.scores[wide.leaves < 0] == -torch.inf).all(), "a place without a SID never has a score"


def test_a_watcher_sees_what_could_be_kept_and_what_was():
    stepper = TableStepper((3, 2), seed=5)
    trie = Trie.of(np.array([[0, 0], [0, 1], [2, 1]], np.int16), (3, 2))
    levels = []
    beams = beam_search(stepper, memory_of([1]), trie, width=2, watch=levels.append)
    first, second = levels
    scored = stepper.start(memory_of([1]))[0][0, 0].tolist()
    assert (first.level, second.level) == (0, 1)
    assert (first.prefixes.shape, second.prefixes.tolist()) == ((1, 1, 0), [[[0], [2]]])
    assert first.candidates.tolist() == [[[scored[0], -np.inf, scored[2]]]]
    assert first.kept.tolist() == [[scored[0], scored[2]]]
    wanted = [[score_of(stepper, 1, (0, 0)), score_of(stepper, 1, (0, 1))], [-np.inf, score_of(stepper, 1, (2, 1))]]
    assert second.candidates[0, :, :2].tolist() == [pytest.approx(row) for row in wanted]
    assert (second.candidates[0, :, 2:] == -np.inf).all()
    assert sorted(second.kept[0].tolist(), reverse=True) == beams.scores[0].tolist()


@pytest.mark.parametrize("rows", [1, 2, 3, 4096])
def test_exact_scores_do_not_depend_on_the_size_of_blocks(rows):
    stepper, trie, _ = world(([4, 3, 4], 1, 30, None))
    found = exact_scores(stepper, memory_of([1, 2, 3]), trie, rows=rows)
    wanted = [[score_of(stepper, number, sid) for sid in trie.sids().tolist()] for number in (1, 2, 3)]
    assert [pytest.approx(row, abs=1e-5) for row in wanted] == found.tolist()


def test_equal_scores_share_a_rank():
    scores = torch.tensor([[0.5, 2.0, 2.0, 1.0]])
    assert [exact_rank(scores, torch.tensor([leaf])).item() for leaf in range(4)] == [4, 1, 1, 3]


def test_beams_without_a_sid_are_marked():
    trie = Trie.of(np.array([[0, 1], [2, 0]], np.int16), (3, 2))
    beams = beam_search(TableStepper((3, 2)), memory_of([1]), trie, width=4)
    assert sorted(beams.leaves[0].tolist()) == [-1, -1, 0, 1]
    assert beams.scores[0, 2:].tolist() == [-np.inf, -np.inf]


def test_of_equal_sids_the_first_are_kept():
    trie = Trie.of(np.arange(40, dtype=np.int16)[:, None], (40,))
    stepper = TableStepper((40,), steps=1e-9)  # every score is zero
    for width in (1, 2, 39):
        assert beam_search(stepper, memory_of([1, 2]), trie, width=width).leaves.tolist() == [list(range(width))] * 2
    narrow, wide = beam_search(stepper, memory_of([1, 2]), trie, width=[5, 30]).leaves.tolist()
    assert (narrow[:5], narrow[5:], wide) == (list(range(5)), [-1] * 25, list(range(30)))
