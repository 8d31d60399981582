"""Latent spaces and codebooks."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.codes import Codebooks, as_tensor, assign, check_codes, last_residuals, nearest, trajectory
from restd.config import read_recipe
from restd.errors import ConfigError
from restd.index import IndexConfig
from restd.quantize import (
    KMeansConfig,
    RqVaeConfig,
    assign_balanced,
    automatic_codes,
    fit_kmeans,
    fit_level,
    fit_rqvae,
    level_sizes,
    restore_quantizer,
    rqvae_training,
)
from restd.quantize.rqvae_training import Autoencoder, Training
from restd.quantize.sinkhorn import sinkhorn


def clustered(items=600, dim=24, centres=30, seed=0):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(centres, dim))[rng.integers(0, centres, items)]
    return (points + 0.3 * rng.normal(size=(items, dim))).astype(np.float32)


SMALL_VAE = RqVaeConfig(levels=3, codes=8, dim=6, hidden=(32, 16), epochs=15, batch=128)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 1000))
def test_assignment_is_greedy_and_the_trajectory_follows_it(sizes, seed):
    rng = np.random.default_rng(seed)
    books = Codebooks.of([rng.normal(size=(size, 5)) for size in sizes])
    latents = torch.from_numpy(rng.normal(size=(30, 5)).astype(np.float16))
    codes = assign(latents, books)
    steps = trajectory(latents, codes, books)
    for level in range(books.levels):
        distances = (steps[:, level, None] - books.level(level)).square().sum(-1)
        of_codes = distances.gather(1, codes[:, level, None].long())[:, 0]
        assert torch.allclose(of_codes, distances.amin(1), atol=1e-5)
    assert torch.equal(steps[:, -1], last_residuals(latents, codes, books))
    rebuilt = sum(books.level(level)[codes[:, level].long()] for level in range(books.levels))
    assert torch.allclose(steps[:, -1] + rebuilt, latents.float(), atol=1e-5)


@pytest.mark.parametrize("config", [KMeansConfig(codes=16, dim=8), SMALL_VAE])
def test_same_seed_same_codes_and_state_comes_back(config):
    vectors = clustered()
    fit = fit_kmeans if isinstance(config, KMeansConfig) else fit_rqvae
    first, second = fit(vectors, config, items=600), fit(vectors, config, items=600)
    codes = assign(as_tensor(first.latents(vectors)), first.codebooks)
    assert torch.equal(codes, assign(as_tensor(second.latents(vectors)), second.codebooks))
    restored = restore_quantizer(first.settings, first.tensors(), first.codebooks)
    assert (restored.latents(vectors) == first.latents(vectors)).all()
    assert np.allclose(restored.reconstruct(first.latents(vectors)), first.reconstruct(first.latents(vectors)))


def test_unknown_quantizer_kind_is_refused():
    books = Codebooks.of([np.zeros((2, 2))])
    with pytest.raises(ConfigError, match=r"Unknown quantiser 'magic'\. Known: kmeans, rqvae"):
        restore_quantizer({"kind": "magic"}, {}, books)


def test_kmeans_uses_every_code_and_each_level_lowers_the_error():
    vectors = clustered(2_000)
    quantizer = fit_kmeans(vectors, KMeansConfig(codes=32, dim=8), items=2_000)
    latents = as_tensor(quantizer.latents(vectors))
    codes = assign(latents, quantizer.codebooks)
    assert [len(codes[:, level].unique()) for level in range(4)] == [32] * 4
    errors = trajectory(latents, codes, quantizer.codebooks).square().sum(2).mean(0)
    assert (errors.diff() < 0).all()


def test_pca_reconstructs_what_lies_in_its_span(rng):
    basis = np.linalg.qr(rng.normal(size=(20, 4)))[0].T
    vectors = (rng.normal(size=(500, 4)) @ basis + 1.0).astype(np.float32)
    quantizer = fit_kmeans(vectors, KMeansConfig(codes=8, dim=4, normalize=False), items=500)
    rebuilt = quantizer.reconstruct(quantizer.latents(vectors))
    assert np.abs(rebuilt - vectors).max() < 0.01


def test_empty_codes_are_reseeded():
    from restd.quantize.kmeans_fit import _reseed_empty

    points = np.concatenate([np.zeros((50, 2)), np.ones((1, 2)), 2 * np.ones((1, 2))]).astype(np.float32)
    book = _reseed_empty(points, np.array([[0, 0], [100, 100], [200, 200]], np.float32))
    assert len(nearest(as_tensor(points), as_tensor(book)).unique()) == 3


def test_levels_of_different_sizes_are_padded_and_never_assigned():
    vectors = clustered()
    quantizer = fit_kmeans(vectors, KMeansConfig(levels=3, codes=(4, 16, 8), dim=8), items=600)
    codes = assign(as_tensor(quantizer.latents(vectors)), quantizer.codebooks)
    assert quantizer.codebooks.values.shape == (3, 16, 8)
    assert [int(codes[:, level].max()) < size for level, size in enumerate((4, 16, 8))] == [True] * 3
    check_codes(codes, quantizer.codebooks)
    with pytest.raises(ConfigError, match="code 4 at level 1"):
        check_codes(torch.tensor([[4, 0, 0]]), quantizer.codebooks)


def test_automatic_codes_grow_with_the_catalogue():
    sizes = [automatic_codes(items) for items in (1, 1_000, 10_000, 100_000, 10_000_000)]
    assert sizes == [1, 16, 64, 128, 256]


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ((4, 4), "one for each of 4 levels; got 2 sizes"),
        (601, "there are only 600"),
        ((4, 4, 4, -1), "at least 1 code, got -1"),
    ],
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
    latents = as_tensor(quantizer.latents(vectors))
    codes = assign(latents, quantizer.codebooks)
    decoded = latents.float() - last_residuals(latents, codes, quantizer.codebooks)
    rebuilt = quantizer.reconstruct(decoded.numpy())
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
        distances = torch.cdist(latents, quantizer.codebooks.level(0)).square()
        entropy = torch.special.entr((-distances / 0.2).softmax(1)).sum(1).mean() / np.log(8)
        assert float(entropy) == pytest.approx(0.57, abs=0.02)


def test_rqvae_sinkhorn_on_the_last_level_trains():
    quantizer = fit_rqvae(clustered(), replace(SMALL_VAE, sinkhorn_last=True, epochs=3), items=600)
    assert quantizer.codebooks.values.isfinite().all()


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
    greedy = assign(as_tensor(latents), quantizer.codebooks).numpy()
    balanced = assign_balanced(latents, quantizer.codebooks, seed=0)
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
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} must be"):
        kind(**settings)


def test_vectors_that_differ_only_in_length_are_identical():
    vectors = np.ones((50, 4), np.float32) * np.linspace(1, 9, 50, dtype=np.float32)[:, None]
    for fit, config in ((fit_kmeans, KMeansConfig(codes=4)), (fit_rqvae, RqVaeConfig(codes=4))):
        with pytest.raises(ConfigError, match="same vector"):
            fit(vectors, config, items=50)


def test_a_level_of_one_code_leaves_the_unit_sane():
    quantizer = fit_rqvae(clustered(), replace(SMALL_VAE, codes=(1, 8, 8)), items=600)
    lengths = np.square(quantizer.latents(clustered()).astype(np.float32)).sum(1).mean()
    assert lengths == pytest.approx(1.0, rel=0.2)


def test_commitment_reaches_the_encoder_through_level_one_alone():
    """As in the authors' release: straight-through gradients cancel in the residuals of later levels."""
    config = replace(SMALL_VAE, commitment=1.0)
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(64, 24, generator=generator)

    def gradient(books, levels):
        network = Autoencoder((24, 16, 6), torch.Generator().manual_seed(1))
        for parameter in network.decoder.parameters():
            parameter.data.zero_()  # no gradient from the reconstruction
        usage = [torch.zeros(8, dtype=torch.int64) for _ in range(levels)]
        loss, _ = Training(network, [torch.nn.Parameter(book) for book in books[:levels]], usage, config).step(data)
        (loss * levels).backward()  # a mean over levels: make level 1 weigh the same
        return [parameter.grad for parameter in network.encoder.parameters()]

    books = [torch.randn(8, 6, generator=generator) for _ in range(3)]
    one, three = gradient(books, 1), gradient(books, 3)
    assert any(part.abs().sum() > 0 for part in one)
    assert all(torch.allclose(first, second, atol=1e-6) for first, second in zip(one, three, strict=True))


def test_more_restarts_of_kmeans_never_give_a_larger_error():
    points = clustered(400, dim=4, centres=40, seed=3)

    def error(restarts):
        book = fit_level(points, 16, seed=0, iterations=2, restarts=restarts)
        return float(np.square(points - book[nearest(as_tensor(points), as_tensor(book)).numpy()]).sum())

    assert error(10) < error(1)


@pytest.mark.parametrize("reset", [False, True])
def test_restarts_and_resets_are_done_as_set(monkeypatch, reset):
    restarts_seen, resets = [], []
    original = rqvae_training.fit_level

    def watched(*given, restarts, **options):
        restarts_seen.append(restarts)
        return original(*given, restarts=restarts, **options)

    monkeypatch.setattr(rqvae_training, "fit_level", watched)
    monkeypatch.setattr(Training, "reset_dead_codes", lambda self, batch, generator: resets.append(len(batch)))
    config = replace(SMALL_VAE, epochs=3, kmeans_restarts=2, reset_dead=reset)
    fit_rqvae(clustered(), config, items=600)
    assert restarts_seen == [2] * config.levels
    assert len(resets) == (2 if reset else 0)  # not after the last epoch


def test_recipes_of_the_paper_have_its_settings():
    paper = IndexConfig.read(read_recipe("paper-index"))
    assert (paper.quantizer, paper.encoder) == ("rqvae", "google-bert/bert-base-uncased")
    assert not paper.fit.reset_dead
    assert paper.fit.kmeans_restarts == 10
    assert paper.fit.sample > 288_372, "the whole of ESCI-US"
    assert paper.fit.hidden == (4096, 2048, 1024, 512, 256, 128, 64)
    recommendation = IndexConfig.read(read_recipe("recommendation-index"))
    assert recommendation.quantizer == "kmeans", "what the recorded figures were measured with"
    for name in ("kmeans", "rqvae"):
        section = recommendation.section(name)
        assert (section.levels, section.codes, section.dim) == (3, 256, 32)
