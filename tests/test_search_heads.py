"""Kept heads: nearness, look-ahead and one-shot scores against brute force; what they may and may not change."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from restd.data import Catalog
from restd.distill import HorizonHeads
from restd.errors import ArtifactError, ConfigError
from restd.index import IndexConfig, build_index, with_shape
from restd.search import HEAD_MODES, HeadUse, KeptHeads, Retriever, SearchOptions, beam_search
from restd.search.generate import Plan
from restd.search.heads import combine, head_search
from restd.search.results import RankedList
from restd.snapshot import Snapshot
from tests.steppers import TableStepper, memory_of, score_of
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
    plan = Plan.of(retriever.snapshot, [query], SearchOptions().settled("search"))
    ((_, memory),) = retriever._generator.memories(retriever.snapshot, plan)
    return retriever.backbone.stepper().start(memory)[1].first[:, 0]


@torch.inference_mode()
def test_nearness_and_codes_ahead_are_distances(retriever):
    kept = retriever.heads
    state = first_state(retriever, "oak desk")
    points = kept.heads.ahead(state)
    cells = kept.heads(state[:, None].expand(-1, 3, -1))  # as in training, where state 0 has every offset
    assert torch.allclose(points[0, 0], cells[0, 0], atol=1e-5)
    assert torch.allclose(points[1, 0], cells[3, 0], atol=1e-5)
    assert torch.allclose(points[2, 0], cells[5, 0], atol=1e-5)
    latents = retriever.snapshot.points
    expected = -(points[0] - latents).square().sum(-1) / kept.temperatures[0]
    assert torch.allclose(kept.nearness(state, latents)[0], expected, atol=1e-3)
    ahead = kept.codes_ahead(state)
    distance = -(points[1, 0] - kept.codebooks[1]).square().sum(-1) / kept.temperatures[1]
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


def test_a_prefix_looks_ahead_to_its_best_completion(retriever):
    state = first_state(retriever, "oak desk")
    trie = retriever.index.trie
    ahead = retriever.heads.codes_ahead(state)[0]
    ahead_of = retriever.heads.completions(state, trie, weight=1.0)
    sids = trie.sids().long()
    for node in range(trie.nodes(1)):
        code = int(trie.depths[0].codes[node])
        below = [sid for sid in sids.tolist() if sid[0] == code]
        best = max(float(ahead[1, sid[1]] + ahead[2, sid[2]]) for sid in below)
        assert float(ahead_of.best[0][0, node]) == pytest.approx(best, abs=1e-4)
    assert (ahead_of.best[-1] == 0).all()


@pytest.fixture(scope="module", params=["equal", "pyramid", "suffix"])
def shaped(request, tmp_path_factory):
    """Indexes whose levels are alike, grow, or end in a code that no codebook has; with heads nobody trained."""
    folder = tmp_path_factory.mktemp(request.param)
    data = write_world(folder / "data")
    policy = "suffix" if request.param == "suffix" else "single_substitution"
    codes = (2, 5, 9) if request.param == "pyramid" else 4
    config = with_shape(IndexConfig(encoder="tfidf-svd", policy=policy), levels=3, codes=codes, dim=8)
    build_index(Catalog(data), folder / "index", config)
    snapshot = Snapshot.load(folder / "index")
    return snapshot, KeptHeads.of(HorizonHeads(6, 8, horizon=3), torch.tensor([0.5, 0.7, 0.9]), snapshot)


def naive_look_ahead(stepper, sids, ahead, *, width, weight):
    """A beam that judges prefixes by their own score and their best completion, in plain Python."""
    kept = [()]
    for level in range(len(stepper.sizes)):
        longer = sorted({sid[: level + 1] for sid in sids if sid[:level] in kept})

        def hope(prefix, level=level):
            below = [sid for sid in sids if sid[: level + 1] == prefix]
            words = [sum(float(ahead[s, sid[s]]) for s in range(level + 1, len(ahead))) for sid in below]
            return weight * max(words) if level + 1 < len(stepper.sizes) else 0.0

        worth = {prefix: score_of(stepper, 1, prefix) + hope(prefix) for prefix in longer}
        kept = sorted(longer, key=lambda prefix: (-worth[prefix], prefix))[:width]
    return sorted(kept, key=lambda sid: (-score_of(stepper, 1, sid), sid))


@pytest.mark.parametrize(("width", "weight"), [(1, 0.0), (2, 1.0), (4, 0.5), (7, 3.0)])
def test_look_ahead_is_the_naive_one_whatever_the_levels(shaped, width, weight):
    snapshot, heads = shaped
    first = torch.randn(1, 6, generator=torch.Generator().manual_seed(1))
    ahead = heads.codes_ahead(first)[0]
    stepper = TableStepper(snapshot.index.sizes)
    sids = sorted({tuple(sid) for sid in snapshot.sids.tolist()})
    completions = heads.completions(first, snapshot.trie, weight=weight)
    beams = beam_search(stepper, memory_of([1]), snapshot.trie, width=width, look_ahead=completions)
    found = [tuple(sid) for sid in beams.sids[0].tolist()]
    assert found == naive_look_ahead(stepper, sids, ahead, width=width, weight=weight)
    assert beams.scores[0].tolist() == pytest.approx([score_of(stepper, 1, sid) for sid in found], abs=1e-5)


def test_every_use_of_heads_works_whatever_the_levels(shaped):
    snapshot, heads = shaped
    sizes = snapshot.index.sizes
    for mode in HEAD_MODES:
        lists = head_search(
            heads,
            HeadUse(mode),
            snapshot,
            FirstState(sizes),
            memory_of([1, 2]),
            snapshot.trie,
            depths=[60, 5],
            widths=[60, 5],
            trie_normalized=False,
        )
        assert [len(ranked.rows) for ranked in lists] == [60, 5]
        assert sorted(lists[0].rows.tolist()) == list(range(60))


class FirstState(TableStepper):
    """A table that has a first state too."""

    def start(self, memory):
        scored, cache = super().start(memory)
        return scored, replace(cache, first=memory.states.expand(-1, 1, 6))


@pytest.mark.parametrize("use", ["rerank", "fuse", "look-ahead"])
def test_no_weight_changes_nothing(retriever, use):
    plain = retriever.rank(["oak desk", "a red lamp"], 10, beam=15)
    heard = retriever.rank(["oak desk", "a red lamp"], 10, beam=15, heads=HeadUse(use, weight=0.0, extra_candidates=20))
    assert heard[0].tolist() == plain[0].tolist()
    assert np.allclose(heard[1], plain[1], atol=1e-5)


def test_weight_matters_and_look_ahead_reports_plain_scores(retriever):
    plain, scores = retriever.rank(["oak desk"], 10, beam=10)
    near, _ = retriever.rank(["oak desk"], 10, beam=10, heads=HeadUse("fuse", weight=1e5, extra_candidates=60))
    nearness = retriever.heads.nearness(first_state(retriever, "oak desk"), retriever.snapshot.points)[0]
    order = nearness.argsort(descending=True)[:10]
    assert near[0].tolist() == order.tolist()
    assert near.tolist() != plain.tolist()
    rows, heard = retriever.rank(["oak desk"], 60, beam=60, heads=HeadUse("look-ahead", weight=3.0))
    whole, exact = retriever.rank(["oak desk"], 60, beam=60)
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
    listed = RankedList(np.array([2, 1]), np.array([-1.0, -3.0]))
    combined = combine(listed, near, 4, weight=0.1, extra_candidates=4)
    assert combined.rows.tolist() == [2, 0, 3, 1]
    assert combined.scores.tolist() == pytest.approx([-1.2, -3.0, -3.05, -3.1])


def test_heads_that_are_not_there(folder, retriever):
    with pytest.raises(ArtifactError, match="not an artefact"):
        Retriever.load(folder / "base", keep_heads=True)
    with pytest.raises(ConfigError, match="were not loaded"):
        Retriever.load(folder / "base").search("desk", heads=HeadUse("rerank"))
    with pytest.raises(ConfigError, match=r"weight = -1\.0"):
        HeadUse("rerank", weight=-1.0)
    other = Snapshot.load(make_index(folder / "data", folder / "other", seed=3))
    with pytest.raises(ArtifactError, match="another index"):
        KeptHeads.load(folder / "restd", other)
    with pytest.raises(ArtifactError, match="other codebooks"):
        retriever.heads.refuse_other_codebooks(other)
