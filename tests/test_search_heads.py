"""Kept heads: nearness, promises and one-shot scores against brute force; what they may and may not change."""

import numpy as np
import pytest
import torch

from restd.errors import ArtifactError, ConfigError
from restd.index import SidIndex
from restd.search import HeadUse, KeptHeads, Retriever
from restd.search.heads import combined
from tests.training import make_index, run, write_world


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    index = make_index(data, folder / "index")
    run(index, data, folder / "restd", objective="restd", updates=60)
    run(index, data, folder / "base", updates=5)
    return folder


@pytest.fixture
def retriever(folder):
    return Retriever.load(folder / "restd", keep_heads=True)


def first_state(retriever, query):
    ((_, memory),) = retriever._memories(retriever._shelf, [query])
    return retriever.backbone.stepper().start(memory)[1].first[:, 0]


@torch.inference_mode()
def test_nearness_and_codes_ahead_are_distances(retriever):
    held = retriever.heads
    state = first_state(retriever, "oak desk")
    points = held.heads.ahead(state)
    cells = held.heads(state[:, None].expand(-1, 3, -1))  # as in training, where state 0 has every offset
    assert torch.allclose(points[0, 0], cells[0, 0], atol=1e-5)
    assert torch.allclose(points[1, 0], cells[3, 0], atol=1e-5)
    assert torch.allclose(points[2, 0], cells[5, 0], atol=1e-5)
    expected = -(points[0] - held.latents).square().sum(-1) / held.temperatures[0]
    assert torch.allclose(held.nearness(state)[0], expected, atol=1e-3)
    ahead = held.codes_ahead(state)
    distance = -(points[1, 0] - held.codebooks[1]).square().sum(-1) / held.temperatures[1]
    assert torch.allclose(ahead[0, 1], distance.log_softmax(-1), atol=1e-4)


def test_one_shot_is_the_sum_over_levels(retriever):
    state = first_state(retriever, "oak desk")
    ahead = retriever.heads.codes_ahead(state)[0]
    sids = retriever.index.sids
    expected = [sum(float(ahead[level, code]) for level, code in enumerate(sid)) for sid in sids.tolist()]
    found = retriever.heads.one_shot(state, torch.from_numpy(sids.astype(np.int64)))[0]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)
    rows, scores = retriever.rank(["oak desk"], 60, heads=HeadUse("one-shot"))
    assert sorted(rows[0].tolist()) == list(range(60))
    assert scores[0].tolist() == pytest.approx(sorted(expected, reverse=True), abs=1e-4)


def test_a_prefix_promises_its_best_completion(retriever):
    state = first_state(retriever, "oak desk")
    trie = retriever.index.trie
    ahead = retriever.heads.codes_ahead(state)[0]
    promises = retriever.heads.promises(state, trie, weight=1.0)
    sids = trie.sids().long()
    for node in range(trie.nodes(1)):
        code = int(trie.depths[0].codes[node])
        below = [sid for sid in sids.tolist() if sid[0] == code]
        best = max(float(ahead[1, sid[1]] + ahead[2, sid[2]]) for sid in below)
        assert float(promises.best[0][0, node]) == pytest.approx(best, abs=1e-4)
    assert (promises.best[-1] == 0).all()


@pytest.mark.parametrize("use", ["rerank", "fuse", "look-ahead"])
def test_no_weight_changes_nothing(retriever, use):
    plain = retriever.rank(["oak desk", "a red lamp"], 10, width=15)
    heard = retriever.rank(["oak desk", "a red lamp"], 10, width=15, heads=HeadUse(use, weight=0.0, bring=20))
    assert heard[0].tolist() == plain[0].tolist()
    assert np.allclose(heard[1], plain[1], atol=1e-5)


def test_weight_matters_and_look_ahead_reports_plain_scores(retriever):
    plain, scores = retriever.rank(["oak desk"], 10, width=10)
    near, _ = retriever.rank(["oak desk"], 10, width=10, heads=HeadUse("fuse", weight=1e5, bring=60))
    order = retriever.heads.nearness(first_state(retriever, "oak desk"))[0].argsort(descending=True)[:10]
    assert near[0].tolist() == order.tolist()
    assert near.tolist() != plain.tolist()
    rows, heard = retriever.rank(["oak desk"], 60, width=60, heads=HeadUse("look-ahead", weight=3.0))
    whole, exact = retriever.rank(["oak desk"], 60, width=60)
    assert rows.tolist() == whole.tolist()  # a beam that keeps everything has nothing to hope for
    assert np.allclose(heard, exact, atol=1e-5)
    assert scores[0, 0] == pytest.approx(exact[0, 0], abs=1e-5)


def test_filters_hold_for_what_is_brought_in(retriever):
    for use in ("rerank", "fuse", "look-ahead", "one-shot"):
        hits = retriever.search("oak desk", k=15, where=["title~green"], heads=HeadUse(use, weight=5.0))
        assert len(hits) == 15
        assert all("green" in hit.item for hit in hits)


def test_what_the_beam_lacks_gets_the_score_of_its_last():
    near = torch.tensor([0.0, -1.0, -2.0, -0.5])
    names, total = combined(np.array([2, 1, -1]), np.array([-1.0, -3.0, -np.inf]), near, 4, weight=0.1, bring=4)
    assert names.tolist() == [2, 0, 3, 1]
    assert total.tolist() == pytest.approx([-1.2, -3.0, -3.05, -3.1])


def test_heads_that_are_not_there(folder, retriever):
    with pytest.raises(ArtifactError, match="not an artefact"):
        Retriever.load(folder / "base", keep_heads=True)
    with pytest.raises(ConfigError, match="were not kept"):
        Retriever.load(folder / "base").search("desk", heads=HeadUse("rerank"))
    with pytest.raises(ConfigError, match="one of rerank"):
        HeadUse("rerank", weight=-1.0)
    other = SidIndex.load(make_index(folder / "data", folder / "other", seed=3))
    with pytest.raises(ArtifactError, match="another index"):
        KeptHeads.load(folder / "restd", other)
    retriever.remove(["red-oak-desk"])
    with pytest.raises(ConfigError, match="came or went"):
        retriever.search("desk", heads=HeadUse("rerank"))
