"""Explanations: they describe the very search that ran, whatever its options."""

import json

import numpy as np
import pytest

from restd.data import History
from restd.errors import ConfigError, DataError
from restd.search import HeadUse, Retriever, SearchOptions
from tests.steppers import TableStepper
from tests.training import make_index, run, write_world
from tests.walks import walk


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    index = make_index(data, folder / "index")
    run(index, data, folder / "compact", objective="restd", updates=60)
    run(index, data, folder / "calir", backbone="calir", updates=60)
    return folder


@pytest.fixture(params=["compact", "calir"])
def retriever(request, folder):
    return Retriever.load(folder / request.param)


@pytest.fixture
def compact(folder):
    return Retriever.load(folder / "compact", keep_heads=True)


def ids_of(retriever):
    return retriever.snapshot.ids.to_pylist()


OPTIONS = [
    SearchOptions(k=12, beam=2),  # widens to k
    SearchOptions(k=12, beam=2, widen=False),
    SearchOptions(k=20, beam=3, category_width=1),  # one category holds fewer than 20 items
    SearchOptions(k=5, beam=5, category_width=1),
    SearchOptions(k=5, beam=6, where=["title~green"], deny=["green-oak-desk"]),
    SearchOptions(k=7, beam=7, score_norm="trie_children"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_ranks_are_those_of_the_search(retriever, options):
    listed = [hit.item for hit in retriever.search("oak desk", options=options)]
    for item in ids_of(retriever):
        explanation = retriever.explain("oak desk", item, options=options)
        if item in listed:
            assert explanation.rank == listed.index(item) + 1
            assert explanation.lost_at is None
            assert explanation.excluded is None
        else:
            assert explanation.rank is None or explanation.rank > len(listed)
        if explanation.excluded is None and explanation.rank is None:
            assert explanation.lost_at is not None
            assert explanation.beam_needed > explanation.beam


@pytest.mark.parametrize("mode", ["rerank", "fuse", "look-ahead"])
def test_ranks_are_those_of_the_search_with_heads(compact, mode):
    options = SearchOptions(k=12, beam=4, heads=HeadUse(mode, weight=2.0))
    listed = [hit.item for hit in compact.search("oak desk", options=options)]
    for item in ids_of(compact):
        rank = compact.explain("oak desk", item, options=options).rank
        assert rank == listed.index(item) + 1 if item in listed else rank is None or rank > 12
    with pytest.raises(ConfigError, match="no beam to explain"):
        compact.explain("oak desk", listed[0], heads=HeadUse("one-shot"))


def test_a_look_ahead_is_seen_level_by_level(compact):
    options = SearchOptions(k=1, beam=1, heads=HeadUse("look-ahead", weight=50.0))
    best = compact.search("oak desk", options=options)[0].item
    plain = compact.search("oak desk", k=1, beam=1)[0].item
    assert best != plain
    assert compact.explain("oak desk", best, options=options).lost_at is None
    assert compact.explain("oak desk", plain, options=options).lost_at is not None


def test_ranks_are_those_of_a_hybrid_search(compact):
    compact.set_companions(["bm25"])
    options = SearchOptions(k=6, mode="hybrid")
    listed = [hit.item for hit in compact.search("green glass mug", options=options)]
    ranks = [compact.explain("green glass mug", item, options=options).rank for item in listed]
    assert ranks == [1, 2, 3, 4, 5, 6]


def test_the_beam_needed_is_the_narrowest_that_finds_it(compact):
    last = compact.search("oak desk", k=60, beam=60)[-1].item
    explanation = compact.explain("oak desk", last, k=1, beam=2)
    needed = explanation.beam_needed
    assert compact.explain("oak desk", last, k=1, beam=needed).rank is not None
    assert compact.explain("oak desk", last, k=1, beam=needed - 1).rank is None
    assert compact.explain("oak desk", last, k=needed, beam=1).rank is not None  # k widens the beam as well


def test_why_an_item_was_not_searched_for(folder):
    retriever = Retriever.load(folder / "calir")
    best = retriever.search("oak desk", k=1)[0].item
    denied = retriever.explain("oak desk", best, deny=[best])
    assert (denied.excluded, denied.rank, denied.exact_rank, denied.beam_needed) == ("filter", None, None, None)
    assert denied.sentence() == f"{best} was not searched for: a filter leaves it out."
    narrow = SearchOptions(k=1, category_width=1)
    inside = {hit.item for hit in retriever.search("oak desk", options=SearchOptions(k=60, beam=60, category_width=0))}
    outside = [item for item in inside if retriever.explain("oak desk", item, options=narrow).excluded]
    assert 0 < len(outside) < 60
    found = retriever.explain("oak desk", outside[0], options=narrow)
    assert found.excluded == "categories"
    assert found.exact_rank is not None
    assert "not in the categories that were searched" in found.sentence()


def test_sentences_say_where_an_item_is(compact):
    ranked = [hit.item for hit in compact.search("oak desk", k=60)]
    assert compact.explain("oak desk", ranked[0], k=3).sentence() == (
        f"{ranked[0]} is found at rank 1 with a beam of 100."
    )
    assert (
        "rank 9 with a beam of 100, behind the 3 that are shown"
        in compact.explain("oak desk", ranked[8], k=3).sentence()
    )
    with pytest.raises(DataError, match="explain names item 'nobody'"):
        compact.explain("oak desk", "nobody")


def test_explanations_are_plain_values(compact):
    values = json.loads(json.dumps(compact.explain("oak desk", "red-oak-desk").to_dict()))
    assert values["levels"][0]["kept"] is True
    assert values["excluded"] is None


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_ranks_are_those_of_a_recommendation(place, monkeypatch, seed, seen):
    """With random scores, narrow beams lose items; what the history holds is searched but not listed."""
    retriever = Retriever.load(place / "run")
    stepper = TableStepper(retriever.index.sizes, seed=seed)
    monkeypatch.setattr(retriever._generator, "_stepper", lambda normalizer: stepper)
    history = History(tuple(walk(place, 6)))
    options = SearchOptions(k=4, beam=2, seen=seen)
    listed = [hit.item for hit in retriever.recommend(history, options=options)]
    explained = {item: retriever.explain(history, item, options=options) for item in ids_of(retriever)}
    assert [explained[item].rank for item in listed] == [1, 2, 3, 4]
    left_out = {item for item, explanation in explained.items() if explanation.excluded == "history"}
    assert left_out == (set() if seen else set(history.items))
    best = [explanation.exact_rank for item, explanation in explained.items() if item not in left_out]
    assert sorted(best) == list(range(1, len(best) + 1))
    lost = next(explanation for explanation in explained.values() if explanation.lost_at and not explanation.excluded)
    assert lost.beam == 4, "as wide as k, without what the history adds"
    wider, narrower = (SearchOptions(k=4, beam=lost.beam_needed - less, seen=seen) for less in (0, 1))
    assert retriever.explain(history, lost.item, options=wider).rank is not None
    assert retriever.explain(history, lost.item, options=narrower).rank is None
    assert retriever.recommend(history, k=4, beam=2) == retriever.recommend(history, k=4, beam=2, seen=False)


def test_the_tree_of_a_history_says_the_beam_without_what_the_history_adds(place):
    retriever = Retriever.load(place / "run")
    history = History(tuple(walk(place, 6)))
    tree = retriever.beam_tree(history, beam=3, k=2)
    assert tree.beam == 3
    assert tree.levels[0].survivors == min(tree.levels[0].candidates, 3 + len(set(history.items)))


def test_scores_of_levels_add_up(compact):
    hit = compact.search("oak desk", k=1)[0]
    explanation = compact.explain("oak desk", hit.item)
    scores = [level.score for level in explanation.levels]
    assert scores[-1] == pytest.approx(hit.score, abs=1e-5)
    assert (np.diff(scores) <= 0).all()
