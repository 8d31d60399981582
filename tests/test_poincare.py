"""The Poincaré ball: its axioms, and everything that walks along codes in it, against naive float64 references."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.codes import Codebooks, assign, last_residuals, nearest, poincare, quantised, trajectory
from restd.distill import (
    DistillConfig,
    Geometry,
    HorizonHeads,
    OutputDistiller,
    ResidualDistiller,
    ResidualTeacher,
    TemperatureConfig,
    codebook_only,
    find_temperatures,
    report_teaching,
    trajectory_loss,
)
from restd.distill.equations import cells, correct, student_distribution, teacher_distribution
from restd.errors import ConfigError
from restd.index.ball_search import BallSearch
from restd.index.ball_substitution import all_ball_substitutions
from restd.index.collisions import CollisionProblem, min_distortion, single_substitution, sinkhorn_last
from restd.quantize import assign_balanced

seeds = st.integers(0, 2**31)
scales = st.sampled_from([0.01, 0.3, 1.0])
"""Mean length of vectors at the origin: up to points at distance 2 from it, and some farther."""


def points(seed, count, *, dim=4, scale=0.5):
    generator = torch.Generator().manual_seed(seed)
    return poincare.exp_map(scale / dim**0.5 * torch.randn(count, dim, generator=generator))


def naive_distance(one, other):
    one, other = one.double(), other.double()
    below = (1 - one.square().sum(-1)) * (1 - other.square().sum(-1))
    return torch.acosh(1 + 2 * (one - other).square().sum(-1) / below)


def naive_subtract(x, c):
    x, c = x.double(), -c.double()
    inner, xx, cc = ((a * b).sum(-1, keepdim=True) for a, b in ((x, c), (x, x), (c, c)))
    return ((1 + 2 * inner + cc) * x + (1 - xx) * c) / (1 + 2 * inner + xx * cc)


def ball(seed, *, sizes=(6, 4, 5), dim=3, items=12, scale=0.6):
    books = Codebooks.of(
        [points(seed + level, size, dim=dim, scale=scale / (level + 1)) for level, size in enumerate(sizes)],
        space="poincare",
    )
    latents = points(seed + 99, items, dim=dim, scale=scale).half()
    return latents, books


@given(seeds, scales)
def test_the_distance_is_a_metric(seed, scale):
    x, y, z = (points(seed + n, 20, scale=scale) for n in range(3))
    between = poincare.squared_distance(x, y).sqrt()
    assert torch.equal(poincare.squared_distance(y, x), poincare.squared_distance(x, y))
    assert (poincare.squared_distance(x, x) == 0).all()
    assert (between > 0).all()
    around = poincare.squared_distance(x, z).sqrt() + poincare.squared_distance(z, y).sqrt()
    assert (between <= around * (1 + 1e-5)).all()
    assert torch.allclose(between.double(), naive_distance(x, y), rtol=1e-4, atol=1e-6)
    every = poincare.squared_distances(x, y)
    assert torch.allclose(every.diagonal(), between.square(), rtol=1e-4, atol=1e-7)


@given(seeds, scales)
def test_mobius_subtraction(seed, scale):
    x, c = points(seed, 20, scale=scale), points(seed + 1, 20, scale=scale)
    left = poincare.mobius_subtract(x, c)
    assert (poincare.mobius_subtract(x, x) == 0).all()
    assert torch.allclose(poincare.mobius_subtract(x, torch.zeros_like(x)), x, rtol=1e-6)
    inside = naive_subtract(x, c).norm(dim=-1) < poincare.RADIUS
    assert torch.allclose(left.double()[inside], naive_subtract(x, c)[inside], atol=1e-5)
    # what is left is as far from the origin as the point from the codeword
    own = poincare.squared_norms(left).sqrt()[inside]
    assert torch.allclose(own, poincare.squared_distance(x, c).sqrt()[inside], rtol=1e-3, atol=1e-5)
    assert torch.allclose(poincare.coadd(left, c)[inside], x[inside], atol=1e-4)


@given(seeds, st.floats(0.0, 50.0))
def test_maps_stay_inside_and_undo_each_other(seed, length):
    vectors = torch.nn.functional.normalize(points(seed, 10), dim=1) * length
    placed = poincare.exp_map(vectors)
    assert (placed.norm(dim=1) <= poincare.RADIUS + 1e-6).all()
    if length < 3:
        assert torch.allclose(poincare.log_map(placed), vectors, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("length", [0.0, 1e-8, 1.0, 3.7, 3.9, 100.0])
def test_gradients_are_finite_up_to_the_boundary_and_at_coincidence(length):
    direction = torch.nn.functional.normalize(torch.ones(1, 5), dim=1)
    vector = (direction * length).requires_grad_()
    books = torch.cat([poincare.exp_map(vector.detach()), poincare.exp_map(-direction * 9), torch.zeros(1, 5)])
    temperatures, mask = torch.tensor([0.2]), torch.ones(1, 3, dtype=torch.bool)
    student = student_distribution(vector[:, None], books[None], mask, temperatures, space="poincare")
    (-student[0, 0, 1].clamp_min(1e-30).log()).backward()
    assert vector.grad.isfinite().all()
    assert student.sum().item() == pytest.approx(1, abs=1e-5)


@given(seeds, st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
def test_assignment_and_trajectory_follow_the_naive_recursion(seed, sizes):
    latents, books = ball(seed, sizes=sizes)
    codes = assign(latents, books)
    steps = trajectory(latents, codes, books)
    residual = poincare.inside(latents).double()
    for level in range(len(sizes)):
        distances = naive_distance(residual[:, None], books.level(level)[None])
        chosen = distances.gather(1, codes[:, level, None].long())[:, 0]
        assert torch.allclose(chosen, distances.amin(1), atol=1e-3)
        residual = naive_subtract(residual, books.level(level)[codes[:, level].long()])
        assert torch.allclose(steps[:, level + 1].double(), residual, atol=1e-4)
        again = nearest(steps[:, level], books.level(level), space="poincare")
        assert torch.equal(again, codes[:, level].long())
    assert torch.equal(last_residuals(latents, codes, books), steps[:, -1])


def test_what_codes_say_is_the_point_that_they_leave_nothing_of():
    _, books = ball(3)
    sids = torch.tensor(list(product(range(6), range(4), range(5))))
    said = quantised(torch.zeros(len(sids), 3).half(), sids, books)
    left = trajectory(said, sids, books)[:, -1]
    assert left.abs().max() < 1e-4


def test_codebooks_keep_their_space():
    _, books = ball(0)
    back = Codebooks.from_arrays(books.to_arrays())
    assert back.space == books.to("cpu").space == "poincare"
    assert back.fingerprint() == books.fingerprint()
    flat = Codebooks(books.values, books.sizes)
    assert flat.fingerprint() != books.fingerprint()
    assert set(flat.to_arrays()) == {"codebooks", "codebook_sizes"}
    assert all(Codebooks.is_own_name(name) for name in books.to_arrays())


def test_points_outside_the_ball_are_refused():
    with pytest.raises(ConfigError, match=r"Codewords of the Poincaré ball must be shorter than 1.*length 2"):
        Codebooks.of([2 * torch.eye(3)], space="poincare")
    _, books = ball(0)
    with pytest.raises(ConfigError, match="Latents of the Poincaré ball must be shorter than 1"):
        Geometry.of(books, torch.ones(4, 3), torch.zeros(4, 3, dtype=torch.int64))


@given(seeds)
def test_substitutions_are_all_sids_cheapest_first(seed):
    latents, books = ball(seed, sizes=(3, 2, 3), items=1)
    own = assign(latents, books).numpy()[0]
    keys = list(all_ball_substitutions(latents[0].numpy(), own, books))
    everything = list(product(range(3), range(2), range(3)))
    assert sorted(keys) == [n for n, sid in enumerate(everything) if sid != tuple(own)]
    errors = poincare.squared_norms(last_residuals(latents.expand(18, -1), torch.tensor(everything), books))
    changes = [sum(a != b for a, b in zip(everything[key], own, strict=True)) for key in keys]
    assert changes == sorted(changes)
    for count in (1, 2):
        costs = [float(errors[key]) for key, number in zip(keys, changes, strict=True) if number == count]
        assert costs == pytest.approx(sorted(costs), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("policy", [single_substitution, min_distortion])
def test_collisions_are_resolved_in_the_ball(policy):
    latents, books = ball(5, items=100)
    latents = latents[torch.arange(100) // 4].numpy()
    raw = assign(torch.from_numpy(latents), books).numpy()
    problem = CollisionProblem(latents, raw, books)
    sids = policy(problem).sids
    assert len({tuple(sid) for sid in sids.tolist()}) == 100
    kept = (sids == raw).all(1)
    assert {tuple(sid) for sid in raw[kept].tolist()} == {tuple(sid) for sid in raw.tolist()}


def test_sinkhorn_and_balance_use_the_distance_of_the_ball():
    latents, books = ball(5, items=60)
    raw = assign(latents, books).numpy()
    moved = sinkhorn_last(CollisionProblem(latents.numpy(), raw, books)).sids
    assert (moved[:, :-1] == raw[:, :-1]).all()
    assert len(np.unique(moved, axis=0)) > len(np.unique(raw, axis=0))
    balanced = assign_balanced(latents.numpy(), books, seed=0)
    spread = [np.bincount(codes[:, 0], minlength=6).std() for codes in (raw, balanced)]
    assert spread[1] < spread[0]


def test_nearest_points_are_found_exactly():
    stored, queries = points(0, 50), points(1, 7)
    distances, rows = BallSearch(stored.numpy()).search(queries.numpy(), 5)
    naive = naive_distance(queries[:, None], stored[None])
    assert rows.tolist() == naive.argsort(dim=1)[:, :5].tolist()
    again = BallSearch(stored.numpy()).distances(queries.numpy(), rows)
    assert np.allclose(again, distances, rtol=1e-4)
    assert np.allclose(np.sqrt(distances), naive.gather(1, torch.from_numpy(rows)).numpy(), rtol=1e-4)


def geometry_of(seed, **options):
    latents, books = ball(seed, **options)
    generator = torch.Generator().manual_seed(seed)
    sids = torch.stack([torch.randint(size, (len(latents),), generator=generator) for size in books.sizes], dim=1)
    return Geometry.of(books, latents, sids)


@given(seeds, st.floats(0.1, 3.0))
def test_the_teacher_is_a_softmax_of_squared_distances(seed, tau):
    geometry = geometry_of(seed)
    books, rows = geometry.codebooks, torch.arange(geometry.items)
    residuals = geometry.residuals(rows)
    teacher = teacher_distribution(residuals, books.values, books.mask, torch.full((3,), tau), space="poincare")
    assert torch.allclose(teacher.sum(-1), torch.ones(12, 3), atol=1e-5)
    for level, size in enumerate(books.sizes):
        distances = naive_distance(residuals[:, level, None], books.level(level)[None]).square()
        assert torch.allclose(teacher[:, level, :size].double(), (-distances / tau).softmax(-1), atol=1e-4)
        assert (teacher[:, level, size:] == 0).all()
    flat = teacher_distribution(residuals, books.values, books.mask, torch.full((3,), tau))
    assert not torch.allclose(flat, teacher, atol=1e-3)


@given(seeds)
def test_the_trajectory_loss_is_the_triple_sum_in_value_and_gradient(seed):
    geometry = geometry_of(seed)
    rows, taus = torch.arange(6), torch.tensor([0.3, 0.5, 0.7])
    targets = ResidualTeacher(geometry, taus).targets(rows)
    generator = torch.Generator().manual_seed(seed)
    pairs = cells(3, 2)
    projected = torch.randn(len(pairs), 6, 3, generator=generator).requires_grad_()
    mask = torch.rand(6, 3, generator=generator) < 0.8
    loss = trajectory_loss(projected, targets, geometry, taus, mask, horizon=2, discount=0.7).loss
    total, weights = torch.zeros((), dtype=torch.float64), 0.0
    books = geometry.codebooks
    for cell, (state, offset) in enumerate(pairs):
        level = state + offset
        size = books.sizes[level]
        lengths = projected[cell].double().norm(dim=-1, keepdim=True)
        points_of_heads = projected[cell].double() * lengths.tanh() / lengths
        points_of_heads = points_of_heads * (poincare.RADIUS / points_of_heads.norm(dim=-1, keepdim=True)).clamp_max(1)
        distances = naive_distance(points_of_heads[:, None], books.level(level)[None]).square()
        student = (-distances / taus[level]).log_softmax(-1)
        target = targets.values[:, level, :size].double()
        kl = (torch.xlogy(target, target) - target * student).sum(-1)
        total = total + (0.7**offset * kl * mask[:, level]).sum()
        weights += 0.7**offset * float(mask[:, level].sum())
    expected = total / max(weights, 1e-12)
    assert torch.allclose(loss.double(), expected, rtol=1e-3, atol=1e-5)
    (gradient,) = torch.autograd.grad(loss, projected, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected, projected)
    assert torch.allclose(gradient, wanted, rtol=1e-2, atol=1e-3)


def test_controls_and_temperatures_use_the_ball():
    geometry = geometry_of(7, items=200, sizes=(8, 8, 8))
    books = geometry.codebooks
    taus = find_temperatures(geometry, TemperatureConfig(), quantizer="hyperbolic")
    report = report_teaching(geometry, taus)
    assert report.levels[0].normalised_entropy == pytest.approx(0.57, abs=0.01)
    squares = poincare.squared_norms(geometry.residuals(torch.arange(200))).mean(0)
    assert torch.allclose(taus / taus[0], squares / squares[0], rtol=1e-4)
    table = codebook_only(ResidualTeacher(geometry, taus)).table
    distances = naive_distance(books.level(1)[:, None], books.level(1)[None]).square()
    expected = correct((-distances / taus[1]).softmax(-1).float()[:, None], torch.arange(8)[:, None])[:, 0]
    assert torch.allclose(table[1], expected, atol=1e-4)


def test_a_distiller_learns_the_preferences_of_the_ball():
    torch.manual_seed(0)
    geometry = geometry_of(2, items=16, sizes=(6, 6, 6), scale=1.0)
    distiller = ResidualDistiller.of_tensors(
        geometry.codebooks, geometry.latents, geometry.sids, width=16, config=DistillConfig(horizon=2)
    )
    states = torch.nn.Parameter(torch.randn(16, 3, 16))
    optimizer = torch.optim.AdamW([states, *distiller.parameters()], lr=0.01)
    divergences = []
    for step in range(30):
        optimizer.zero_grad()
        distiller(states, torch.arange(16), sid_loss=torch.tensor(50.0), step=500 + step).backward()
        optimizer.step()
        divergences.append(float(distiller.last.divergence))
    assert divergences[-1] < 0.7 * divergences[0]
    assert all(parameter.isfinite().all() for parameter in distiller.parameters())
    logits = torch.randn(16, 3, 6, requires_grad=True)
    OutputDistiller(distiller.teacher, kind="full")(
        logits, torch.arange(16), sid_loss=torch.tensor(3.0), step=500
    ).backward()
    assert logits.grad.isfinite().all()
    flat = ResidualDistiller.of_tensors(
        geometry.codebooks.values, geometry.latents, geometry.sids, width=16, config=DistillConfig(horizon=2)
    )
    with pytest.raises(Exception, match="trained with codebooks"):
        flat.load_state_dict(distiller.state_dict())
    assert isinstance(distiller.heads, HorizonHeads)
