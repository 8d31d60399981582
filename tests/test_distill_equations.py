"""The equations, against the numbers and identities that are known of them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.codes import trajectory
from restd.distill import Geometry, HorizonHeads, MeanTeacher, ResidualTeacher, Targets, trajectory_loss
from restd.distill.equations import (
    capped_weight,
    cell_weights,
    cells,
    correct,
    correction_weight,
    full_output_kl,
    horizon_mass,
    student_distribution,
    teacher_distribution,
    warm_up,
)
from restd.distill.targets import Correction, level_slots
from restd.errors import ConfigError


def made(seed, *, sizes=(6, 4, 5), dim=3, items=12, scale=1.0):
    """A random geometry; SIDs are random too, so that stored codes often are not the nearest."""
    generator = torch.Generator().manual_seed(seed)
    books = torch.zeros(len(sizes), max(sizes), dim)
    for level, size in enumerate(sizes):
        books[level, :size] = scale * torch.randn(size, dim, generator=generator)
    latents = scale * torch.randn(items, dim, generator=generator)
    sids = torch.stack([torch.randint(size, (items,), generator=generator) for size in sizes], dim=1)
    return Geometry.of(books, latents, sids, sizes=tuple(sizes))


seeds = st.integers(0, 2**31)
level_sizes = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)
temperatures = st.floats(0.05, 3.0)


@given(seeds, level_sizes)
def test_trajectory_is_the_recursion(seed, sizes):
    geometry = made(seed, sizes=sizes)
    rows = torch.arange(geometry.items)
    steps = trajectory(geometry.latents[rows], geometry.stored(rows), geometry.codebooks)
    residual = geometry.latents.float()
    assert torch.equal(steps[:, 0], residual)
    for level in range(len(sizes)):
        residual = residual - geometry.codebooks.values[level, geometry.stored(rows)[:, level]]
        assert torch.allclose(steps[:, level + 1], residual, atol=1e-5)
    assert torch.equal(geometry.residuals(rows), steps[:, :-1])
    own = rows[:, None].expand(-1, len(sizes))
    assert torch.allclose(geometry.residuals_by_level(own), steps[:, :-1])


@given(seeds, level_sizes, temperatures)
def test_teacher_and_student_are_softmaxes_of_distances(seed, sizes, tau):
    geometry = made(seed, sizes=sizes)
    points = geometry.residuals(torch.arange(4))
    taus = torch.full((len(sizes),), tau)
    teacher = teacher_distribution(points, geometry.codebooks.values, geometry.codebooks.mask, taus)
    student = student_distribution(points, geometry.codebooks.values, geometry.codebooks.mask, taus)
    assert torch.equal(teacher, student)
    for level, size in enumerate(sizes):
        distances = (
            (points[:, level, None].double() - geometry.codebooks.values[level, :size].double()).square().sum(-1)
        )
        expected = (-distances / tau).softmax(-1)
        assert torch.allclose(teacher[:, level, :size].double(), expected, atol=2e-5)
        assert (teacher[:, level, size:] == 0).all()
    assert torch.allclose(teacher.sum(-1), torch.ones(4, len(sizes)), atol=1e-5)


@given(seeds, st.floats(0.2, 3.0))
def test_log_odds_identity(seed, tau):
    geometry = made(seed, scale=0.5)
    residual = geometry.residuals(torch.arange(5))
    teacher = teacher_distribution(
        residual, geometry.codebooks.values, geometry.codebooks.mask, torch.full((3,), tau)
    ).double()
    r, c = residual[:, 0].double(), geometry.codebooks.values[0].double()
    for j in range(6):
        for k in range(6):
            odds = (2 * r @ (c[j] - c[k]) + c[k] @ c[k] - c[j] @ c[j]) / tau
            assert torch.allclose(torch.log(teacher[:, 0, j] / teacher[:, 0, k]), odds, atol=1e-3)


@pytest.mark.parametrize(
    ("own", "rival", "expected"),
    [
        (0.3, 0.2, 0.0),
        (0.25, 0.25, 0.001),
        (0.2, 0.3, 0.09182),
        (0.05, 0.6, 0.35548),
        (0.0, 1.0, 0.5005),
        (1.0, 0.0, 0.0),
    ],
)
def test_correction_values(own, rival, expected):
    assert float(correction_weight(torch.tensor(own), torch.tensor(rival))) == pytest.approx(expected, abs=5e-6)


@given(seeds, st.integers(1, 9), st.sampled_from([0.0, 0.05, 0.1, 0.2]), st.floats(0.02, 2.0))
def test_correction_properties(seed, codes, floor, sharpness):
    generator = torch.Generator().manual_seed(seed)
    teacher = (torch.randn(20, 1, codes, generator=generator, dtype=torch.float64) / sharpness).softmax(-1)
    stored = torch.randint(codes, (20, 1), generator=generator)
    margin = 0.001
    corrected = correct(teacher, stored, floor=floor, margin=margin)
    assert torch.allclose(corrected.sum(-1), torch.ones(20, 1, dtype=torch.float64))
    own = corrected.gather(-1, stored[..., None])[..., 0]
    rival = corrected.scatter(-1, stored[..., None], 0.0).amax(-1)
    assert (own - rival >= margin - 1e-9).all()
    raw_own = teacher.gather(-1, stored[..., None])[..., 0]
    raw_rival = teacher.scatter(-1, stored[..., None], 0.0).amax(-1)
    least = correction_weight(raw_own, raw_rival, margin=margin)
    assert (least <= (1 + margin) / 2 + 1e-12).all()
    # minimal: a little less violates the margin, unless none was needed
    less = (least - 1e-4).clamp_min(0)
    lead = (1 - less) * (raw_own - raw_rival) + less
    assert ((lead < margin) | (least == 0)).all()
    # ratios of the other codes are preserved
    others = torch.ones(20, 1, codes, dtype=torch.bool).scatter(-1, stored[..., None], value=False)
    factor = corrected / teacher
    for row in range(20):
        kept = factor[row, 0][others[row, 0]]
        assert kept.numel() == 0 or torch.allclose(kept, kept[:1].expand_as(kept), rtol=1e-9)
    # the floor is a floor
    assert ((own - raw_own) >= floor * (1 - raw_own) - 1e-9).all()


def test_small_gaps_need_less_than_the_floor():
    for gap in (0.05, 0.1, 0.109, 0.111, 0.3):
        needed = float(correction_weight(torch.tensor(0.2), torch.tensor(0.2 + gap)))
        assert (needed < 0.1) == (gap < 0.11)


@pytest.mark.parametrize(
    ("discount", "total", "expected"),
    [
        (0.3, 5.107, (0.7832, 0.1762, 0.0352, 0.0053)),
        (0.5, 6.125, (0.6531, 0.2449, 0.0816, 0.0204)),
        (0.7, 7.423, (0.5389, 0.2829, 0.1320, 0.0462)),
        (0.9, 9.049, (0.4420, 0.2984, 0.1790, 0.0806)),
        (1.0, 10.0, (0.4, 0.3, 0.2, 0.1)),
    ],
)
def test_horizon_weights(discount, total, expected):
    mask = torch.ones(1, 4, dtype=torch.bool)
    assert float(cell_weights(mask, cells(4, 4), discount=discount).sum()) == pytest.approx(total, abs=5e-4)
    assert horizon_mass(mask, horizon=4, discount=discount).tolist() == pytest.approx(expected, abs=5.1e-5)


def test_horizon_weights_of_three_levels():
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert float(cell_weights(mask, cells(3, 3), discount=0.7).sum()) == pytest.approx(4.89, abs=1e-5)
    assert horizon_mass(mask, horizon=3, discount=0.7).tolist() == pytest.approx((0.6135, 0.2863, 0.1002), abs=5.1e-5)


@given(seeds, st.integers(1, 5), st.integers(1, 5), st.floats(0.1, 1.0))
def test_horizon_mass_sums_to_one_under_masks(seed, levels, horizon, discount):
    mask = torch.rand(6, levels, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[0, 0] = True
    mass = horizon_mass(mask, horizon=min(horizon, levels), discount=discount)
    assert float(mass.sum()) == pytest.approx(1.0, abs=1e-5)
    assert (horizon_mass(torch.zeros_like(mask), horizon=1, discount=discount) == 0).all()


# -- the loss ---------------------------------------------------------------------------------------------------------


def naive_loss(projected, targets, geometry, taus, mask, discount):
    """The triple sum word by word."""
    horizon, rows, levels, _ = projected.shape
    numerator, denominator = projected.new_zeros(()), 0.0
    for row in range(rows):
        for state in range(levels):
            for offset in range(horizon):
                level = state + offset
                if level >= levels or not mask[row, level]:
                    continue
                size = geometry.sizes[level]
                distance = (projected[offset, row, state] - geometry.codebooks.values[level, :size]).square().sum(-1)
                log_student = (-distance / taus[level]).log_softmax(-1)
                teacher = targets.values[row, targets.slot_of[state, offset], :size].to(projected.dtype)
                divergence = (torch.xlogy(teacher, teacher) - teacher * log_student).sum()
                numerator = numerator + discount**offset * divergence
                denominator += discount**offset
    return numerator / max(denominator, 1e-12)


def by_cell(projected):
    """Points of the cells that count, as heads give them, out of [horizon, row, level, dim]."""
    return torch.stack([projected[offset, :, state] for state, offset in cells(projected.shape[2], len(projected))])


@given(seeds, level_sizes, st.integers(1, 4), st.floats(0.2, 1.0), st.floats(0.2, 2.0), st.booleans())
def test_loss_equals_the_triple_sum_in_value_and_gradient(seed, sizes, horizon, discount, tau, slot_per_cell):
    geometry = made(seed, sizes=sizes, scale=0.7)
    levels, rows = len(sizes), 4
    horizon = min(horizon, levels)
    generator = torch.Generator().manual_seed(seed + 1)
    taus = tau * (0.5 + torch.rand(levels, generator=generator))
    mask = torch.rand(rows, levels, generator=generator) < 0.8
    targets = ResidualTeacher(geometry, taus).targets(torch.arange(rows))
    if slot_per_cell:
        state = torch.arange(levels)
        slots = state[:, None] * levels + level_slots(levels)
        shuffled = torch.rand(rows, levels, levels, max(sizes), generator=generator) * geometry.codebooks.mask
        targets = Targets((shuffled / shuffled.sum(-1, keepdim=True)).flatten(1, 2), slots)
    projected = (0.7 * torch.randn(horizon, rows, levels, 3, generator=generator)).requires_grad_()
    points = by_cell(projected)
    found = trajectory_loss(points, targets, geometry, taus, mask, horizon=horizon, discount=discount).loss
    (ours,) = torch.autograd.grad(found, projected)
    double = projected.detach().double().requires_grad_()
    expected = naive_loss(double, targets, geometry, taus.double(), mask, discount)
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    if mask.any():
        (theirs,) = torch.autograd.grad(expected, double)
        assert torch.allclose(ours.double(), theirs, atol=1e-5)
    else:
        assert found.item() == 0.0


@pytest.mark.parametrize("hard", [False, True])
def test_gradient_identity(hard):
    """∂KL/∂g = (2/τ)(Σ P_j c_j - Σ Q_j c_j); for a one-hot target the second sum is its codeword."""
    geometry = made(5, sizes=(7,), dim=4)
    tau = torch.tensor([0.6])
    targets = ResidualTeacher(geometry, tau, Correction(floor=0.0)).targets(torch.tensor([2]))
    if hard:
        values = torch.nn.functional.one_hot(geometry.stored(torch.tensor([2])), 7).float()
        targets = Targets(values, level_slots(1))
    projected = torch.randn(1, 1, 1, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss = trajectory_loss(by_cell(projected), targets, geometry, tau, mask, horizon=1).loss
    (gradient,) = torch.autograd.grad(loss, projected)
    book = geometry.codebooks.values[0]
    student = student_distribution(projected.detach()[0], geometry.codebooks.values, geometry.codebooks.mask, tau)[0, 0]
    expected = (2 / 0.6) * (student @ book - targets.values[0, 0] @ book)
    assert torch.allclose(gradient[0, 0, 0], expected, atol=1e-5)
    if hard:
        assert torch.allclose(targets.values[0, 0] @ book, book[geometry.stored(torch.tensor([2]))[0, 0]])


def test_one_horizon_is_the_mean_over_levels():
    geometry = made(3)
    taus = torch.ones(3)
    targets = ResidualTeacher(geometry, taus).targets(torch.arange(4))
    projected = torch.randn(1, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(4, 3, dtype=torch.bool)
    found = trajectory_loss(by_cell(projected), targets, geometry, taus, mask, horizon=1, discount=0.3)
    student = student_distribution(projected[0], geometry.codebooks.values, geometry.codebooks.mask, taus)
    terms = torch.where(geometry.codebooks.mask, targets.values * (targets.values.log() - student.log()), 0.0)
    assert float(found.loss) == pytest.approx(float(terms.nansum(-1).mean()), abs=1e-5)
    assert torch.allclose(found.by_cell[:, 0], terms.nansum(-1).mean(0), atol=1e-5)


def test_nothing_valid_is_exactly_zero_with_zero_gradient():
    geometry = made(3)
    targets = ResidualTeacher(geometry, torch.ones(3)).targets(torch.arange(2))
    projected = torch.randn(2, 2, 3, 3).requires_grad_()
    mask = torch.zeros(2, 3, dtype=torch.bool)
    found = trajectory_loss(by_cell(projected), targets, geometry, torch.ones(3), mask, horizon=2)
    (gradient,) = torch.autograd.grad(found.loss, projected)
    assert found.loss.item() == 0.0
    assert (gradient == 0).all()
    assert found.by_cell.isnan().all()


@given(seeds, st.integers(2, 6))
def test_divergence_decomposes_around_the_mean_teacher(seed, count):
    """E KL(Q_d ‖ P) = E KL(Q_d ‖ Q̄) + KL(Q̄ ‖ P), with our KL and our mean teacher: its minimum is theirs."""
    base = ResidualTeacher(made(seed, sizes=(8,), items=count), torch.ones(1))
    rows, query = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    teachers = base.targets(rows).values
    mean = MeanTeacher.of(base, query, rows).targets(rows, query).values
    assert torch.allclose(mean, teachers.mean(0).expand_as(mean), atol=1e-6)
    student = torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(seed)).expand(count, -1, -1)
    valid, codes = torch.ones(count, 1, dtype=torch.bool), base.geometry.codebooks.mask
    apart = full_output_kl(mean.log(), teachers, valid, codes)
    parts = apart + full_output_kl(student, mean, valid, codes)
    assert float(full_output_kl(student, teachers, valid, codes)) == pytest.approx(float(parts), abs=1e-5)
    assert float(apart) + 1e-6 >= 0
    assert float(apart) <= math.log(count) + 1e-6


def test_distances_stay_in_float32_under_autocast():
    geometry = made(9, scale=30.0)  # squares far beyond what eight bits of mantissa can tell apart
    points = geometry.residuals(torch.arange(4))
    taus = torch.full((3,), 20.0)
    plain = teacher_distribution(points, geometry.codebooks.values, geometry.codebooks.mask, taus)
    with torch.autocast("cpu", dtype=torch.float16):
        inside = teacher_distribution(points, geometry.codebooks.values, geometry.codebooks.mask, taus)
    assert inside.dtype == torch.float32
    assert torch.equal(plain, inside)


# -- weight and cap ----------------------------------------------------------------------------------------------------


def test_warm_up_counts_from_zero():
    assert [warm_up(step, weight=0.1, steps=120) for step in (0, 12, 120, 900)] == pytest.approx([0, 0.01, 0.1, 0.1])
    assert warm_up(0, weight=0.1, steps=0) == 0.1


@given(st.floats(0.0, 1.0), st.floats(1e-6, 50.0), st.floats(0.01, 10.0))
def test_cap_bounds_the_share(weight, auxiliary, sid):
    found = capped_weight(weight, torch.tensor(auxiliary), torch.tensor(sid), cap=0.05)
    assert float(found) * auxiliary <= 0.05 * sid * (1 + 1e-5) + 1e-9
    assert float(found) == pytest.approx(min(weight, 0.05 * sid / auxiliary), rel=1e-5)
    assert float(capped_weight(weight, torch.tensor(auxiliary), torch.tensor(sid), cap=None)) == pytest.approx(weight)


def test_the_cap_is_a_constant_for_the_gradient():
    x = torch.tensor(2.0, requires_grad=True)
    auxiliary, sid = x**2, 3 * x
    weight = capped_weight(0.9, auxiliary, sid, cap=0.05)
    assert not weight.requires_grad
    (gradient,) = torch.autograd.grad(weight * auxiliary, x)
    assert float(gradient) == pytest.approx(float(weight) * 4.0)


# -- heads -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "expected"), [(768, 616_736), (128, 20_896)])
def test_head_parameters(width, expected):
    heads = HorizonHeads(width, 32, horizon=4)
    assert sum(parameter.numel() for parameter in heads.parameters()) == 4 * expected


def test_heads_equal_separate_modules():
    heads = HorizonHeads(16, 5, horizon=3, seed=4)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    states = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(2))
    together = heads(states)
    assert together.shape == (4 + 3 + 2, 2, 5)
    first = (0, 4, 7, 9)
    for offset in range(3):
        inner, outer, norm = torch.nn.Linear(16, 16), torch.nn.Linear(16, 5), torch.nn.LayerNorm(16)
        with torch.no_grad():
            inner.weight.copy_(heads.inner[offset].T)
            inner.bias.copy_(heads.inner_bias[offset, 0])
            norm.weight.copy_(heads.scale[offset, 0])
            norm.bias.copy_(heads.shift[offset, 0])
            outer.weight.copy_(heads.outer[offset].T)
            outer.bias.copy_(heads.outer_bias[offset, 0])
        alone = torch.nn.Sequential(inner, torch.nn.GELU(), norm, outer)(states)
        found = together[first[offset] : first[offset + 1]].transpose(0, 1)
        assert torch.allclose(found, alone[:, : 4 - offset], atol=1e-5)
    assert torch.allclose(heads(states, 1), together[:4], atol=1e-6)


def test_allocating_heads_consumes_no_randomness():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    HorizonHeads(8, 4, horizon=4, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("levels", "horizon"), [(3, 4), (3, 0)])
def test_impossible_horizons(levels, horizon):
    with pytest.raises(ConfigError, match=rf"number of levels \(3\), got {horizon}"):
        cells(levels, horizon)


@pytest.mark.parametrize("discount", [0.0, -0.5, 1.1])
def test_impossible_discounts(discount):
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        cell_weights(torch.ones(1, 2, dtype=torch.bool), cells(2, 2), discount=discount)
