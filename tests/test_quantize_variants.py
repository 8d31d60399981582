"""MERGE, CAT-ID², FORGE and HGRec on small generated data: what each loss does, and that without it nothing changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.codes import as_tensor, assign, last_residuals, poincare, quantised
from restd.data.categories import Categories
from restd.errors import ConfigError
from restd.quantize import (
    QUANTIZERS,
    CatId2Config,
    ForgeConfig,
    HyperbolicConfig,
    MergeConfig,
    QueryPairs,
    RqVaeConfig,
    Signals,
    fit_rqvae,
    restore_quantizer,
)
from restd.quantize.hyperbolic import pyramid
from restd.quantize.relevance import SharedQueries

SHAPE = {"levels": 3, "codes": 8, "dim": 6, "hidden": (32, 16), "epochs": 15, "batch": 64}
GROUPS = 12
QUIET = {
    "merge": {"alignment": 0.0, "level_weight": 0.0},
    "cat-id2": {"category": 0.0, "balance": 0.0, "dispersion": 0.0},
    "forge": {"contrast": 0.0},
    "hyperbolic": {"space": "euclidean"},
}
"""What switches every loss of a variant off."""


def world(seed=0, *, items=300, dim=16, noise=1.0):
    """Noisy items of twelve groups; each group has a category and two queries, one of which grades its items."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(GROUPS, dim))
    group = rng.integers(0, GROUPS, items)
    vectors = (centres[group] + noise * rng.normal(size=(items, dim))).astype(np.float32)
    queries = np.repeat(centres, 2, axis=0) + 0.5 * rng.normal(size=(2 * GROUPS, dim))
    query, item, grade = [], [], []
    for number in range(2 * GROUPS):
        members = np.flatnonzero(group == number // 2)[:8]
        query += [number] * len(members)
        item += members.tolist()
        grade += [3.0 if place < 4 else 1.0 for place in range(len(members))]
    pairs = QueryPairs(queries.astype(np.float32), np.array(query), np.array(item), np.array(grade))
    categories = Categories.of_paths([[f"g{number % 4}", f"g{number}"] for number in group], depth=2)
    return vectors, Signals(categories, pairs), group


def fitted(name, *, vectors, signals, **settings):
    kind = QUANTIZERS[name]
    config = kind.config(**{**SHAPE, **settings})
    options = {"signals": signals} if kind.needs else {}
    return kind.fit(vectors, config, items=len(vectors), **options)


@pytest.mark.parametrize("name", list(QUIET))
def test_without_its_losses_a_variant_is_the_plain_rqvae_bit_by_bit(name):
    vectors, signals, _ = world()
    variant = fitted(name, vectors=vectors, signals=signals, **QUIET[name])
    plain = fit_rqvae(vectors, RqVaeConfig(**SHAPE), items=len(vectors))
    assert torch.equal(variant.codebooks.values, plain.codebooks.values)
    ours, theirs = variant.tensors(), plain.tensors()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    assert variant.settings["kind"] == name
    assert variant.codebooks.fingerprint() == plain.codebooks.fingerprint()


@pytest.mark.parametrize("name", list(QUIET))
def test_with_its_losses_a_variant_differs_is_repeatable_and_comes_back(name):
    vectors, signals, _ = world()
    one, other = (fitted(name, vectors=vectors, signals=signals, epochs=4) for _ in range(2))
    plain = fit_rqvae(vectors, RqVaeConfig(**{**SHAPE, "epochs": 4}), items=len(vectors))
    assert torch.equal(one.codebooks.values, other.codebooks.values)
    assert not torch.equal(one.codebooks.values, plain.codebooks.values)
    restored = restore_quantizer(one.settings, one.tensors(), one.codebooks)
    assert type(restored) is type(one)
    assert (restored.latents(vectors) == one.latents(vectors)).all()
    assert np.allclose(restored.reconstruct(one.latents(vectors)), one.reconstruct(one.latents(vectors)))


def nearness(quantizer, vectors, signals):
    """Mean cosine of queries and their items, and how often an item is nearer to its own query than another item."""
    pairs = signals.queries
    items, queries = (
        torch.nn.functional.normalize(torch.from_numpy(quantizer.latents(part).astype(np.float32)), dim=1)
        for part in (vectors, pairs.vectors)
    )
    cosines = queries @ items.T
    own = cosines[pairs.query, pairs.item]
    return float(own.mean()), float((own[:, None] > cosines[pairs.query]).float().mean())


def test_merge_draws_queries_nearer_to_their_items():
    vectors, signals, _ = world()
    plain = nearness(fitted("rqvae", vectors=vectors, signals=signals), vectors, signals)
    for settings in ({}, {"alignment": 0.1, "level_weight": 0.1}, {"query": "text", "alignment": 0.1}):
        merged = nearness(fitted("merge", vectors=vectors, signals=signals, **settings), vectors, signals)
        assert merged[0] > plain[0] + 0.01, settings
        assert merged[1] > plain[1], settings


def mutual_information(codes, labels):
    joint = np.zeros((codes.max() + 1, labels.max() + 1))
    np.add.at(joint, (codes, labels), 1 / len(codes))
    expected = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    seen = joint > 0
    return float((joint[seen] * np.log(joint[seen] / expected[seen])).sum())


def test_cat_id2_makes_first_codes_agree_with_categories():
    vectors, signals, _ = world()
    labels = signals.categories.of_item[:, 0]
    figures = []
    for name, settings in (("rqvae", {}), ("cat-id2", {})):
        quantizer = fitted(name, vectors=vectors, signals=signals, epochs=30, **settings)
        codes = assign(as_tensor(quantizer.latents(vectors)), quantizer.codebooks).numpy()
        figures.append(mutual_information(codes[:, 0], labels))
    assert figures[1] > figures[0] + 0.1


def test_balance_evens_out_the_codes_and_dispersion_spreads_reconstructions():
    vectors, signals, _ = world()
    off = {"category": 0.0, "balance": 0.0, "dispersion": 0.0, "reset_dead": False, "kmeans_init": False}

    def evenness(balance):
        quantizer = fitted("cat-id2", vectors=vectors, signals=signals, **{**off, "balance": balance})
        codes = assign(as_tensor(quantizer.latents(vectors)), quantizer.codebooks).numpy()
        return np.bincount(codes[:, 0], minlength=8).std()

    assert evenness(3.0) < evenness(0.0)

    def spread(dispersion):
        quantizer = fitted("cat-id2", vectors=vectors, signals=signals, **{**off, "dispersion": dispersion})
        latents = as_tensor(quantizer.latents(vectors))
        codes = assign(latents, quantizer.codebooks)
        rebuilt = quantizer.reconstruct(quantised(latents, codes, quantizer.codebooks).numpy())
        standard = torch.nn.functional.normalize(torch.from_numpy(rebuilt - quantizer.mean), dim=1)
        return float(torch.cdist(standard, standard).mean())

    assert spread(1.0) > spread(0.0)


def test_forge_draws_items_of_a_query_together():
    vectors, signals, _ = world()
    pairs = signals.queries

    def together(contrast):
        quantizer = fitted("forge", vectors=vectors, signals=signals, contrast=contrast, epochs=30)
        latents = quantizer.latents(vectors).astype(np.float32)
        within = [latents[pairs.item[pairs.query == number]].var(axis=0).sum() for number in np.unique(pairs.query)]
        return np.mean(within) / latents.var(axis=0).sum()

    assert together(1.0) < 0.8 * together(0.0)


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(2, 12))
def test_draws_of_partners_and_triplets_obey_the_judgments(seed, queries, items):
    rng = np.random.default_rng(seed)
    both = np.unique(np.stack([rng.integers(0, queries, 20), rng.integers(0, items, 20)]), axis=1)
    grade = rng.integers(1, 4, both.shape[1]).astype(np.float64)
    pairs = QueryPairs(np.ones((queries, 2), np.float32), both[0], both[1], grade)
    grade_of = {(int(q), int(i)): g for q, i, g in zip(*both, grade, strict=True)}
    of = {n: {i for q, i in grade_of if q == n} for n in range(queries)}
    shared = SharedQueries.of(pairs, items=items)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(items)
    drawn = shared.partners(rows, generator)
    lonely = {i for i in range(items) if not any(i in group and len(group) > 1 for group in of.values())}
    assert set(range(items)) - set(drawn.place.tolist()) == lonely
    for item, partner in zip(drawn.place.tolist(), drawn.partner.tolist(), strict=True):
        assert item != partner
        assert any({item, partner} <= group for group in of.values())
    place, query, grades = shared.answered(rows, generator)
    assert set(place.tolist()) == set(both[1].tolist())
    for item, number, value in zip(place.tolist(), query.tolist(), grades.tolist(), strict=True):
        assert value == pytest.approx(grade_of[number, item] * 3 / grade.max())
    for one, alike, worse in zip(*(part.tolist() for part in shared.triplets(8, generator)), strict=True):
        assert one != alike
        assert any(
            {one, alike, worse} <= group and grade_of[n, one] == grade_of[n, alike] > grade_of[n, worse]
            for n, group in of.items()
        )
    together = shared.shared(rows, rows)
    for one in range(items):
        for other in range(items):
            assert bool(together[one, other]) == (one == other or any({one, other} <= g for g in of.values()))


def test_a_query_is_the_mean_of_its_best_items():
    pairs = QueryPairs(np.ones((2, 2), np.float32), np.array([0, 0, 0]), np.array([0, 1, 2]), np.array([3.0, 3.0, 1.0]))
    means = SharedQueries.of(pairs, items=3).best_mean(np.array([[1, 0], [0, 1], [9, 9]], np.float32))
    assert means.tolist() == [[0.5, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("name", ["merge", "forge"])
def test_judgments_without_grades_or_shared_queries_are_enough(name):
    vectors, signals, _ = world()
    pairs = signals.queries
    plain = QueryPairs(pairs.vectors, pairs.query, pairs.item)
    assert fitted(name, vectors=vectors, signals=Signals(None, plain), epochs=2).codebooks.values.isfinite().all()
    lonely = QueryPairs(pairs.vectors[:2], np.array([0, 1]), np.array([3, 4]))
    assert fitted(name, vectors=vectors, signals=Signals(None, lonely), epochs=2).codebooks.values.isfinite().all()


def test_hyperbolic_learns_and_uses_its_codes():
    vectors, signals, _ = world(noise=0.3)
    quantizer = fitted("hyperbolic", vectors=vectors, signals=signals, codes=(8, 16, 32), epochs=60, dim=8)
    books = quantizer.codebooks
    assert (books.space, books.sizes) == ("poincare", (8, 16, 32))
    latents = as_tensor(quantizer.latents(vectors))
    codes = assign(latents, books)
    rebuilt = quantizer.reconstruct(quantised(latents, codes, books).numpy())
    wanted = quantizer.prepared(vectors)
    assert np.square(rebuilt - wanted).sum() / np.square(wanted - wanted.mean(0)).sum() < 0.4
    assert len(codes[:, 0].unique()) >= 6
    lengths = latents.float().norm(dim=1)
    assert 0.1 < float(lengths.mean()) < 0.9
    assert float(lengths.max()) < 0.91
    error = poincare.squared_norms(last_residuals(latents, codes, books)).mean()
    assert error < 0.3 * poincare.squared_norms(latents.float()).mean()


def test_hyperbolic_options_of_the_rqvae_work():
    vectors, signals, _ = world()
    settings = {"sinkhorn_last": True, "kmeans_init": False, "epochs": 3}
    books = fitted("hyperbolic", vectors=vectors, signals=signals, **settings).codebooks
    assert float(books.values.norm(dim=-1).max()) <= poincare.RADIUS + 1e-6


def test_codebooks_grow_with_the_level_as_far_as_the_items_allow():
    assert pyramid(0, levels=6, items=10**6) == (64, 128, 256, 512, 512, 512)
    assert pyramid(0, levels=4, items=5) == (4, 4, 4, 4)
    assert pyramid((4, 8), levels=2, items=100) == (4, 8)
    vectors, signals, _ = world(items=64)
    assert fitted("hyperbolic", vectors=vectors, signals=signals, codes=0, epochs=1).codebooks.sizes == (16, 16, 16)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (MergeConfig, {"alignment": -1.0}, "alignment must be at least 0"),
        (MergeConfig, {"temperature": 0.0}, "temperature must be above 0"),
        (CatId2Config, {"balance": -0.1}, "balance must be at least 0"),
        (ForgeConfig, {"contrast": -0.1}, "contrast must be at least 0"),
        (ForgeConfig, {"epochs": 0}, "epochs must be at least 1"),
        (HyperbolicConfig, {"levels": 0}, "levels must be at least 1"),
    ],
)
def test_impossible_settings(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        replace(kind(), **settings)
