"""Analyses of the hybrid search of every cell: parts, ablations and new items, averaged and compared in pairs."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.analyses.board_grid import BoardGrid, is_of_model, ordered, score_tables
from restd.analyses.cold_cells import cold_cells_result
from restd.analyses.parts import parts_result, training_slices
from restd.artifacts import read_manifest
from restd.data import write_dataset
from restd.data.hold_out import hold_out_items
from restd.errors import ConfigError
from restd.evaluate import Scoreboard, fitting_queries, paired_difference
from restd.evaluate.ablation import ablation_board
from restd.evaluate.cold_start import ON_NEW
from restd.evaluate.scoreboard import HYBRID, LEXICAL_AND_DENSE, MEASURES
from restd.evaluate.stored_boards import load_boards, save_boards
from restd.experiments import HybridCells, Study, compare, measure_cold_starts, measure_parts
from restd.experiments import hybrid_cells as module
from restd.search import Retriever, SearchOptions
from tests.studies import comparison
from tests.test_cold_start import write_cold_world
from tests.training import make_index, run

CELLS = {(objective, seed) for objective in ("base", "restd") for seed in (1, 2)}
FIRST = str(MEASURES[0])


def quiet(sentence):
    """Say nothing."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A world without some of its items, an index, and a finished study with hybrid searches."""
    folder = tmp_path_factory.mktemp("place")
    both = hold_out_items(write_cold_world(folder / "whole"), share=0.2, seed=3)
    write_dataset(both.known, folder / "data")
    write_dataset(both.new, folder / "new")
    make_index(folder / "data", folder / "index")
    options = {"objectives": ("base", "restd"), "joint": True, "split": "test"}
    settings = comparison(folder, folder / "study", **options, decoding=SearchOptions(mode="hybrid"))
    compare(settings)
    for cell in sorted(CELLS):  # words alone win in a world this small; these weights give every part a say
        retriever = Retriever.load(settings.run(*cell), hybrid=True)
        own = {"generator": 1.0, "bm25": 0.5, "dense": 1.0, **({"heads": 0.5} if cell[0] == "restd" else {})}
        replace(retriever.fusion, weights=own).save(settings.run(*cell) / "fusion")
    return folder


@pytest.fixture(scope="module")
def study(place):
    return Study.open(place / "study")


@pytest.fixture(scope="module")
def parts(study):
    return measure_parts(study, notify=quiet)


@pytest.fixture(scope="module")
def cold(study, place):
    return measure_cold_starts(study, place / "new", notify=quiet)


def test_every_cell_has_the_board_of_evaluate_ablate(parts, study):
    assert set(parts.boards) == CELLS
    retriever = Retriever.load(study.model("restd", 2), hybrid=True)
    module.add_parts(retriever, notify=quiet)
    board = ablation_board(retriever, study.tests)
    stored = parts.boards["restd", 2]
    assert {name: list(values) for name, values in stored.values.items()} == {
        name: list(values) for name, values in board.values.items()
    }
    for name, by_measure in board.values.items():
        for measure, values in by_measure.items():
            np.testing.assert_array_equal(stored.values[name][measure], values)
    assert stored.weights == {name: dict(own) for name, own in board.weights.items()}
    assert "heads" in parts.boards["restd", 1].values
    assert "heads" not in parts.boards["base", 1].values


def test_a_finished_cell_is_kept_until_what_it_depends_on_changes(parts, study, monkeypatch):
    measured = []

    def refuse(study, cell, notify):
        measured.append(cell)
        raise AssertionError("measured again")

    monkeypatch.setattr(module, "_fitted_retriever", refuse)
    again = measure_parts(study, notify=quiet)
    assert measured == []
    np.testing.assert_array_equal(
        again.boards["base", 1].values[HYBRID][FIRST], parts.boards["base", 1].values[HYBRID][FIRST]
    )
    narrow = Study(replace(study.comparison, decoding=SearchOptions(mode="hybrid", beam=3)))
    with pytest.raises(AssertionError, match="measured again"):
        measure_parts(narrow, notify=quiet)
    assert measured == [("base", 1)]


def test_an_interrupted_analysis_goes_on_where_it_stopped(parts, study, tmp_path, monkeypatch):
    folder = study.comparison.out / module.PARTS
    shutil.move(folder / "restd-2", tmp_path / "restd-2")
    made = []
    fitted = module._fitted_retriever
    monkeypatch.setattr(
        module, "_fitted_retriever", lambda study, cell, notify: made.append(cell) or fitted(study, cell, notify)
    )
    measure_parts(study, notify=quiet)
    assert made == [("restd", 2)]
    assert read_manifest(folder / "restd-2").content == read_manifest(tmp_path / "restd-2").content


def test_a_study_without_weights_is_fitted_on_the_way_and_left_as_it_is(place, parts, tmp_path):
    shutil.copytree(place / "study" / "runs" / "base-1", tmp_path / "runs" / "base-1")
    shutil.rmtree(tmp_path / "runs" / "base-1" / "fusion")
    settings = replace(Study.open(place / "study").comparison, out=tmp_path, objectives=("base",), seeds=(1,))
    sentences = []
    board = measure_parts(Study(settings), notify=sentences.append).boards["base", 1]
    assert any(sentence.startswith("Fitting the hybrid search of base-1 on") for sentence in sentences)
    assert not (tmp_path / "runs" / "base-1" / "fusion").exists()
    assert board.weights[HYBRID] != parts.boards["base", 1].weights[HYBRID]
    for name in ("generator", "bm25", LEXICAL_AND_DENSE):
        np.testing.assert_array_equal(board.values[name][FIRST], parts.boards["base", 1].values[name][FIRST])
    result = parts_result(HybridCells(Study(settings), {("base", 1): board}))
    assert not result.figures, "there is nothing to compare with the base"
    assert not any(table.name.startswith("gains") for table in result.tables)


def test_differences_are_paired_averaged_and_corrected_together(parts):
    result = parts_result(parts)
    numbers = result.data["objectives"]
    ours, theirs = (
        np.mean([parts.boards[name, seed].values["generator"]["Recall@10"] for seed in (1, 2)], axis=0)
        for name in ("restd", "base")
    )
    expected = paired_difference(ours, theirs)
    found = numbers["restd"]["generator"]["against_base"]["Recall@10"]
    assert (found["mean"], found["low"], found["high"], found["p"]) == (
        expected.mean,
        expected.low,
        expected.high,
        expected.p,
    )
    assert found["adjusted"] >= found["p"]
    assert numbers["restd"]["generator"]["Recall@10"]["mean"] == pytest.approx(ours.mean())
    assert numbers["restd"]["generator"]["Recall@10"]["seeds"] == 2
    family = [
        gap
        for by_ranker in numbers.values()
        for entry in by_ranker.values()
        for gap in entry.get("against_base", {}).values()
    ]
    assert len(family) == 4 * 3, "generator, hybrid, and the hybrid without heads or generator; three measures"
    smallest = min(family, key=lambda gap: gap["p"])
    assert smallest["adjusted"] == pytest.approx(min(1.0, smallest["p"] * len(family)))


def test_a_search_without_heads_is_its_own_ablation(parts):
    grid = BoardGrid(parts.boards, ("base", "restd"), (1, 2))
    np.testing.assert_array_equal(grid.mean("base", "without heads", FIRST), grid.mean("base", HYBRID, FIRST))
    assert grid.mean("base", "heads", FIRST) is None
    result = parts_result(parts)
    row = next(table for table in result.tables if table.name == "scores-ndcg@10").rows[0]
    assert row[0] == "Base-FT"
    assert row[2] == "–", "base trains no heads"
    assert row[3] == row[4], "so its hybrid search has none either"


def test_the_tables_of_the_parts(parts, study):
    result = parts_result(parts)
    tables = {table.name: table for table in result.tables}
    measures = [str(measure).lower() for measure in MEASURES]
    assert [name for name in tables if name.startswith("scores")] == [f"scores-{measure}" for measure in measures]
    assert [row[0] for row in tables[f"gains-{FIRST.lower()}"].rows] == ["ResTD (H=4)"]
    assert [row[0] for row in tables["beside"].rows][:3] == ["BM25", "dense", "latent"]
    assert "BM25 + dense, fitted" in [row[0] for row in tables["beside"].rows]
    assert len(tables["weights"].rows) == len(CELLS)
    for cell, row in zip(parts.boards, tables["weights"].rows, strict=True):
        shares = [float(text.rstrip("%")) for text in row[1:] if text != "–"]
        assert sum(shares) == pytest.approx(100, abs=len(shares)), cell
    worth = result.data["worth"]
    assert set(worth["base"]) == {"generator", "bm25", "dense"}
    assert set(worth["restd"]) == {"generator", "bm25", "dense", "heads"}
    assert tables["worth"].rows[0][-1] == "–", "base has no heads that could be worth something"
    slices = result.data["slices"]
    assert sum(entry["queries"] for entry in slices) == len(study.tests)
    whole = result.data["objectives"]["restd"][HYBRID][FIRST]["mean"]
    weighted = sum(entry["queries"] * entry["objectives"]["restd"][HYBRID][FIRST]["mean"] for entry in slices)
    assert weighted / len(study.tests) == pytest.approx(whole)
    assert "has the highest NDCG@10" in result.says
    json.dumps(result.to_dict(), allow_nan=False)


def test_slices_follow_the_pairs_of_the_positives(study):
    slices = training_slices(study.tests)
    tests = study.tests
    pairs = [tests.trained[tests.positives(query)].mean() for query in range(len(tests))]
    for number, name in enumerate(slices.names):
        low, _, high = name.partition("–")
        inside = [pair for pair, own in zip(pairs, slices.of.tolist(), strict=True) if own == number]
        assert min(inside) == pytest.approx(float(low), rel=0.01)
        assert max(inside) == pytest.approx(float(high or low), rel=0.01)


def test_new_items_over_all_cells(cold, study):
    assert set(cold.outcomes) == CELLS
    result = cold_cells_result(cold)
    new = result.data["new"]["objectives"]
    assert set(new["restd"]) == {"generator", "heads", "without heads", HYBRID, ON_NEW[HYBRID]}
    assert set(new["base"]) == {"generator", "without heads", HYBRID, ON_NEW[HYBRID]}
    assert new["base"]["without heads"] == new["base"][HYBRID], "it has no heads to lose"
    assert "heads" not in cold.outcomes["restd", 1].new.weights["without heads"]
    values = [cold.outcomes["restd", seed].new.values["heads"][FIRST].mean() for seed in (1, 2)]
    assert new["restd"]["heads"][FIRST]["mean"] == pytest.approx(np.mean(values))
    assert "against_base" not in new["restd"]["heads"], "base has no heads to compare with"
    gap = new["restd"][HYBRID]["against_base"][FIRST]
    assert gap["low"] <= gap["mean"] <= gap["high"]
    assert set(result.data["known"]["beside"]) >= {"bm25", "dense", "latent", LEXICAL_AND_DENSE}
    tables = {table.name: table for table in result.tables}
    assert {"new-scores-ndcg@10", "new-gains-ndcg@10", "known-scores-recall@100", "new-beside", "weights"} <= set(
        tables
    )
    assert len(tables["weights"].rows) == 2 * len(CELLS), "fitted on known and on new items"
    assert [figure.name for figure in result.figures] == ["cold-start-new", "cold-start-known"]
    assert "items were added to" in result.says
    json.dumps(result.to_dict(), allow_nan=False)


def test_cold_starts_are_kept_with_all_that_they_say(cold, study, place, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("measured again")

    monkeypatch.setattr(module, "measure_cold_start", refuse)
    again = measure_cold_starts(study, place / "new", notify=quiet)
    for cell, outcome in cold.outcomes.items():
        stored = again.outcomes[cell]
        assert stored.items == outcome.items
        assert stored.fitted_on == outcome.fitted_on
        np.testing.assert_array_equal(stored.only_new, outcome.only_new)
        np.testing.assert_array_equal(stored.before.values["bm25"][FIRST], outcome.before.values["bm25"][FIRST])
    fewer = place / "fewer"
    shutil.copytree(place / "new", fewer)
    (fewer / "manifest.json").unlink()
    (fewer / "judgments.parquet").unlink()
    (fewer / "judgments.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(AssertionError, match="measured again"):
        measure_cold_starts(study, fewer, notify=quiet)


def test_studies_that_have_no_hybrid_search_to_judge(study, place):
    valid = Study(replace(study.comparison, decoding=SearchOptions(), split="valid"))
    with pytest.raises(ConfigError, match="fitted on the validation queries, and this study is judged by these"):
        measure_parts(valid, notify=quiet)
    retriever = Retriever.load(study.model("base", 1))
    with pytest.raises(ConfigError, match="Only a hybrid search with weights"):
        ablation_board(retriever, study.tests)


def grid_of(tables):
    """A grid of made-up values: by objective, a list of one array per seed."""
    seeds = tuple(range(len(next(iter(tables.values())))))
    boards = {
        (objective, seed): Scoreboard(
            {HYBRID: {str(measure): np.asarray(values, float) for measure in MEASURES}}, {HYBRID: {"bm25": 1.0}}
        )
        for objective, by_seed in tables.items()
        for seed, values in enumerate(by_seed)
    }
    return BoardGrid(boards, tuple(tables), seeds)


@given(st.lists(st.integers(0, 100), min_size=2, max_size=8), st.integers(1, 20))
@settings(max_examples=20)
def test_a_constant_lead_is_found_whatever_the_queries(values, lead):
    base = np.array(values, float)
    grid = grid_of({"base": [base, base], "restd": [base + lead - 1, base + lead + 1]})
    gap = grid.against_base([HYBRID])["restd"][HYBRID][FIRST]
    assert (gap.mean, gap.low, gap.high) == pytest.approx((lead, lead, lead))
    half = np.arange(len(base)) % 2 == 0
    assert grid.only(half).mean("restd", HYBRID, FIRST) == pytest.approx(base[half] + lead)


def test_a_significant_lead_has_a_dagger_and_none_has_not():
    base = np.linspace(0, 50, 40)
    grid = grid_of({"base": [base], "restd": [base + 5], "rbd": [base + np.where(np.arange(40) % 2, 1, -1)]})
    table = score_tables(grid, [HYBRID], grid.against_base([HYBRID]), title="made up")[0]
    assert [row[1].endswith("†") for row in table.rows] == [False, True, False]
    assert table.rows[1] == ("ResTD (H=4)", "30.00†")
    assert table.best == ((1, 1),)


def test_names_keep_their_order_and_say_what_depends_on_training():
    names = ["hybrid", "popularity", "generator", "bm25_dense", "dense", "heads"]
    assert ordered(names) == ["dense", "heads", "generator", "popularity", "bm25_dense", "hybrid"]
    assert [name for name in names if is_of_model(name)] == ["hybrid", "generator", "heads"]


def test_boards_come_back_as_they_were(tmp_path):
    values = {"without bm25": {"NDCG@10": np.array([1.5, 0.0])}, HYBRID: {"NDCG@10": np.array([2.0, 3.0])}}
    board = Scoreboard(values, {"without bm25": {"dense": 1.0}, HYBRID: {"bm25": 0.5, "dense": 0.0}})
    save_boards(tmp_path / "boards", {"new": board}, facts={"items": {"new": 2}}, parents={"model": "ab"})
    boards, facts = load_boards(tmp_path / "boards")
    assert facts == {"items": {"new": 2}}
    assert boards["new"].weights == board.weights
    for name, by_measure in values.items():
        np.testing.assert_array_equal(boards["new"].values[name]["NDCG@10"], by_measure["NDCG@10"])


def test_the_commands(place, parts, cold, command):
    folder = place / "study"
    code, out, err = command("analyze", "parts", folder)
    assert code == 0, err
    assert "What each part is worth inside the hybrid search" in out
    code, out, err = command("analyze", "cold-start", folder, "--new", place / "new", "--json")
    assert code == 0, err
    assert json.loads(out)["data"]["seeds"] == [1, 2]
    for suffix in ("json", "md"):
        assert list((folder / "analyses").glob(f"cold-start*.{suffix}"))
    code, out, err = command("report", folder)
    assert code == 0, err
    page = (folder / "report" / "report.html").read_text("utf-8")
    assert "Parts of the hybrid search" in page
    assert "New items at once" in page
    code, _, err = command("analyze", "parts", folder, "--new", place / "new")
    assert code == 2
    assert "--new belongs to cold-start" in err
    code, _, err = command("analyze", "cold-start", folder)
    assert code == 2
    assert "--new is missing" in err


def test_the_command_takes_a_single_run(place, command):
    folder = run(place / "index", place / "data", place / "run", objective="restd", updates=20).folder.parent
    code, _, err = command("analyze", "parts", folder)
    assert code == 2
    assert "restd fit" in err
    assert command("fit", "--model", folder)[0] == 0
    code, out, err = command("analyze", "parts", folder, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["name"] == "parts"
    assert {"bm25", "dense", "generator", "heads", "hybrid"} <= set(result["data"]["rankers"])
    assert (folder / "analyses" / "parts.json").is_file()
    queries = len(fitting_queries(place / "data", Retriever.load(folder).snapshot))
    assert queries > 0
