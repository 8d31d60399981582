"""Fused scores taken apart: shares add up to the score, and asking for them changes nothing."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.search import Fusion, Hit, PartScore, Retriever, SearchOptions
from restd.search.candidates import LEARNED_FROM_PAIRS, CandidateTable, best_candidates
from restd.search.contributions import part_scores
from tests.training import make_index, run, write_world

WEIGHTS = {"generator": 3.0, "heads": 1.0, "bm25": 2.0, "dense": 0.0, "latent": 0.5, "popularity": 1.0, "match": 0.25}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    index = make_index(data, folder / "index")
    return run(index, data, folder / "run", objective="restd", updates=10).folder.parent


@pytest.fixture
def retriever(trained):
    loaded = Retriever.load(trained, keep_heads=True)
    loaded.set_companions(["bm25", "dense", "latent", "popularity", "match"])
    loaded.fusion = Fusion(WEIGHTS)
    return loaded


def drawn_table(seed, *, with_new):
    rng = np.random.default_rng(seed)
    rows = np.tile(np.arange(8), (3, 1))
    rows[1, 5:] = -1
    scores = {part: rng.normal(size=rows.shape).round(1) for part in WEIGHTS}
    scores["generator"][:, 0] = -np.inf
    proposed = {part: (rng.random(rows.shape) < 0.5) & (rows >= 0) for part in WEIGHTS}
    new = (rng.random(rows.shape) < 0.4) & (rows >= 0)
    return CandidateTable(rows, scores, proposed, new if with_new else None)


@given(
    seed=st.integers(0, 10_000),
    with_new=st.booleans(),
    parts=st.sets(st.sampled_from([part for part, weight in WEIGHTS.items() if weight]), min_size=1),
)
def test_shares_add_up_to_the_fused_score(seed, with_new, parts):
    table = drawn_table(seed, with_new=with_new)
    weights = {part: WEIGHTS[part] for part in parts}
    fused = table.fused(weights)
    rows, scores = best_candidates(table.rows, fused, 8)
    for chosen, values, taken in zip(rows, scores, part_scores(table, weights, rows), strict=True):
        for row, value, own in zip(chosen.tolist(), values.tolist(), taken, strict=True):
            assert (own == {}) == (row < 0)
            if row >= 0:
                assert own.keys() == weights.keys()
                assert sum(part.share for part in own.values()) == pytest.approx(value, abs=1e-12)
                assert all(part.share == part.weight * part.scaled for part in own.values())


def test_parts_have_no_say_about_items_they_cannot_know():
    rows, every = np.array([[0, 1]]), np.ones((1, 2), bool)
    scores = {"generator": np.array([[-1.0, -9.0]]), "bm25": np.array([[2.0, 6.0]])}
    table = CandidateTable(rows, scores, dict.fromkeys(scores, every), np.array([[False, True]]))
    weights = {"generator": 3.0, "bm25": 1.0}
    known, new = part_scores(table, weights, rows)[0]
    assert (known["generator"].weight, known["bm25"].weight) == (3.0, 1.0)
    assert new["generator"] == PartScore(score=-9.0, scaled=0.0, weight=0.0, share=0.0)
    assert new["bm25"] == PartScore(score=6.0, scaled=1.0, weight=4.0, share=4.0)
    assert sum(part.share for part in new.values()) == table.fused(weights)[0, 1] == 4.0


def test_a_score_that_is_not_finite_is_none():
    rows, every = np.array([[0, 1]]), np.ones((1, 2), bool)
    table = CandidateTable(rows, {"bm25": np.array([[-np.inf, 1.0]])}, {"bm25": every})
    first = part_scores(table, {"bm25": 1.0}, rows)[0][0]["bm25"]
    assert first == PartScore(score=None, scaled=0.0, weight=1.0, share=0.0)


def test_hits_say_how_their_scores_are_made_up(retriever):
    for hits in retriever.search(["oak desk", "green glass mug"], k=20, mode="hybrid", contributions=True):
        assert len(hits) == 20
        for hit in hits:
            assert hit.parts.keys() == {part for part, weight in WEIGHTS.items() if weight}
            assert sum(part.share for part in hit.parts.values()) == pytest.approx(hit.score, abs=1e-9)
        assert max(part.scaled for hit in hits for part in hit.parts.values()) == pytest.approx(1.0)


def test_hits_of_new_items_do_too(retriever):
    retriever.add([{"id": "new", "title": "purple oak desk"}])
    hits = retriever.search("purple oak desk", k=61, mode="hybrid", contributions=True)
    new = next(hit for hit in hits if hit.item == "new")
    assert {part for part, one in new.parts.items() if not one.weight} == LEARNED_FROM_PAIRS
    for hit in hits:
        assert sum(part.share for part in hit.parts.values()) == pytest.approx(hit.score, abs=1e-9)


@pytest.mark.parametrize("mode", ["generative", "hybrid"])
def test_asking_for_parts_does_not_change_the_answer(retriever, mode):
    plain = retriever.search("oak desk", k=20, mode=mode)
    apart = retriever.search("oak desk", k=20, mode=mode, contributions=True)
    assert [hit.score for hit in plain] == [hit.score for hit in apart]
    assert plain == apart
    assert all(hit.parts is None for hit in plain)
    assert all((hit.parts is None) == (mode == "generative") for hit in apart)


def test_plain_hits_can_be_members_of_sets(retriever):
    hits = retriever.search("oak desk", k=3, mode="hybrid", contributions=True)
    assert {hits[0], retriever.search("oak desk", k=1, mode="hybrid")[0]} == {hits[0]}
    assert Hit("a", "A", 1.0, (1,)).parts is None


def test_parts_are_no_search_option():
    assert not hasattr(SearchOptions(), "contributions")


def test_an_explanation_has_the_parts_of_its_item(retriever):
    hits = retriever.search("oak desk", k=60, mode="hybrid", contributions=True, beam=2)
    for hit in hits[::5]:
        explanation = retriever.explain("oak desk", hit.item, k=60, mode="hybrid", beam=2)
        assert explanation.parts.keys() == hit.parts.keys()
        shares = [part.share for part in explanation.parts.values()]
        assert shares == pytest.approx([part.share for part in hit.parts.values()], abs=1e-9)
    assert retriever.explain("oak desk", hits[0].item).parts is None, "a search of the model alone has no parts"
    values = json.loads(json.dumps(retriever.explain("oak desk", hits[0].item, mode="hybrid").to_dict()))
    assert values["parts"]["bm25"].keys() == {"score", "scaled", "weight", "share"}


def test_an_item_that_no_part_proposed_has_no_parts(retriever):
    retriever.fusion = Fusion({"bm25": 1.0})
    listed = {hit.item for hit in retriever.search("mug", k=60, mode="hybrid")}
    other = next(item for item in retriever.snapshot.ids.to_pylist() if item not in listed)
    assert retriever.explain("mug", other, mode="hybrid").parts is None


def test_little_effort_leaves_out_what_is_costly(retriever):
    hits = retriever.search("oak desk", k=60, beam=60)
    full = retriever.explain("oak desk", hits[-1].item, k=1, beam=2)
    assert full.beam_needed > 2
    assert full.exact_rank == 60
    cheap = retriever.explain("oak desk", hits[-1].item, k=1, beam=2, effort=1)
    assert (cheap.beam_needed, cheap.exact_rank) == (None, None)
    assert cheap.levels == full.levels


def test_the_command_shows_parts(trained, command):
    words = ("search", "--model", trained, "oak desk", "--explain", "red-oak-desk", "--mode", "hybrid")
    code, out, err = command(*words)
    assert code == 0, err
    assert "Parts of its score in the hybrid search" in out
    assert all(word in out for word in ("generator", "bm25", "dense", "share", "weight"))
    code, out, _ = command(*words, "--json")
    assert json.loads(out)["parts"]["bm25"]["share"] >= 0
    code, out, _ = command(*words[:-1], "generative")
    assert code == 0
    assert "Parts of its score" not in out
