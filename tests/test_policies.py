"""Every collision policy against a naive dictionary, on random codebooks, crowds and capacities."""

import math
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.errors import CapacityError, ConfigError
from restd.index import POLICIES, Problem, policy_named
from restd.index.policies import min_distortion, none, single_substitution, sinkhorn_last, suffix
from restd.quantize import Codebooks, assign, last_residuals


@dataclass(frozen=True)
class Case:
    """Random books and latents, many of them repeated, never more than there are addresses.

    Numbers are drawn in the strategy and the problem is made in the test: the type checker, which is on in tests, uses
    random numbers of its own, and hypothesis allows none while it draws.
    """

    sizes: tuple[int, ...]
    seed: int
    items: int
    distinct: int
    held: int | None

    def problem(self):
        rng = np.random.default_rng(self.seed)
        books = Codebooks.of([rng.normal(size=(size, 3)) / (level + 1) for level, size in enumerate(self.sizes)])
        latents = rng.normal(size=(self.distinct, 3)).astype(np.float16)[rng.integers(0, self.distinct, self.items)]
        raw = assign(latents, books)
        if self.held is None:
            return Problem(latents, raw, books)
        addresses = np.array(list(product(*(range(size) for size in self.sizes))), np.int16)
        return Problem(latents, raw, books, taken=addresses[rng.choice(len(addresses), self.held, replace=False)])


@st.composite
def cases(draw, *, with_taken=True):
    sizes = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    items = draw(st.integers(1, min(math.prod(sizes), 40)))
    room = min(math.prod(sizes) - items, 20)
    held = draw(st.none() | st.integers(0, room)) if with_taken else None
    return Case(sizes, draw(st.integers(0, 2**32 - 1)), items, draw(st.integers(1, items)), held)


def as_tuples(sids):
    return [tuple(sid) for sid in sids.tolist()]


def naive_single_substitution(problem):
    """The rule word by word: keep the best of each group, then let the others choose in row order."""
    books = problem.codebooks
    errors = np.square(last_residuals(problem.latents, problem.raw, books)).sum(1)
    taken = set(as_tuples(problem.taken)) if problem.taken is not None else set()
    older = set(taken)
    raw = as_tuples(problem.raw)
    keeps = {}
    for row, sid in enumerate(raw):
        if sid not in older and (sid not in keeps or errors[row] < errors[keeps[sid]]):
            keeps[sid] = row
    taken |= set(keeps)
    stored = list(raw)
    costs = {}
    for row, sid in enumerate(raw):
        if keeps.get(sid) == row:
            continue
        for changes in range(1, books.levels + 1):
            options = []
            for levels in combinations(range(books.levels), changes):
                for codes in product(*(range(books.sizes[level]) for level in levels)):
                    if any(sid[level] == code for level, code in zip(levels, codes, strict=True)):
                        continue
                    other = list(sid)
                    for level, code in zip(levels, codes, strict=True):
                        other[level] = code
                    if tuple(other) not in taken:
                        left = last_residuals(problem.latents[row : row + 1], np.array([other]), books)
                        options.append((float(np.square(left).sum()), tuple(other)))
            if options:
                costs[row], stored[row] = min(options)
                taken.add(stored[row])
                break
    return stored, costs


@given(cases())
def test_single_substitution_follows_its_rule(case):
    problem = case.problem()
    found = single_substitution(problem)
    stored = as_tuples(found.sids)
    expected, costs = naive_single_substitution(problem)
    for row, (ours, theirs) in enumerate(zip(stored, expected, strict=True)):
        if ours == theirs:
            continue
        changed = sum(a != b for a, b in zip(ours, problem.raw[row].tolist(), strict=True))
        if changed <= 2:  # beyond two changes only blocks are in order; up to two, only a tie may differ
            left = last_residuals(problem.latents[row : row + 1], np.array([ours]), problem.codebooks)
            assert np.square(left).sum() == pytest.approx(costs[row], rel=1e-4, abs=1e-6)
        break  # choices after a tie rest on another set of free addresses


@given(cases(), st.sampled_from([single_substitution, min_distortion]))
def test_unique_policies_give_every_item_its_own_address(case, policy):
    problem = case.problem()
    found = policy(problem)
    stored = as_tuples(found.sids)
    older = as_tuples(problem.taken) if problem.taken is not None else []
    assert len(set(stored + older)) == len(stored) + len(older)
    assert (found.sids < np.array(found.sizes)).all()
    assert (found.sids >= 0).all()
    assert (found.edited == (found.sids != problem.raw)).all()
    alone = [row for row, sid in enumerate(as_tuples(problem.raw)) if as_tuples(problem.raw).count(sid) == 1]
    assert not [row for row in alone if tuple(problem.raw[row].tolist()) not in older and found.edited[row].any()]


@given(cases())
def test_policies_are_deterministic(case):
    problem = case.problem()
    for name, policy in POLICIES.items():
        if name == "suffix":
            continue
        assert as_tuples(policy(problem).sids) == as_tuples(policy(problem).sids)


@given(cases(with_taken=False))
def test_suffix_numbers_each_group(case):
    problem = case.problem()
    found = suffix(problem)
    assert as_tuples(found.sids[:, :-1]) == as_tuples(problem.raw)
    seen = {}
    for sid, number in zip(as_tuples(problem.raw), found.sids[:, -1].tolist(), strict=True):
        assert number == seen.get(sid, 0)
        seen[sid] = number + 1
    assert not found.edited.any()
    assert found.sizes[-1] >= max(seen.values())


@given(cases(with_taken=False), st.integers(1, 39))
def test_suffix_of_added_items_avoids_held_numbers(case, cut):
    problem = case.problem()
    cut = min(cut, len(problem.raw))
    first = suffix(Problem(problem.latents[:cut], problem.raw[:cut], problem.codebooks))
    roomy = (*problem.codebooks.sizes, 64)
    more = suffix(Problem(problem.latents[cut:], problem.raw[cut:], problem.codebooks, taken=first.sids, sizes=roomy))
    every = as_tuples(first.sids) + as_tuples(more.sids)
    assert len(set(every)) == len(every)
    assert as_tuples(more.sids[:, :-1]) == as_tuples(problem.raw[cut:])


@given(cases())
def test_sinkhorn_changes_the_last_level_only_and_never_adds_collisions(case):
    problem = case.problem()
    found = sinkhorn_last(problem)
    assert (found.sids[:, :-1] == problem.raw[:, :-1]).all()
    assert (found.sids[:, -1] < problem.codebooks.sizes[-1]).all()
    if problem.taken is None:
        assert len(set(as_tuples(found.sids))) >= len(set(as_tuples(problem.raw)))


@given(cases())
def test_none_keeps_everything(case):
    problem = case.problem()
    found = none(problem)
    assert (found.sids == problem.raw).all()
    assert not found.edited.any()


def crowded(items, sizes, *, dim=2):
    rng = np.random.default_rng(3)
    books = Codebooks.of([rng.normal(size=(size, dim)) for size in sizes])
    latents = np.repeat(rng.normal(size=(1, dim)).astype(np.float16), items, axis=0)
    return Problem(latents, assign(latents, books), books)


@pytest.mark.parametrize("policy", [single_substitution, min_distortion])
def test_identical_items_fill_the_last_address(policy):
    problem = crowded(4 * 3 * 5 * 2, (4, 3, 5, 2))
    assert len(set(as_tuples(policy(problem).sids))) == 120


def test_thousands_of_identical_items_are_no_trouble():
    problem = crowded(6_000, (64, 64, 64))
    found = single_substitution(problem)
    assert len(set(as_tuples(found.sids))) == 6_000
    changes = found.edited.sum(1)
    assert (changes == 1).sum() == 3 * 63
    assert (changes == 2).sum() == 6_000 - 1 - 3 * 63


@pytest.mark.parametrize("policy", [single_substitution, min_distortion])
def test_more_items_than_addresses_says_what_would_do(policy):
    with pytest.raises(CapacityError, match=r"33 items do not fit the 32 addresses.*use 6 levels.*or 3 codes"):
        policy(crowded(33, (2, 2, 2, 2, 2)))


def test_suffix_capacity_is_told():
    problem = crowded(10, (2, 2))
    with pytest.raises(CapacityError, match="room for 4"):
        suffix(Problem(problem.latents, problem.raw, problem.codebooks, sizes=(2, 2, 4)))


def test_unknown_policy_lists_the_known():
    with pytest.raises(ConfigError, match="single_substitution, min_distortion, sinkhorn_last, suffix, none"):
        policy_named("wishful")


def test_edits_rise_with_depth_and_level_one_conflicts_are_its_edits(rng):
    """The paper's pattern: conflicts are at least the edits, and equal at level 1."""
    centres = rng.normal(size=(40, 16))
    latents = (centres[rng.integers(0, 40, 4_000)] + 0.15 * rng.normal(size=(4_000, 16))).astype(np.float16)
    from restd.quantize import KMeansConfig, fit_kmeans, nearest

    books = fit_kmeans(latents, KMeansConfig(codes=16, dim=16, normalize=False), items=4_000).codebooks
    points = latents - latents.mean(0)
    raw = assign(points.astype(np.float16), books)
    found = single_substitution(Problem(points.astype(np.float16), raw, books))
    edited = found.edited.mean(0)
    assert edited[-1] > edited[0]
    assert edited.sum() > 0.02
    first = nearest(points.astype(np.float32), books.level(0))
    assert (first != found.sids[:, 0]).mean() == edited[0]
