"""Comparisons of systems: kept, continued, shared, refused before anything costly, and measured."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from restd.errors import ArtifactError, ConfigError
from restd.evaluate import Evaluation, relative_improvement
from restd.experiments import Study, plan_systems
from restd.experiments import system_run as runs
from restd.experiments import system_stages as stages
from restd.experiments.costs import cost_file, is_finished, measure_cost, read_cost
from restd.systems import SYSTEMS, SystemSpec
from tests.systems import BUDGET, compared, comparison, scores
from tests.training import write_world


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def study(data, tmp_path_factory):
    """Two systems, one of them with ResTD over it."""
    out = tmp_path_factory.mktemp("study")
    return out, compared(data, out, "bm25", "tiger")


def test_rows_are_systems_and_what_is_laid_over_them(study):
    out, summary = study
    assert list(summary["rows"]) == ["bm25", "tiger", "tiger+restd"]
    assert [row["ours"] for row in summary["rows"].values()] == [False, False, True]
    assert summary["card"]["items"] == 60
    assert summary["systems"]["tiger"]["index"].startswith("rqvae-suffix-")
    assert summary["systems"]["bm25"]["restd"] == "it does not generate"
    assert json.loads((out / "comparison.json").read_text("utf-8")) == summary


def test_differences_are_paired_by_query_and_by_item(study, data):
    out, summary = study
    values = {}
    for name in ("base-1", "restd-1"):
        evaluation = Evaluation.load(out / "systems" / "tiger" / "evaluations" / f"{name}-valid")
        values[name] = evaluation.values["item"]["NDCG@10"]
    gap = summary["rows"]["tiger+restd"]["against_base"]["NDCG@10"]
    assert gap["row"] == "tiger"
    assert gap["mean"] == pytest.approx(np.mean(values["restd-1"] - values["base-1"]))
    best = summary["rows"]["tiger+restd"]["against_best"]["NDCG@10"]
    others = {name: summary["rows"][name]["NDCG@10"]["mean"] for name in ("bm25", "tiger")}
    assert best["row"] == max(others, key=others.__getitem__)
    assert all(entry["adjusted"] >= entry["p"] for entry in (gap, best))


def test_a_finished_study_is_read_and_not_run(study, data, monkeypatch):
    out, summary = study

    def refuse(*args, **options):
        raise AssertionError("ran again")

    for name in ("encode_catalog", "build_index", "train_retriever", "make_ranker", "evaluate_model"):
        monkeypatch.setattr(stages, name, refuse)
    assert compared(data, out, "bm25", "tiger") == summary  # costs too: they are kept, not measured again


def test_interrupted_and_continued_the_table_is_the_same(study, data, tmp_path, monkeypatch):
    _, summary = study
    original, calls = stages.train_retriever, []

    def interrupted(job, **options):
        calls.append(job.out.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(job, **options)

    with monkeypatch.context() as patched:
        patched.setattr(stages, "train_retriever", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compared(data, tmp_path / "out", "bm25", "tiger")
    assert not (tmp_path / "out" / "comparison.json").exists()
    monkeypatch.setattr(stages, "train_retriever", lambda job, **options: calls.append(job) or original(job, **options))
    again = compared(data, tmp_path / "out", "bm25", "tiger")
    assert len(calls) == 3  # the finished one was kept
    assert scores(again) == scores(summary)


def test_later_commands_add_systems_and_seeds(study, data, tmp_path):
    first, _ = study
    out = tmp_path / "out"
    shutil.copytree(first, out)
    compared(data, out, "tiger", seeds=(2,), objectives=("base",))
    summary = compared(data, out, "ltrgr", objectives=("base",))
    assert set(summary["rows"]) == {"bm25", "tiger", "tiger+restd", "ltrgr"}
    assert set(summary["rows"]["tiger+restd"]["seeds"]) == {"1", "2"}
    assert summary["rows"]["tiger"]["NDCG@10"]["deviation"] is not None
    assert set(summary["rows"]["ltrgr"]["seeds"]) == {"1"}
    # LTRGR stands on TIGER's identifiers: one index, made once
    assert summary["systems"]["ltrgr"]["index"] == summary["systems"]["tiger"]["index"]
    assert len(list((out / "indexes").iterdir())) == 1
    with pytest.raises(ArtifactError, match="contains a study with another budget"):
        compared(data, out, "tiger", budget=BUDGET.with_settings(["train.updates=5"]))


def test_a_system_is_a_study_of_its_own(study):
    out, _ = study
    opened = Study.open(out / "systems" / "tiger")
    assert opened.comparison.objectives == ("base", "restd")
    assert set(opened.cell("restd", 1).values) == {"sid", "item"}


def test_what_the_data_lacks_is_said_before_anything_runs(tmp_path, monkeypatch):
    plain = write_world(tmp_path / "plain", categories=False)
    monkeypatch.setattr(runs, "_encode", lambda *args: pytest.fail("something ran"))
    wanted = r"cat-id2, calir: it needs categories of the items, .* Compare the others: --systems tiger\."
    with pytest.raises(ConfigError, match=wanted):
        compared(plain, tmp_path / "out", "tiger", "calir", "cat-id2")
    lines = [line for line in (plain / "judgments.jsonl").read_text("utf-8").splitlines() if "train" not in line]
    (plain / "judgments.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"dpr: it learns from training queries, .* --systems bm25\."):
        compared(plain, tmp_path / "out", "dpr", "bm25")
    with pytest.raises(ConfigError, match=r"tiger: it learns from training queries.*pseudo_queries above 0 draws some"):
        compared(plain, tmp_path / "out", "tiger", "bm25")
    assert not (tmp_path / "out").exists()


def test_with_all_it_is_left_out_and_said(tmp_path, data):
    plain = write_world(tmp_path / "plain", categories=False)
    sentences = []
    summary = compared(plain, tmp_path / "out", "bm25", "calir", everything=("calir", "tiger"), notify=sentences.append)
    assert list(summary["rows"]) == ["bm25"]
    assert "it needs categories" in summary["left_out"]["calir"]
    assert any(sentence.startswith("calir is left out: it needs categories") for sentence in sentences)


def test_an_encoder_that_cannot_be_had_names_the_systems(tmp_path, data):
    missing = BUDGET.with_settings([f"index.encoder={tmp_path / 'nowhere'}/model"])
    with pytest.raises(ConfigError, match=r"tiger: its encoder .* cannot be had .*--systems bm25\."):
        compared(data, tmp_path / "out", "bm25", "tiger", budget=missing)
    summary = compared(data, tmp_path / "out", "bm25", budget=missing)  # BM25 needs none
    assert list(summary["rows"]) == ["bm25"]


def test_more_codes_than_items_is_said_before_anything_runs(tmp_path, data):
    large = BUDGET.with_settings(["quantizer.codes=256"])
    with pytest.raises(ConfigError, match=r"tiger: A codebook of 256 codes needs at least as many items"):
        compared(data, tmp_path / "out", "tiger", budget=large)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (("tigr",), {}, r"Unknown system 'tigr'\. Did you mean 'tiger'"),
        (("tiger",), {"objectives": ("base", "rest")}, "Unknown objective 'rest'"),
        (("tiger",), {"seeds": (1, 1)}, "none twice"),
        ((), {}, "No system is named"),
    ],
)
def test_names_that_nobody_knows(names, options, message):
    with pytest.raises(ConfigError, match=message):
        plan_systems(names, BUDGET, **options)


def test_a_stage_that_fails_is_reported_and_the_others_go_on(tmp_path, data, monkeypatch):
    original = stages.train_retriever

    def failing(job, **options):
        if "tiger" in str(job.out):
            raise ConfigError("The loss is not a number.")
        return original(job, **options)

    monkeypatch.setattr(stages, "train_retriever", failing)
    summary = compared(data, tmp_path / "out", "bm25", "tiger", objectives=("base",))
    assert list(summary["rows"]) == ["bm25"]
    assert summary["failed"] == {"tiger": "training tiger-base-1: The loss is not a number."}
    with pytest.raises(ConfigError, match="Every system failed"):
        compared(data, tmp_path / "other", "tiger", objectives=("base",))


def test_results_of_other_queries_are_refused(study):
    out, _ = study
    folder = out / "systems" / "tiger" / "evaluations"
    one, other = (Evaluation.load(folder / f"{name}-1-valid") for name in ("base", "restd"))
    runs.refuse_different_rules({("a", "base", 1): one, ("b", "base", 1): other})
    changed = replace(other, card=replace(other.card, split="test"))
    with pytest.raises(ArtifactError, match=r"b\+base was measured under other rules than .* \(split\)"):
        runs.refuse_different_rules({("a", "base", 1): one, ("b", "base", 1): changed})
    shuffled = replace(other, queries=tuple(reversed(other.queries)))
    with pytest.raises(ArtifactError, match=r"\(queries\)"):
        runs.refuse_different_rules({("a", "base", 1): one, ("b", "base", 1): shuffled})


def test_a_system_of_ones_own_is_one_call(tmp_path, data):
    SYSTEMS.add(
        SystemSpec(
            "flat",
            "One level of k-means.",
            source="",
            label="Flat",
            index={"kmeans": {"levels": 1}, "index": {"policy": "suffix"}, "align": {"enabled": "off"}},
        )
    )
    try:
        summary = compared(data, tmp_path / "out", "flat", objectives=("base",))
        assert summary["rows"]["flat"]["NDCG@10"]["mean"] > 0
        assert summary["systems"]["flat"]["quantizer"]["levels"] == 1
    finally:
        SYSTEMS.remove("flat")


def test_options_of_studies_with_one_index_are_refused(tmp_path, data):
    from restd.search import SearchOptions

    with pytest.raises(ConfigError, match="--mode hybrid is for studies of one index"):
        comparison(data, tmp_path, "tiger", decoding=SearchOptions.of(mode="hybrid"))
    with pytest.raises(ConfigError, match="processes of their own"):
        runs.run_systems(comparison(data, tmp_path, "bm25"), workers=2, isolate=False)


def test_costs_are_kept_and_pieces_are_added_up(tmp_path):
    path = cost_file(tmp_path, "train", "cell")
    assert read_cost(path) is None

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_cost(path, interrupted, key="a")
    assert not is_finished(path, key="a")
    measure_cost(path, lambda: {"updates": 3}, key="a", own_process=True)
    cost = read_cost(path)
    assert cost.whole
    assert cost.own_process
    assert cost.figures == {"updates": 3}
    assert cost.seconds > 0
    assert cost.peak > 1_000_000
    assert is_finished(path, key="a")
    assert not is_finished(path, key="b")
    record = json.loads(path.read_text("utf-8"))
    assert len(record["pieces"]) == 2
    path.write_text(json.dumps({**record, "pieces": [None, record["pieces"][1]]}), encoding="utf-8")
    assert not read_cost(path).whole  # a piece that was killed
    measure_cost(path, lambda: None, key="b")
    assert len(json.loads(path.read_text("utf-8"))["pieces"]) == 1


def test_the_papers_own_oracle():
    assert round(relative_improvement(9.28, 7.50), 2) == 23.73
