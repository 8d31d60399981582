"""Every control keeps what it promises to keep, takes the rest away, and does so the same way each time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.distill import (
    Correction,
    FutureHardTeacher,
    HardTeacher,
    PermutedTeacher,
    ResidualTeacher,
    code_mean,
    codebook_only,
    entropy_shuffle,
    matching,
    shape_swap,
    shuffled,
)
from restd.distill.equations import cells, teacher_distribution
from restd.distill.matching import match
from restd.errors import ConfigError
from tests.test_distill_equations import level_sizes, made, seeds
from tests.test_splitmix import reference

TAU = 0.8


def teacher_of(geometry, **correction):
    return ResidualTeacher(geometry, torch.full((geometry.levels,), TAU), Correction(**correction))


def crowd(seed=0, items=240, sizes=(5, 4, 6)):
    return teacher_of(made(seed, sizes=sizes, items=items))


def everything(teacher):
    return teacher.targets(torch.arange(teacher.geometry.items)).values


def training(geometry, seed=0):
    keep = torch.rand(geometry.items, generator=torch.Generator().manual_seed(seed)) < 0.7
    keep[:2] = True
    return keep.nonzero()[:, 0]


BUILDERS = {
    "hard": lambda base, train: HardTeacher(base.geometry),
    "future-hard": lambda base, train: FutureHardTeacher(base),
    "shuffled": lambda base, train: shuffled(base, train, seed=3),
    "codebook-only": lambda base, train: codebook_only(base),
    "code-mean": code_mean,
    "entropy-shuffle": entropy_shuffle,
    "nontarget-permutation": lambda base, train: PermutedTeacher(base, seed=3),
    "shape-swap": lambda base, train: shape_swap(base, train)[0],
}


@pytest.mark.parametrize("name", BUILDERS)
def test_controls_are_distributions_deterministic_and_blind_to_the_batch(name):
    base = crowd()
    train = training(base.geometry)
    first, second = BUILDERS[name](base, train), BUILDERS[name](base, train)
    values = everything(first)
    assert torch.equal(values, everything(second))
    assert torch.allclose(values.sum(-1), torch.ones(values.shape[:2]), atol=1e-5)
    assert (values >= 0).all()
    few = torch.tensor([17, 3, 100])
    assert torch.allclose(first.targets(few).values, values[few], atol=1e-6)
    assert 0.0 < first.replaced <= 1.0
    masked = values[:, : base.geometry.levels][:, ~base.geometry.codebooks.mask]
    assert (masked == 0).all()


@pytest.mark.parametrize(
    "name", ["codebook-only", "code-mean", "entropy-shuffle", "nontarget-permutation", "shape-swap"]
)
def test_hard_codes_are_kept_in_all_but_the_shuffle(name):
    base = crowd()
    control = BUILDERS[name](base, training(base.geometry))
    stored = base.geometry.stored(torch.arange(base.geometry.items))
    assert torch.equal(everything(control).argmax(-1), stored)


def test_hard_targets_are_one_hot():
    base = crowd()
    values = everything(HardTeacher(base.geometry))
    assert torch.equal(values.argmax(-1), base.geometry.stored(torch.arange(240)))
    assert torch.equal(values.max(-1).values, torch.ones(240, 3))


def test_future_hard_is_soft_now_and_hard_later():
    base = crowd()
    rows = torch.arange(6)
    targets = FutureHardTeacher(base).targets(rows)
    own, hard = base.targets(rows).values, HardTeacher(base.geometry).targets(rows).values
    for state in range(3):
        for offset in range(3 - state):
            found = targets.values[:, targets.slot_of[state, offset]]
            assert torch.equal(found, (own if offset == 0 else hard)[:, state + offset])


@pytest.mark.parametrize("levels", [1, 3, 4])
def test_future_hard_replaces_the_cells_with_an_offset_within_the_horizon(levels):
    base = crowd(sizes=(5, 4, 6, 3)[:levels])
    for horizon in range(1, levels + 1):
        pairs = cells(levels, horizon)
        share = sum(offset > 0 for _, offset in pairs) / len(pairs)
        assert FutureHardTeacher(base, horizon).replaced == pytest.approx(share)
    assert FutureHardTeacher(base).replaced == FutureHardTeacher(base, levels).replaced
    assert FutureHardTeacher(base, levels + 5).replaced == FutureHardTeacher(base, levels).replaced


def test_shuffle_is_a_derangement_of_whole_trajectories():
    base = crowd()
    train = training(base.geometry)
    control = shuffled(base, train, seed=3)
    donors = control.donors[train]
    assert (donors == donors[:, :1]).all()
    assert (donors[:, 0] != train).all()
    assert torch.equal(donors[:, 0].sort().values, train)
    assert control.replaced == 1.0
    assert torch.allclose(everything(control)[train], everything(base)[donors[:, 0]], atol=1e-6)
    rest = torch.ones(240, dtype=torch.bool)
    rest[train] = False
    assert torch.allclose(everything(control)[rest], everything(base)[rest], atol=1e-6)
    assert not torch.equal(control.donors, shuffled(base, train, seed=4).donors)
    with pytest.raises(ConfigError, match="at least 2 training items to shuffle, got 1"):
        shuffled(base, train[:1], seed=0)


@given(seeds, level_sizes)
def test_permutation_keeps_the_multiset_and_the_stored_probability(seed, sizes):
    base = teacher_of(made(seed, sizes=sizes))
    rows = torch.arange(base.geometry.items)
    own, dealt = everything(base), everything(PermutedTeacher(base, seed=1))
    stored = base.geometry.stored(rows)[..., None]
    assert torch.equal(own.gather(-1, stored), dealt.gather(-1, stored))
    assert torch.equal(own.sort(-1).values, dealt.sort(-1).values)


def test_a_permutation_sorts_the_hash_of_seed_row_level_and_code():
    """So that it is the same on every machine."""
    base = teacher_of(made(0, sizes=(6, 4), items=9))
    own, dealt = everything(base), everything(PermutedTeacher(base, seed=7))
    stored = base.geometry.stored(torch.arange(9)).tolist()

    def scrambled(value):
        return reference(value) & 0x7FFFFFFFFFFFFFFE

    for row in range(9):
        key = scrambled(row + scrambled(7))
        for level, size in enumerate((6, 4)):
            free = [code for code in range(size) if code != stored[row][level]]
            order = sorted(free, key=lambda code: scrambled(key + 6 * level + code))
            assert dealt[row, level, free].tolist() == own[row, level, order].tolist()


def test_permutations_differ_between_items_levels_and_seeds():
    geometry = made(0, sizes=(30, 30), items=50)
    own = torch.linspace(0, 1, 30).expand(50, 2, 30)

    class Ramp(ResidualTeacher):
        def distributions(self, residuals, stored):
            return own[: len(stored)]

    base = Ramp(geometry, torch.ones(2))
    first, second = everything(PermutedTeacher(base, seed=1)), everything(PermutedTeacher(base, seed=2))
    assert len({tuple(row) for row in first.flatten(0, 1).tolist()}) == 100
    assert not torch.equal(first, second)
    means = first.mean(0)  # every place gets every value alike
    assert float((means - 0.5).abs().max()) < 0.25


def test_codebook_only_depends_on_the_code_alone():
    base = crowd()
    values = everything(codebook_only(base))
    books, stored = base.geometry.codebooks.values, base.geometry.stored(torch.arange(240))
    for row in range(20):
        for level, size in enumerate(base.geometry.sizes):
            code = int(stored[row, level])
            raw = (-(books[level, code] - books[level, :size]).square().sum(-1) / TAU).softmax(-1)
            expected = 0.9 * raw
            expected[code] += 0.1  # the stored code always leads, so only the floor acts
            assert torch.allclose(values[row, level, :size], expected, atol=1e-5)


def test_code_mean_is_the_mean_over_training_items_and_constant_within_a_code():
    base = crowd()
    train = training(base.geometry)
    values, own = everything(code_mean(base, train)), everything(base)
    stored = base.geometry.stored(torch.arange(240))
    for level in range(3):
        for code in range(base.geometry.sizes[level]):
            inside = stored[:, level] == code
            members = train[inside[train]]
            if len(members):
                expected = own[members, level].mean(0)
                assert torch.allclose(values[inside][:, level], expected.expand(int(inside.sum()), -1), atol=1e-5)


def test_code_mean_falls_back_where_no_training_item_has_the_code():
    base = crowd()
    train = torch.tensor([0, 1])
    table, fallback = code_mean(base, train).table, codebook_only(base).table
    stored = base.geometry.stored(train)
    unseen = next(code for code in range(5) if code not in stored[:, 0].tolist())
    assert torch.equal(table[0, unseen], fallback[0, unseen])


def test_entropy_shuffle_follows_its_rule():
    base = crowd(items=400)
    train = training(base.geometry)
    control = entropy_shuffle(base, train)
    own = everything(base)
    entropy = torch.special.entr(own).sum(-1)
    stored = base.geometry.stored(torch.arange(400))
    for level in range(3):
        order = sorted(train.tolist(), key=lambda row: (float(entropy[row, level]), row))
        decile = {row: rank * 10 // len(order) for rank, row in enumerate(order)}
        groups = {}
        for row in train.tolist():
            groups.setdefault((int(stored[row, level]), decile[row]), []).append(row)
        for (code, _), members in groups.items():
            for place, row in enumerate(members):
                donor = int(control.donors[row, level])
                assert int(stored[donor, level]) == code
                if len(members) > 1:
                    assert donor == members[place - 1]
                else:
                    peers = [peer for peer in train.tolist() if int(stored[peer, level]) == code and peer != row]
                    nearest = min(
                        peers, key=lambda peer: (abs(float(entropy[peer, level] - entropy[row, level])), peer)
                    )
                    assert donor == nearest
    assert control.replaced == 1.0


def test_an_item_alone_with_its_code_keeps_its_own_and_is_counted():
    geometry = made(0, sizes=(4,), items=3)
    geometry.sids[:, 0] = torch.tensor([0, 0, 1])
    base = teacher_of(geometry)
    train = torch.arange(3)
    assert entropy_shuffle(base, train).donors[:, 0].tolist() == [1, 0, 2]
    swapped, quality = shape_swap(base, train)
    assert swapped.donors[:, 0].tolist() == [1, 0, 2]
    assert quality.coverage == pytest.approx(2 / 3)
    geometry.sids[:, 0] = torch.tensor([0, 1, 1])  # now the first code is the lone one
    assert entropy_shuffle(base, train).donors[:, 0].tolist() == [0, 2, 1]
    assert shape_swap(base, train)[0].donors[:, 0].tolist() == [0, 2, 1]


def naive_matching(shapes):
    """All pairs in ascending order of distance, ties by (smaller, larger)."""
    count = len(shapes)
    distances = torch.cdist(shapes, shapes, p=1).numpy()
    order = sorted((distances[a, b], a, b) for a in range(count) for b in range(a + 1, count))
    used, pairs = set(), []
    for _, one, other in order:
        if one not in used and other not in used:
            used |= {one, other}
            pairs.append((one, other))
    return sorted(pairs)


@given(seeds, st.integers(2, 25), st.booleans())
def test_matching_is_the_greedy_order(seed, count, ties):
    shapes = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))
    if ties:
        shapes = (shapes * 2).round()  # many equal distances
    first, second = match(shapes)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == naive_matching(shapes)
    assert len(first) == count // 2


@given(seeds, st.integers(2, 25))
def test_a_window_as_wide_as_the_group_is_the_greedy_order(seed, count):
    shapes = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "_EXACT", 1)
        first, second = match(shapes)
        assert list(zip(first.tolist(), second.tolist(), strict=True)) == naive_matching(shapes)


def test_outside_the_window_what_is_left_pairs_up(monkeypatch):
    """Neighbours alone are compared: 1 and 2 are nearest, which leaves 0 and 3 to each other."""
    monkeypatch.setattr(matching, "_EXACT", 1)
    monkeypatch.setattr(matching, "_WINDOW", 1)
    first, second = match(torch.tensor([[0.0], [0.4], [0.5], [0.9]]))
    assert sorted(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 3), (1, 2)]


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_to_match(count):
    first, second = match(torch.rand(count, 3))
    assert (first.tolist(), second.tolist()) == ([], [])


def test_all_who_are_left_outside_the_window_pair_up_in_order(monkeypatch):
    """In order: 0, 3, 6 and 9 are left. All compared with all, 3 and 6 would be the nearest of them."""
    monkeypatch.setattr(matching, "_WINDOW", 1)
    shapes = torch.tensor([[0.0], [1.0], [1.1], [2.5], [3.0], [3.1], [4.2], [5.0], [5.1], [6.9]])
    near = {(1, 2), (4, 5), (7, 8)}
    for most, left in ((9, {(0, 3), (6, 9)}), (10, {(3, 6), (0, 9)})):
        monkeypatch.setattr(matching, "_EXACT", most)
        first, second = match(shapes)
        assert set(zip(first.tolist(), second.tolist(), strict=True)) == near | left


def test_large_groups_use_the_window_and_still_pair_everybody(monkeypatch):
    shapes = torch.rand(301, 6, generator=torch.Generator().manual_seed(0)).sort(-1, descending=True).values
    shapes = shapes / shapes.sum(-1, keepdim=True)
    exact = match(shapes)
    monkeypatch.setattr(matching, "_EXACT", 100)
    first, second = match(shapes)
    assert len(first) == 150
    assert len(set(first.tolist()) | set(second.tolist())) == 300

    def mean_gap(pairs):
        return float((shapes[pairs[0]] - shapes[pairs[1]]).abs().sum(-1).mean())

    assert mean_gap((first, second)) < 1.5 * mean_gap(exact)


def test_swap_is_an_involution_and_its_quality_is_measured():
    base = crowd(items=401)
    train = training(base.geometry)
    control, quality = shape_swap(base, train)
    levels = torch.arange(3)
    assert torch.equal(control.donors[control.donors, levels], torch.arange(401)[:, None].expand(-1, 3))
    stored = base.geometry.stored(torch.arange(401))
    odd = 0
    for level in range(3):
        assert torch.equal(stored[control.donors[:, level], level], stored[:, level])
        counts = torch.bincount(stored[train, level])
        odd += int((counts % 2).sum())
    assert quality.coverage == pytest.approx(1 - odd / (3 * len(train)))
    own = everything(base)
    gaps, entropies, shapes = [], [], []
    for row in train.tolist():
        for level in range(3):
            donor = int(control.donors[row, level])
            if donor == row:
                continue
            code = int(stored[row, level])
            ours, theirs = own[row, level], own[donor, level]
            gaps.append(abs(float(ours[code] - theirs[code])))
            entropies.append(abs(float(torch.special.entr(ours).sum() - torch.special.entr(theirs).sum())))
            rest = [sorted((float(p) for j, p in enumerate(q) if j != code), reverse=True) for q in (ours, theirs)]
            shapes.append(gaps[-1] + sum(abs(a - b) for a, b in zip(*rest, strict=True)))
    assert quality.stored_gap == pytest.approx(np.median(gaps), abs=1e-6)
    assert quality.entropy_gap == pytest.approx(np.median(entropies), abs=1e-5)
    assert quality.shape_median == pytest.approx(np.median(shapes), abs=1e-5)
    assert quality.shape_p90 == pytest.approx(np.quantile(shapes, 0.9), abs=1e-2)


def test_raw_teacher_when_correction_is_off():
    base = crowd()
    rows = torch.arange(240)
    raw = ResidualTeacher(base.geometry, base.temperatures, Correction(enabled=False)).targets(rows).values
    expected = teacher_distribution(
        base.geometry.residuals(rows), base.geometry.codebooks.values, base.geometry.codebooks.mask, base.temperatures
    )
    assert torch.equal(raw, expected)
    assert (raw.argmax(-1) != base.geometry.stored(rows)).any(), "nothing to correct: the test is empty"
    with pytest.raises(ConfigError, match="floor"):
        Correction(floor=1.2)


def test_two_training_items_are_enough_to_shuffle():
    base = crowd(items=5)
    swapped = everything(shuffled(base, torch.tensor([1, 3]), seed=0))
    assert torch.equal(swapped[1], everything(base)[3])
    with pytest.raises(ConfigError, match="at least 2 training items"):
        shuffled(base, torch.tensor([1]), seed=0)
