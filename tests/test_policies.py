"""Every collision policy against a naive dictionary, on random codebooks, crowds and capacities."""

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.codes import Codebooks, as_tensor, assign, last_residuals, nearest, trajectory
from restd.errors import CapacityError, ConfigError
from restd.index import POLICIES, CollisionProblem, IndexConfig
from restd.index.collisions import min_distortion, none, single_substitution, sinkhorn_last, suffix
from restd.quantize import KMeansConfig, fit_kmeans


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
    occupied: int | None

    def problem(self):
        rng = np.random.default_rng(self.seed)
        books = Codebooks.of([rng.normal(size=(size, 3)) / (level + 1) for level, size in enumerate(self.sizes)])
        latents = rng.normal(size=(self.distinct, 3)).astype(np.float16)[rng.integers(0, self.distinct, self.items)]
        raw = assign(as_tensor(latents), books).numpy()
        if self.occupied is None:
            return CollisionProblem(latents, raw, books)
        addresses = np.array(list(product(*(range(size) for size in self.sizes))), np.int16)
        return CollisionProblem(
            latents, raw, books, occupied=addresses[rng.choice(len(addresses), self.occupied, replace=False)]
        )


@st.composite
def cases(draw, *, with_occupied=True):
    sizes = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    items = draw(st.integers(1, min(math.prod(sizes), 40)))
    room = min(math.prod(sizes) - items, 20)
    occupied = draw(st.none() | st.integers(0, room)) if with_occupied else None
    return Case(sizes, draw(st.integers(0, 2**32 - 1)), items, draw(st.integers(1, items)), occupied)


def as_tuples(sids):
    return [tuple(sid) for sid in sids.tolist()]


def error_of(problem, rows, codes):
    """‖r_L‖² of some items under given codes."""
    left = last_residuals(as_tensor(problem.latents[list(rows)]), as_tensor(codes), problem.codebooks)
    return left.square().sum(1).numpy()


def check_single_substitution(problem, stored):
    """The rule word by word: the best of each group keeps its SID, then the others choose in row order.

    Every choice is judged against what is free at its turn, after the choices made before it, so that a tie decided
    otherwise does not end the check.
    """
    sizes = problem.codebooks.sizes
    raw = as_tuples(problem.raw)
    used = set(as_tuples(problem.occupied)) if problem.occupied is not None else set()
    errors = error_of(problem, range(len(raw)), problem.raw)
    keeps = {}
    for row, sid in enumerate(raw):
        if sid not in used and (sid not in keeps or errors[row] < errors[keeps[sid]]):
            keeps[sid] = row
    used |= set(keeps)
    everything = list(product(*(range(size) for size in sizes)))
    for row, sid in enumerate(raw):
        if keeps.get(sid) == row:
            assert stored[row] == sid
            continue
        changes = {other: sum(a != b for a, b in zip(other, sid, strict=True)) for other in everything}
        free = [other for other in everything if other not in used]
        fewest = min(changes[other] for other in free)
        assert stored[row] in free
        assert changes[stored[row]] == fewest
        options = [other for other in free if changes[other] == fewest]
        costs = dict(zip(options, error_of(problem, [row] * len(options), np.array(options)), strict=True))
        if fewest <= 2:  # beyond two changes only blocks of two levels are in order
            assert costs[stored[row]] == pytest.approx(min(costs.values()), rel=1e-4, abs=1e-6)
        used.add(stored[row])


@given(cases())
def test_single_substitution_follows_its_rule(case):
    problem = case.problem()
    check_single_substitution(problem, as_tuples(single_substitution(problem).sids))


@pytest.mark.parametrize("fault", ["dearer", "more changes", "wrong keeper"])
def test_the_check_of_the_rule_sees_a_fault(fault):
    problem = crowded(3, (4, 4, 4))
    problem = replace(problem, latents=problem.latents + np.array([[0.0], [0.01], [0.02]], np.float16))
    stored = as_tuples(single_substitution(problem).sids)
    check_single_substitution(problem, stored)
    keeper = next(row for row, sid in enumerate(stored) if sid == tuple(problem.raw[row].tolist()))
    loser = next(row for row in range(3) if row != keeper)
    raw = stored[keeper]
    if fault == "wrong keeper":
        stored[keeper], stored[loser] = stored[loser], stored[keeper]
    elif fault == "more changes":
        stored[loser] = tuple((code + 1) % 4 for code in raw)
    else:
        single = [(*raw[:level], code, *raw[level + 1 :]) for level in range(3) for code in range(4)]
        stored[loser] = max(single, key=lambda sid: float(error_of(problem, [loser], np.array([sid]))[0]))
    with pytest.raises(AssertionError):
        check_single_substitution(problem, stored)


@given(cases(), st.sampled_from([single_substitution, min_distortion]))
def test_unique_policies_give_every_item_its_own_address(case, policy):
    problem = case.problem()
    resolution = policy(problem)
    stored = as_tuples(resolution.sids)
    older = as_tuples(problem.occupied) if problem.occupied is not None else []
    assert len(set(stored + older)) == len(stored) + len(older)
    assert (resolution.sids < np.array(resolution.sizes)).all()
    assert (resolution.sids >= 0).all()
    assert (resolution.edited == (resolution.sids != problem.raw)).all()
    alone = [row for row, sid in enumerate(as_tuples(problem.raw)) if as_tuples(problem.raw).count(sid) == 1]
    assert not [row for row in alone if tuple(problem.raw[row].tolist()) not in older and resolution.edited[row].any()]


@given(cases())
def test_policies_are_deterministic(case):
    problem = case.problem()
    for policy in POLICIES.entries():
        if policy.name != "suffix":
            assert as_tuples(policy.resolve(problem).sids) == as_tuples(policy.resolve(problem).sids)


@given(cases(with_occupied=False))
def test_suffix_numbers_each_group(case):
    problem = case.problem()
    resolution = suffix(problem)
    assert as_tuples(resolution.sids[:, :-1]) == as_tuples(problem.raw)
    seen = {}
    for sid, number in zip(as_tuples(problem.raw), resolution.sids[:, -1].tolist(), strict=True):
        assert number == seen.get(sid, 0)
        seen[sid] = number + 1
    assert not resolution.edited.any()
    assert resolution.sizes[-1] >= max(seen.values())


@given(cases(with_occupied=False), st.integers(1, 39))
def test_suffix_of_added_items_avoids_used_numbers(case, cut):
    problem = case.problem()
    cut = min(cut, len(problem.raw))
    first = suffix(CollisionProblem(problem.latents[:cut], problem.raw[:cut], problem.codebooks))
    roomy = (*problem.codebooks.sizes, 64)
    more = suffix(
        CollisionProblem(problem.latents[cut:], problem.raw[cut:], problem.codebooks, occupied=first.sids, sizes=roomy)
    )
    every = as_tuples(first.sids) + as_tuples(more.sids)
    assert len(set(every)) == len(every)
    assert as_tuples(more.sids[:, :-1]) == as_tuples(problem.raw[cut:])


@given(cases())
def test_sinkhorn_changes_the_last_level_only_and_never_adds_collisions(case):
    problem = case.problem()
    resolution = sinkhorn_last(problem)
    assert (resolution.sids[:, :-1] == problem.raw[:, :-1]).all()
    assert (resolution.sids[:, -1] < problem.codebooks.sizes[-1]).all()
    if problem.occupied is None:
        assert len(set(as_tuples(resolution.sids))) >= len(set(as_tuples(problem.raw)))


@given(cases())
def test_none_keeps_everything(case):
    problem = case.problem()
    resolution = none(problem)
    assert (resolution.sids == problem.raw).all()
    assert not resolution.edited.any()


def crowded(items, sizes, *, dim=2):
    rng = np.random.default_rng(3)
    books = Codebooks.of([rng.normal(size=(size, dim)) for size in sizes])
    latents = np.repeat(rng.normal(size=(1, dim)).astype(np.float16), items, axis=0)
    return CollisionProblem(latents, assign(as_tensor(latents), books).numpy(), books)


@pytest.mark.parametrize("policy", [single_substitution, min_distortion])
def test_identical_items_fill_the_last_address(policy):
    problem = crowded(4 * 3 * 5 * 2, (4, 3, 5, 2))
    assert len(set(as_tuples(policy(problem).sids))) == 120


def test_thousands_of_identical_items_are_no_trouble():
    problem = crowded(6_000, (64, 64, 64))
    resolution = single_substitution(problem)
    assert len(set(as_tuples(resolution.sids))) == 6_000
    changes = resolution.edited.sum(1)
    assert (changes == 1).sum() == 3 * 63
    assert (changes == 2).sum() == 6_000 - 1 - 3 * 63


@pytest.mark.parametrize("policy", [single_substitution, min_distortion])
def test_more_items_than_addresses_says_what_would_do(policy):
    with pytest.raises(CapacityError, match=r"33 items do not fit the 32 addresses.*use 6 levels.*or 3 codes"):
        policy(crowded(33, (2, 2, 2, 2, 2)))


def test_a_full_suffix_is_refused():
    problem = crowded(10, (2, 2))
    with pytest.raises(CapacityError, match="room for 4"):
        suffix(CollisionProblem(problem.latents, problem.raw, problem.codebooks, sizes=(2, 2, 4)))


def test_unknown_policy_lists_the_known():
    known = "Known: single_substitution, min_distortion, sinkhorn_last, suffix, none, capacity"
    with pytest.raises(ConfigError, match=f"Unknown collision policy 'wishful'. {known}"):
        IndexConfig(policy="wishful")


def test_edits_rise_with_depth_and_conflicts_are_no_fewer(rng):
    """The paper's pattern of single substitutions: after an early edit, later codes may not be the nearest any more."""
    centres = rng.normal(size=(400, 16))
    vectors = (centres[rng.integers(0, 400, 4_000)] + 0.5 * rng.normal(size=(4_000, 16))).astype(np.float32)
    quantizer = fit_kmeans(vectors, KMeansConfig(codes=32, dim=16, normalize=False), items=4_000)
    latents, books = quantizer.latents(vectors), quantizer.codebooks
    raw = assign(as_tensor(latents), books).numpy()
    resolution = single_substitution(CollisionProblem(latents, raw, books))
    edited = resolution.edited.mean(0)
    steps = trajectory(as_tensor(latents), as_tensor(resolution.sids), books)
    nearest_codes = [nearest(steps[:, level], books.level(level)).numpy() for level in range(4)]
    conflict = (np.stack(nearest_codes, axis=1) != resolution.sids).mean(0)
    assert (np.diff(edited) > 0).all()
    assert edited.sum() > 0.02
    assert (conflict >= edited).all()
    assert conflict[-1] > edited[-1]
