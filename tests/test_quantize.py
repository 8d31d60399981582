"""Latent spaces and codebooks."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.errors import ArtifactError, ConfigError
from restd.quantize import (
    Codebooks,
    KMeansConfig,
    RqVaeConfig,
    assign,
    assign_balanced,
    automatic_codes,
    fit_kmeans,
    fit_rqvae,
    last_residuals,
    level_sizes,
    nearest,
    quantizer_from_state,
    sinkhorn,
    trajectory,
)
from restd.quantize.codebooks import check_rows


def clustered(items=600, dim=24, centres=30, seed=0):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(centres, dim))[rng.integers(0, centres, items)]
    return (points + 0.3 * rng.normal(size=(items, dim))).astype(np.float32)


SMALL_VAE = RqVaeConfig(levels=3, codes=8, dim=6, hidden=(32, 16), epochs=15, batch=128)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 1000))
def test_assignment_is_greedy_and_the_trajectory_follows_it(sizes, seed):
    rng = np.random.default_rng(seed)
    books = Codebooks.of([rng.normal(size=(size, 5)) for size in sizes])
    latents = rng.normal(size=(30, 5)).astype(np.float16)
    codes = assign(latents, books)
    steps = trajectory(latents, codes, books)
    for level in range(books.levels):
        distances = np.square(steps[:, level, None] - books.level(level)).sum(-1)
        chosen = np.take_along_axis(distances, codes[:, level, None].astype(int), 1)[:, 0]
        assert chosen == pytest.approx(distances.min(1), abs=1e-5)
    assert np.allclose(steps[:, -1], last_residuals(latents, codes, books), atol=1e-6)
    rebuilt = sum(books.level(level)[codes[:, level]] for level in range(books.levels))
    assert np.allclose(steps[:, -1] + rebuilt, latents.astype(np.float32), atol=1e-5)


@pytest.mark.parametrize("config", [KMeansConfig(codes=16, dim=8), SMALL_VAE])
def test_same_seed_same_codes_and_state_comes_back(config):
    vectors = clustered()
    fit = fit_kmeans if isinstance(config, KMeansConfig) else fit_rqvae
    first, second = fit(vectors, config, items=600), fit(vectors, config, items=600)
    codes = assign(first.latents(vectors), first.codebooks)
    assert (codes == assign(second.latents(vectors), second.codebooks)).all()
    restored = quantizer_from_state(first.settings, first.tensors(), first.codebooks)
    assert (restored.latents(vectors) == first.latents(vectors)).all()
    assert np.allclose(restored.reconstruct(first.latents(vectors)), first.reconstruct(first.latents(vectors)))


def test_unknown_quantizer_kind_is_refused():
    books = Codebooks.of([np.zeros((2, 2))])
    with pytest.raises(ArtifactError, match="kind 'magic'"):
        quantizer_from_state({"kind": "magic"}, {}, books)


def test_kmeans_matches_faiss_objective_and_uses_every_code():
    vectors = clustered(2_000)
    quantizer = fit_kmeans(vectors, KMeansConfig(codes=32, dim=8), items=2_000)
    latents = quantizer.latents(vectors)
    codes = assign(latents, quantizer.codebooks)
    assert [len(np.unique(codes[:, level])) for level in range(4)] == [32] * 4
    errors = np.square(trajectory(latents, codes, quantizer.codebooks)).sum(2).mean(0)
    assert (np.diff(errors) < 0).all()


def test_pca_reconstructs_what_lies_in_its_span(rng):
    basis = np.linalg.qr(rng.normal(size=(20, 4)))[0].T
    vectors = (rng.normal(size=(500, 4)) @ basis + 1.0).astype(np.float32)
    quantizer = fit_kmeans(vectors, KMeansConfig(codes=8, dim=4, normalize=False), items=500)
    rebuilt = quantizer.reconstruct(quantizer.latents(vectors))
    assert np.abs(rebuilt - vectors).max() < 0.01


def test_empty_codes_are_reseeded():
    from restd.quantize.kmeans import _reseed_empty

    points = np.concatenate([np.zeros((50, 2)), np.ones((1, 2)), 2 * np.ones((1, 2))]).astype(np.float32)
    book = _reseed_empty(points, np.array([[0, 0], [100, 100], [200, 200]], np.float32))
    assert len(np.unique(nearest(points, book))) == 3


def test_levels_of_different_sizes_are_padded_and_never_assigned():
    vectors = clustered()
    quantizer = fit_kmeans(vectors, KMeansConfig(levels=3, codes=(4, 16, 8), dim=8), items=600)
    codes = assign(quantizer.latents(vectors), quantizer.codebooks)
    assert quantizer.codebooks.values.shape == (3, 16, 8)
    assert [int(codes[:, level].max()) < size for level, size in enumerate((4, 16, 8))] == [True] * 3
    check_rows(codes, quantizer.codebooks)
    with pytest.raises(ConfigError, match="Code 4 at level 1"):
        check_rows(np.array([[4, 0, 0]]), quantizer.codebooks)


def test_automatic_codes_grow_with_the_catalogue():
    sizes = [automatic_codes(items) for items in (1, 1_000, 10_000, 100_000, 10_000_000)]
    assert sizes == [1, 16, 64, 128, 256]


@pytest.mark.parametrize(
    ("codes", "message"),
    [((4, 4), "2 codebook sizes were given for 4 levels"), (601, "only 600 items"), ((4, 4, 4, -1), "-1 codes")],
)
def test_impossible_sizes(codes, message):
    with pytest.raises(ConfigError, match=message):
        level_sizes(codes, levels=4, items=600)


@pytest.mark.parametrize("fit", [fit_kmeans, fit_rqvae])
def test_identical_items_are_refused(fit):
    config = KMeansConfig(codes=4) if fit is fit_kmeans else RqVaeConfig(codes=4)
    with pytest.raises(ConfigError, match="All 50 items have the same vector"):
        fit(np.ones((50, 8), np.float32), config, items=50)


def test_rqvae_learns_and_uses_its_codes():
    vectors = clustered(1_000)
    config = RqVaeConfig(levels=3, codes=16, dim=8, hidden=(64,), epochs=40, batch=50)
    quantizer = fit_rqvae(vectors, config, items=1_000)
    latents = quantizer.latents(vectors)
    codes = assign(latents, quantizer.codebooks)
    rebuilt = quantizer.reconstruct(latents.astype(np.float32) - last_residuals(latents, codes, quantizer.codebooks))
    wanted = quantizer.prepared(vectors)
    error = np.square(rebuilt - wanted).sum() / np.square(wanted - wanted.mean(0)).sum()
    assert error < 0.35
    for level in range(3):
        shares = np.bincount(codes[:, level], minlength=16) / len(codes)
        assert np.exp(-(shares * np.log(shares + 1e-12)).sum()) > 8


def test_rqvae_unit_gives_the_papers_entropy_at_its_temperature():
    vectors = clustered(1_000)
    for scale in (1.0, 50.0):  # whatever the embeddings' scale was
        quantizer = fit_rqvae(vectors * scale, SMALL_VAE, items=1_000)
        latents = torch.from_numpy(quantizer.latents(vectors * scale).astype(np.float32))
        distances = torch.cdist(latents, torch.from_numpy(quantizer.codebooks.level(0))).square()
        entropy = torch.special.entr((-distances / 0.2).softmax(1)).sum(1).mean() / np.log(8)
        assert float(entropy) == pytest.approx(0.57, abs=0.02)


def test_rqvae_sinkhorn_on_the_last_level_trains():
    from dataclasses import replace

    quantizer = fit_rqvae(clustered(), replace(SMALL_VAE, sinkhorn_last=True, epochs=3), items=600)
    assert np.isfinite(quantizer.codebooks.values).all()


def test_a_collapse_is_told_with_the_knob_to_turn(caplog):
    # an encoder that shrinks its input far below random codewords, and no cure: all items take the smallest codeword
    config = RqVaeConfig(codes=32, hidden=(16,) * 12, epochs=6, kmeans_init=False, reset_dead=False, learning_rate=1e-9)
    with caplog.at_level(logging.WARNING, logger="restd"):
        fit_rqvae(clustered(), config, items=600)
    assert "collapsed" in caplog.text
    assert "learning_rate" in caplog.text


def test_a_healthy_run_warns_of_nothing(caplog):
    with caplog.at_level(logging.WARNING, logger="restd"):
        fit_rqvae(clustered(), SMALL_VAE, items=600)
    assert caplog.text == ""


def test_sinkhorn_balances(rng):
    plan = sinkhorn(torch.from_numpy(rng.random((64, 8))))
    assert torch.allclose(plan.sum(1), torch.ones(64, dtype=plan.dtype), atol=1e-6)
    assert torch.allclose(plan.sum(0), torch.full((8,), 8.0, dtype=plan.dtype), rtol=0.3)


def test_balanced_assignment_evens_out_use(rng):
    sizes = (1_500, 200, 150, 150)  # one cluster has most items
    points = np.concatenate([rng.normal(size=(size, 4)) * 0.2 + 2 * rng.normal(size=4) for size in sizes])
    quantizer = fit_kmeans(points.astype(np.float32), KMeansConfig(codes=16, dim=4, normalize=False), items=2_000)
    latents = quantizer.latents(points.astype(np.float32))
    greedy, balanced = assign(latents, quantizer.codebooks), assign_balanced(latents, quantizer.codebooks, seed=0)
    spread = [np.bincount(codes[:, 0], minlength=16).std() for codes in (greedy, balanced)]
    assert spread[1] < 0.5 * spread[0]
    assert (balanced == assign_balanced(latents, quantizer.codebooks, seed=0)).all()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (KMeansConfig, {"levels": 0}),
        (KMeansConfig, {"dim": 0}),
        (KMeansConfig, {"seed": -1}),
        (KMeansConfig, {"sample": 1}),
        (KMeansConfig, {"iterations": 0}),
        (RqVaeConfig, {"dim": -3}),
        (RqVaeConfig, {"hidden": (0,)}),
        (RqVaeConfig, {"epochs": 0}),
        (RqVaeConfig, {"learning_rate": -1.0}),
        (RqVaeConfig, {"weight_decay": -1.0}),
    ],
)
def test_impossible_settings(kind, settings):
    with pytest.raises(ConfigError, match="wanted"):
        kind(**settings)


def test_vectors_that_differ_only_in_length_are_identical():
    vectors = np.ones((50, 4), np.float32) * np.linspace(1, 9, 50, dtype=np.float32)[:, None]
    for fit, config in ((fit_kmeans, KMeansConfig(codes=4)), (fit_rqvae, RqVaeConfig(codes=4))):
        with pytest.raises(ConfigError, match="same vector"):
            fit(vectors, config, items=50)


def test_a_level_of_one_code_leaves_the_unit_sane():
    from dataclasses import replace

    quantizer = fit_rqvae(clustered(), replace(SMALL_VAE, codes=(1, 8, 8)), items=600)
    lengths = np.square(quantizer.latents(clustered()).astype(np.float32)).sum(1).mean()
    assert lengths == pytest.approx(1.0, rel=0.2)
