"""Aligned latents: what is learned, what is kept, and what a changed input does to it."""

import json

import numpy as np
import pytest

from restd.data import Catalog
from restd.errors import ConfigError
from restd.index import IndexConfig, SidIndex, build_index, with_shape
from restd.quantize import AlignConfig, AlignedQuantizer, RqVaeConfig, query_latents
from restd.quantize.alignment import QueryPairs, fit_alignment, principal_alignment, reciprocal_rank
from restd.rankers import RankerContext, make_ranker
from restd.snapshot import Snapshot
from tests.training import write_world

RNG = np.random.default_rng(0)


def hidden_relevance(*, items=400, queries=600, noise=24, seed=0):
    """Items and queries share four dimensions of thirty; the others, with most of the variance, are noise."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(items, 4))
    item = np.concatenate([shared, rng.normal(size=(items, noise))], axis=1).astype(np.float32)
    chosen = rng.integers(items, size=queries)
    meant = shared[chosen] + 0.05 * rng.normal(size=(queries, 4))
    query = np.concatenate([meant, rng.normal(size=(queries, noise))], axis=1).astype(np.float32)
    half = queries // 2
    number = np.arange(half)
    return item, QueryPairs(query[:half], number, chosen[:half]), QueryPairs(query[half:], number, chosen[half:])


def test_alignment_finds_what_makes_an_item_the_answer():
    items, train, valid = hidden_relevance()
    fitted = fit_alignment(items, train, valid, AlignConfig(epochs=40, batch=64, learning_rate=0.01), dim=16)
    start = reciprocal_rank(principal_alignment(items, 16), items, valid)
    assert fitted.history[0] == start
    assert reciprocal_rank(fitted.alignment, items, valid) == max(fitted.history) > 3 * start


def test_the_same_seed_gives_the_same_alignment():
    items, train, valid = hidden_relevance(items=60, queries=80)
    config = AlignConfig(epochs=2, batch=16)
    first, again = (fit_alignment(items, train, valid, config, dim=4).alignment for _ in range(2))
    for name, array in first.tensors().items():
        assert np.array_equal(array, again.tensors()[name])


def test_where_nothing_is_learned_the_principal_axes_stay():
    items, train, valid = hidden_relevance(items=60, queries=80)
    hopeless = QueryPairs(valid.vectors, valid.query, valid.item[RNG.permutation(len(valid.item))])
    fitted = fit_alignment(items, train, hopeless, AlignConfig(epochs=3, learning_rate=1e-9), dim=4)
    start = principal_alignment(items, 4)
    assert np.allclose(fitted.alignment.item_map, start.item_map, atol=1e-5)


def test_an_item_that_also_answers_is_not_a_negative():
    """Two items that answer the same queries end up side by side; as each other's negatives they could not."""
    items, train, valid = hidden_relevance(items=40, queries=80)
    twice = QueryPairs(
        train.vectors, np.concatenate([train.query, train.query]), np.concatenate([train.item, (train.item + 1) % 40])
    )
    fitted = fit_alignment(items, twice, valid, AlignConfig(epochs=5, batch=32), dim=4)
    assert all(np.isfinite(value) for value in fitted.history)
    assert all(np.isfinite(array).all() for array in fitted.alignment.tensors().values())


def test_narrow_embeddings_keep_their_width():
    assert principal_alignment(RNG.normal(size=(20, 8)).astype(np.float32), 16).item_map.shape == (8, 8)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    config = with_shape(IndexConfig(encoder="tfidf-svd"), levels=2, codes=8, dim=8)
    index = build_index(Catalog(data), folder / "index", config, judgments=data)
    return data, folder / "index", index, config


def test_an_aligned_index_keeps_the_query_side(world):
    _, folder, index, _ = world
    assert isinstance(index.quantizer, AlignedQuantizer)
    again = SidIndex.load(folder)
    assert isinstance(again.quantizer, AlignedQuantizer)
    vectors = RNG.normal(size=(3, index.quantizer.alignment.input_dim)).astype(np.float32)
    assert np.array_equal(query_latents(again.quantizer, vectors), query_latents(index.quantizer, vectors))
    assert not np.array_equal(query_latents(again.quantizer, vectors), again.quantizer.latents(vectors))


def test_an_aligned_autoencoder_survives_loading(world, tmp_path):
    chosen = IndexConfig(encoder="tfidf-svd", quantizer="rqvae", rqvae=RqVaeConfig(epochs=1))
    config = with_shape(chosen, levels=2, codes=8, dim=4)
    index = build_index(Catalog(world[0]), tmp_path / "index", config, judgments=world[0])
    again = SidIndex.load(tmp_path / "index")
    vectors = RNG.normal(size=(3, index.quantizer.alignment.input_dim)).astype(np.float32)
    assert np.array_equal(query_latents(again.quantizer, vectors), query_latents(index.quantizer, vectors))


def test_a_second_run_keeps_it_and_other_judgments_do_not(world, tmp_path):
    config = world[3]
    copy = write_world(tmp_path / "data")
    messages = []
    first = build_index(Catalog(copy), tmp_path / "index", config, judgments=copy)
    build_index(Catalog(copy), tmp_path / "index", config, judgments=copy, notify=messages.append)
    assert "Kept the alignment" in messages
    lines = (copy / "judgments.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / "judgments.jsonl").write_text("".join(lines[8:]), encoding="utf-8")
    messages.clear()
    second = build_index(Catalog(copy), tmp_path / "index", config, judgments=copy, notify=messages.append)
    assert "Kept the alignment" not in messages
    assert second.layout() != first.layout()


def test_alignment_can_be_switched_off_and_needs_something_to_learn_from(world, tmp_path):
    data = world[0]
    off = with_shape(IndexConfig(encoder="tfidf-svd", align=AlignConfig(enabled="off")), levels=2, codes=8, dim=8)
    index = build_index(Catalog(data), tmp_path / "off", off, judgments=data)
    assert not isinstance(index.quantizer, AlignedQuantizer)
    bare = IndexConfig(encoder="tfidf-svd", align=AlignConfig(enabled="on", pseudo_queries=0))
    with pytest.raises(ConfigError, match=r"align\.enabled = on needs queries"):
        build_index(Catalog(data), tmp_path / "on", bare)


def test_without_judgments_items_own_words_teach_it(world, tmp_path):
    config = with_shape(IndexConfig(encoder="tfidf-svd", align=AlignConfig(enabled="on")), levels=2, codes=8, dim=8)
    index = build_index(Catalog(world[0]), tmp_path / "index", config)
    assert isinstance(index.quantizer, AlignedQuantizer)


def test_latents_rank_and_score_alike(world):
    data, folder, index, _ = world
    snapshot = Snapshot.of(index, Catalog(data))
    ranker = make_ranker("latent", RankerContext(snapshot, data, folder))
    rows, scores = ranker.rank(["oak desk", "steel kettle"], 5)
    assert np.allclose(ranker.scores(["oak desk", "steel kettle"], rows), scores, atol=1e-5)
    titles = snapshot.items.titles().to_pylist()
    assert any("oak desk" in titles[row] for row in rows[0])
    exact = make_ranker("sids", RankerContext(snapshot, data, folder)).rank(["oak desk"], len(snapshot))
    assert sorted(exact[0][0].tolist()) == list(range(len(snapshot)))


def test_items_are_added_through_the_same_alignment(world):
    _, _, index, _ = world
    vectors = RNG.normal(size=(1, index.quantizer.alignment.input_dim)).astype(np.float32)
    longer, _ = index.add(["new"], vectors)
    assert np.array_equal(longer.latents_and_codebooks()[0][-1:], index.quantizer.latents(vectors))


def test_what_an_index_keeps_is_shown(world):
    from typer.testing import CliRunner

    from restd.cli.app import app

    data, folder, _, _ = world
    result = CliRunner().invoke(app, ["index", "inspect", str(folder), "--data", str(data), "--json"])
    assert result.exit_code == 0, result.output
    kept = json.loads(result.stdout)["kept"]
    assert list(kept) == ["embeddings", "latents", "Semantic IDs"]
    assert 0 < kept["Semantic IDs"]["NDCG@10"] <= 100
    result = CliRunner().invoke(app, ["index", "inspect", str(folder), "--data", str(data)])
    assert "latents" in result.stdout
