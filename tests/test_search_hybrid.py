"""Hybrid search: exact scores of whatever anybody proposes, fused by weights that validation queries chose."""

import shutil

import numpy as np
import pytest
import torch

from restd.codes import Trie
from restd.errors import ArtifactError, ConfigError
from restd.evaluate import collect, fit_fusion, fitting_queries, read_tests, score_board
from restd.evaluate.fitting import available_parts, listwise_weights
from restd.search import Fusion, Retriever, SearchOptions, exact_scores, sid_scores
from restd.search.candidates import CandidateTable, best_candidates
from restd.search.hybrid import collect_candidates
from tests.models import QUERIES, SIZES, memory_of, some_sids, tiny_compact, tiny_t5
from tests.training import make_index, run, write_world

SETTLED = SearchOptions().settled("search")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    index = make_index(data, folder / "index")
    return run(index, data, folder / "run", objective="restd", updates=30).folder.parent


@pytest.fixture
def retriever(trained):
    loaded = Retriever.load(trained, keep_heads=True)
    loaded.set_companions(["bm25", "dense", "latent", "popularity", "match"])
    return loaded


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("make", [tiny_compact, tiny_t5])
def test_chosen_sids_score_as_in_an_exhaustive_search(make, normalized):
    backbone = make()
    sids = torch.unique(some_sids(40), dim=0)
    trie = Trie.of(sids.numpy(), SIZES)
    stepper, memory = backbone.stepper(normalizer="level_codes"), memory_of(backbone, QUERIES)
    exact = exact_scores(stepper, memory, trie, trie_normalized=normalized)
    leaf_sids = sids[trie.rows.long()]
    generator = torch.Generator().manual_seed(0)
    chosen = torch.stack([torch.randperm(len(sids), generator=generator)[:9] for _ in QUERIES])
    chosen[0, 4:] = chosen[0, 0]  # a query with fewer candidates repeats one
    scores = sid_scores(stepper, memory, leaf_sids[chosen], trie=trie if normalized else None)
    assert torch.allclose(scores, exact.gather(1, chosen), atol=1e-5)


def test_candidates_of_others_score_as_in_a_beam_as_wide_as_the_catalogue(retriever):
    queries = ["oak desk", "green glass mug"]
    narrow = SearchOptions(beam=2, widen=False).settled("search")
    table = collect_candidates(retriever.generator, retriever.snapshot, queries, narrow, parts=["generator", "dense"])
    rows, scores = retriever.rank(queries, 60, beam=60)
    for query in range(2):
        exact = dict(zip(rows[query].tolist(), scores[query].tolist(), strict=True))
        mine = table.rows[query] >= 0
        expected = [exact[row] for row in table.rows[query][mine].tolist()]
        assert np.allclose(table.scores["generator"][query][mine], expected, atol=1e-5)
        assert table.proposed["generator"][query].sum() <= 2 < mine.sum()


def test_a_query_whose_words_no_part_knows_is_answered_in_every_normalisation(retriever):
    retriever.set_companions(["bm25"])
    for norm in ("full_vocab", "level_codes", "trie_children"):
        fused = retriever.search("zyx", k=5, beam=10, mode="hybrid", score_norm=norm)
        alone = retriever.search("zyx", k=5, beam=10, score_norm=norm)
        assert [hit.item for hit in fused] == [hit.item for hit in alone], "only the generator proposes anything"


@pytest.mark.parametrize("part", ["generator", "heads", "bm25", "dense", "latent"])
def test_all_weight_on_one_part_is_that_parts_list(retriever, part):
    retriever.fusion = Fusion({"generator": 0.0, "bm25": 0.0, part: 1.0})
    rows, _ = retriever.rank(["oak desk"], 10, mode="hybrid")
    if part == "generator":
        expected, _ = retriever.rank(["oak desk"], 10)
    elif part == "heads":
        table = collect_candidates(
            retriever.generator, retriever.snapshot, ["oak desk"], SETTLED, parts=["heads"], heads=retriever.heads
        )
        expected, _ = best_candidates(table.rows, table.scores["heads"], 10)
    else:
        companion = next(one for one in retriever.snapshot.companions if one.name == part)
        expected, best = companion.rank(["oak desk"], 10)
        # equals are in the order of rows here, and in any order there
        filled = expected[0] >= 0
        assert np.allclose(companion.scores(["oak desk"], rows)[0][filled], best[0][filled], atol=1e-5)
        assert (rows[0] >= 0).sum() == filled.sum()
        return
    assert rows[0].tolist() == expected[0].tolist()


def test_filters_hold_in_every_part(retriever):
    retriever.fusion = Fusion(dict.fromkeys(["generator", "heads", "bm25", "dense", "latent"], 1.0))
    hits = retriever.search("oak desk", k=60, mode="hybrid", where=["title~green"])
    assert len(hits) == 15
    assert all("green" in hit.item for hit in hits)
    hits = retriever.search("oak desk", k=60, mode="hybrid", deny=["red-oak-desk"])
    assert "red-oak-desk" not in {hit.item for hit in hits}


def test_a_query_is_answered_alike_alone_and_in_a_batch(retriever):
    retriever.fusion = Fusion(dict.fromkeys(available_parts(retriever), 1.0))
    queries = ["oak desk", "a steel kettle in red", "mug", "green glass lamp"]
    rows, scores = retriever.rank(queries, 10, mode="hybrid")
    for number, query in enumerate(queries):
        alone, own = retriever.rank([query], 10, mode="hybrid")
        assert alone[0].tolist() == rows[number].tolist()
        assert np.allclose(own[0], scores[number], atol=1e-4)


def test_parts_follow_when_items_come_and_go(retriever):
    retriever.fusion = Fusion(dict.fromkeys(available_parts(retriever), 1.0))
    retriever.remove(["red-oak-desk"])
    retriever.add([{"id": "new", "title": "purple oak desk"}])
    assert {one.snapshot_hash for one in retriever.snapshot.companions} == {retriever.snapshot.hash}
    for part in ("bm25", "dense", "latent"):
        retriever.fusion = Fusion({part: 1.0})
        hits = retriever.search("purple oak desk", k=59, mode="hybrid")
        assert "red-oak-desk" not in {hit.item for hit in hits}
        assert hits[0].item == "new" if part != "latent" else "new" in {hit.item for hit in hits[:10]}


def made_table(queries=200, candidates=12, seed=0):
    """Three parts: one knows which candidate is right, with noise; one is noise; one says the same of all."""
    rng = np.random.default_rng(seed)
    relevant = np.zeros((queries, candidates), bool)
    relevant[np.arange(queries), rng.integers(candidates, size=queries)] = True
    scores = {
        "good": relevant + 0.3 * rng.normal(size=relevant.shape),
        "noise": rng.normal(size=relevant.shape),
        "constant": np.ones(relevant.shape),
    }
    rows = np.tile(np.arange(candidates), (queries, 1))
    return CandidateTable(rows, scores, dict.fromkeys(scores, np.ones(relevant.shape, bool))), relevant


def test_weights_go_to_the_part_that_knows():
    table, relevant = made_table()
    features, among = table.features(["good", "noise", "constant"])
    good, noise, constant = listwise_weights(features, among, relevant)
    assert good > 5
    assert noise < 0.1 * good
    assert constant <= 1.0
    assert listwise_weights(np.zeros_like(features), among, relevant).tolist() == [0.0, 0.0, 0.0]
    nothing = listwise_weights(features, among, np.zeros_like(relevant))
    assert nothing.tolist() == [0.0, 0.0, 0.0]


def test_fitting_is_better_than_any_part_and_is_kept(retriever, trained, tmp_path):
    tests = fitting_queries(retriever.data, retriever.snapshot)
    fusion = fit_fusion(retriever, tests, notify=lambda sentence: None)
    assert fusion.is_fitted
    assert fusion.report["cross_validated"] >= max(fusion.report["parts"].values()) - 5
    fusion.save(tmp_path / "fusion")
    again = Fusion.load(tmp_path / "fusion")
    assert again.weights == dict(fusion.weights)
    again.refuse_other(retriever.index, model=retriever.model_hash)
    with pytest.raises(ArtifactError, match="fitted for the model"):
        again.refuse_other(retriever.index, model="f" * 64)
    board = score_board(
        fusion,
        collect(retriever, tests, parts=available_parts(retriever), options=SearchOptions()),
        collect(
            retriever,
            read_tests(retriever.data, retriever.snapshot, split="train"),
            parts=available_parts(retriever),
            options=SearchOptions(),
        ),
    )
    assert {"bm25", "dense", "generator", "bm25_dense", "hybrid"} <= set(board.values)
    assert set(board.to_dict()["hybrid_over"]) == set(board.values) - {"hybrid"}


@pytest.fixture
def fitted_beside(trained):
    Fusion({"generator": 1.0, "bm25": 1.0, "dense": 0.7, "popularity": 0.5}).save(trained / "fusion")
    yield
    shutil.rmtree(trained / "fusion")


def test_a_bundle_has_every_part_of_its_hybrid_search(retriever, fitted_beside, tmp_path, caplog):
    retriever.load_fusion()
    queries = ["oak desk", "a steel kettle in red"]
    rows, scores = retriever.rank(queries, 10, mode="hybrid")
    retriever.save(tmp_path / "bundle")
    assert {path.name for path in (tmp_path / "bundle" / "companions").iterdir()} == {"dense", "popularity"}
    loaded = Retriever.load(tmp_path / "bundle", hybrid=True)
    assert "Hybrid search without" not in caplog.text
    again, own = loaded.rank(queries, 10, mode="hybrid")
    assert again.tolist() == rows.tolist()
    assert np.allclose(own, scores, atol=1e-6)
    loaded.add([{"id": "new", "title": "purple oak desk"}])
    assert "new" in {hit.item for hit in loaded.search("purple oak desk", k=3, mode="hybrid")}


def test_a_part_that_cannot_be_made_is_left_out_with_a_warning(retriever, fitted_beside, tmp_path, caplog):
    retriever.set_companions(["bm25"])
    retriever.save(tmp_path / "bundle")
    loaded = Retriever.load(tmp_path / "bundle", hybrid=True)
    assert "Hybrid search without popularity" in caplog.text
    assert loaded.fusion.weights == {"generator": 1.0, "bm25": 1.0, "dense": 0.0, "popularity": 0.0}
    assert len(loaded.search("oak desk", k=5, mode="hybrid")) == 5


def test_parts_of_another_snapshot_are_refused(retriever, fitted_beside, tmp_path, caplog):
    retriever.save(tmp_path / "bundle")
    Retriever.load(tmp_path / "bundle").index.remove(["red-oak-desk"]).save(tmp_path / "bundle" / "index")
    loaded = Retriever.load(tmp_path / "bundle", hybrid=True)
    assert "was made for the snapshot" in caplog.text
    assert loaded.fusion.weights["dense"] == 0.0


def test_too_few_queries_give_fixed_weights_and_say_so(retriever):
    from restd.evaluate import some_queries

    messages = []
    one = some_queries(fitting_queries(retriever.data, retriever.snapshot), 1)
    fusion = fit_fusion(retriever, one, notify=messages.append)
    assert not fusion.is_fitted
    assert "1 validation query" in messages[-1]
    assert "fixed" in messages[-1]


def test_what_cannot_be_weighed_is_refused(retriever):
    with pytest.raises(ConfigError, match="at least 0"):
        Fusion({"bm25": -1.0})
    with pytest.raises(ConfigError, match="All weights"):
        Fusion({"bm25": 0.0})
    retriever.set_companions(["bm25"])
    retriever.fusion = Fusion({"dense": 1.0})
    with pytest.raises(ConfigError, match=r"the part 'dense', and the snapshot has no companion of that name"):
        retriever.search("oak desk", mode="hybrid")
    with pytest.raises(ConfigError, match="cannot score chosen items"):
        retriever.set_companions(["hybrid"])


def test_scores_of_impossible_candidates_are_zero_after_scaling():
    table = CandidateTable(
        np.array([[3, 4, -1]]), {"a": np.array([[-np.inf, 2.0, 9.0]])}, {"a": np.array([[True, True, False]])}
    )
    assert table.fused({"a": 2.0}).tolist() == [[0.0, 0.0, -np.inf]]


def table_of(scores, new=None):
    """Candidates of one query, each proposed by every part."""
    count = len(next(iter(scores.values())))
    arrays = {part: np.array([values], np.float64) for part, values in scores.items()}
    proposed = {part: np.ones((1, count), bool) for part in scores}
    return CandidateTable(np.arange(count)[None], arrays, proposed, None if new is None else np.array([new]))


NEW = [False, False, True, True]
SCORES = {"generator": [9, 1, 0, 0], "popularity": [4, 2, 0, 0], "bm25": [2, 4, 5, 0], "dense": [0, 1, 1, 0.5]}


def test_a_new_item_is_not_held_back_by_parts_that_never_saw_it():
    weights = {"generator": 6.0, "popularity": 2.0, "bm25": 3.0, "dense": 1.0}
    before, after = table_of(SCORES).fused(weights)[0], table_of(SCORES, NEW).fused(weights)[0]
    assert before.argmax() == 0
    assert after.argmax() == 2
    assert after[:2].tolist() == before[:2].tolist(), "known items are fused as they always were"
    assert after[2] == pytest.approx((3 * 1.0 + 1 * 1.0) * 12 / 4)
    assert after[3] == pytest.approx((3 * 0.0 + 1 * 0.5) * 12 / 4)


def test_heads_have_a_say_about_new_items():
    scores = {"generator": [1, 0, 0, 0], "heads": [0, 0.5, 1, 0]}
    assert table_of(scores, NEW).fused({"generator": 1.0, "heads": 1.0})[0].tolist() == [1.0, 0.5, 2.0, 0.0]


@pytest.mark.parametrize(
    "weights",
    [{"generator": 1.0}, {"generator": 1.0, "popularity": 2.0}, {"bm25": 3.0}, {"bm25": 1.0, "dense": 1.0}],
)
def test_without_parts_of_both_kinds_new_items_are_fused_as_others(weights):
    mine, plain = table_of(SCORES, NEW).fused(weights), table_of(SCORES).fused(weights)
    assert np.isfinite(mine).all()
    assert mine.tolist() == plain.tolist()
    assert table_of(SCORES, [False] * 4).fused(weights).tolist() == plain.tolist()


def test_new_items_that_no_weighted_part_proposes_stay_out():
    table = table_of(SCORES, NEW)
    table.proposed["bm25"][0, 2] = False
    table.proposed["generator"][0, 2] = False
    assert table.fused({"generator": 1.0, "bm25": 1.0})[0, 2] == -np.inf
