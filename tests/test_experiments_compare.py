"""Matched comparisons: paired cells, reused and resumed; tables that say what was found."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from restd.analyses import AnalysisResult, comparison_result
from restd.errors import ArtifactError, ConfigError, DataError
from restd.evaluate import read_tests
from restd.experiments import compare, load_study, parse_objectives, read_comparison
from restd.experiments.objective_sets import CONTROLS, MATCHED
from restd.experiments.study import Study
from restd.search import SearchOptions
from restd.snapshot import Snapshot
from tests.studies import comparison, write_place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def held(place):
    """A comparison with everything in it."""
    made = comparison(place, place / "study", objectives=("base", "rbd", "restd", "shape-swap"))
    return compare(comparison_with_baselines(made))


def comparison_with_baselines(made):
    return replace(made, baselines=("bm25", "popularity"))


def test_every_cell_has_its_scores(held):
    assert list(held["conditions"]) == ["base", "rbd", "restd", "shape-swap"]
    for condition in held["conditions"].values():
        assert set(condition["seeds"]) == {"1", "2"}
        values = [seed["sid"]["NDCG@10"] for seed in condition["seeds"].values()]
        assert condition["NDCG@10"]["mean"] == pytest.approx(np.mean(values))
        assert condition["NDCG@10"]["deviation"] == pytest.approx(np.std(values, ddof=1))
    assert set(held["beside"]) == {"bm25", "popularity", "start"}
    assert held["card"]["seeds"] == [1, 2]
    assert "against_base" not in held["conditions"]["base"]


def test_differences_are_of_seed_averages(held, place):
    study = Study.open(place / "study")
    gaps = study.mean_of_seeds("restd", "NDCG@10") - study.mean_of_seeds("base", "NDCG@10")
    assert held["conditions"]["restd"]["against_base"]["NDCG@10"]["mean"] == pytest.approx(gaps.mean())


def test_the_tables_name_what_they_hold(held):
    finding = comparison_result(held)
    names = {table.name: table for table in finding.tables}
    assert set(names) == {"overall", "objectives", "controls", "gains"}
    assert [row[0] for row in names["controls"].rows] == ["Base-FT", "ResTD (H=4)", "Shape-matched swap"]
    assert [row[0] for row in names["objectives"].rows] == ["Base-FT", "RBD (H=1)", "ResTD (H=4)"]
    assert "ResTD over the best baseline (%)" in [row[0] for row in names["overall"].rows]
    assert "conditional on the fitted models" in names["gains"].notes[0]
    assert "2 paired seeds (1, 2)" in finding.says
    for table in finding.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert AnalysisResult.from_dict(json.loads(json.dumps(finding.to_dict()))) == AnalysisResult.from_dict(
        finding.to_dict()
    )


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.1, 1.0, "a gain"), (-1.0, -0.1, "a loss"), (-0.1, 0.1, "not distinguishable")],
)
def test_the_gist_says_whatever_it_is(held, low, high, said):
    changed = json.loads(json.dumps(held))
    changed["conditions"]["restd"]["against_base"]["NDCG@10"].update(low=low, high=high)
    assert said in comparison_result(changed).says


def test_finished_cells_are_not_trained_again(held, place, monkeypatch):
    from restd.experiments import evaluations as module

    def refuse(*args, **options):
        raise AssertionError("ranked again")

    monkeypatch.setattr(module, "evaluate", refuse)
    told = []
    made = comparison(place, place / "study", objectives=("base", "restd"))
    again = compare(made, notify=told.append)
    assert again["conditions"]["restd"] | {"against_base": None} == held["conditions"]["restd"] | {"against_base": None}
    assert sum("nothing has changed" in sentence for sentence in told) == 8  # what the folder has is part of the study
    assert list(again["conditions"]) == list(held["conditions"])


def test_other_settings_in_the_same_folder_are_refused(held, place):
    made = comparison(place, place / "study", objectives=("base", "restd"))
    config = replace(made.config, train=replace(made.config.train, lr=0.5))
    before = (place / "study" / "study.json").read_bytes()
    with pytest.raises(ArtifactError, match=r"other settings \(config\)"):
        compare(replace(made, config=config, seeds=(77,)))
    assert (place / "study" / "study.json").read_bytes() == before


def test_a_study_is_remembered(held, place):
    made = load_study(place / "study")
    assert made.index == (place / "index").resolve()
    assert made.init == (place / "base").resolve()
    assert made.split == "valid"
    assert made.config.distill.cap == "none"
    assert str(place) not in (place / "study" / "study.json").read_text("utf-8")


def test_joint_training_needs_no_checkpoint(place, tmp_path):
    found = compare(comparison(place, tmp_path / "joint", objectives=("base", "restd"), seeds=(3,), joint=True))
    assert found["mode"] == "joint"
    assert "from the same first weights, jointly" in comparison_result(found).says
    assert found["beside"] == {}
    assert found["conditions"]["base"]["NDCG@10"]["deviation"] is None


def test_two_random_kills_and_the_table_is_the_same(place, tmp_path):
    """Killed twice while it trains, and started again: the bytes of an undisturbed study."""

    def start(out):
        command = [sys.executable, "-m", "tests.killed_studies", str(place), str(out)]
        return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)

    undisturbed = start(tmp_path / "whole")
    rng = np.random.default_rng(8)
    killed = 0
    for most in (2, 5):
        process = start(tmp_path / "killed")
        wanted = int(rng.integers(1, most))
        while process.poll() is None:
            if len(list((tmp_path / "killed" / "runs").glob("*/log.jsonl"))) >= wanted:
                time.sleep(float(rng.uniform(0, 0.05)))
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed == 2
    assert not (tmp_path / "killed" / "comparison.json").exists()
    last = start(tmp_path / "killed")
    for process in (undisturbed, last):
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()
    one, other = (read_comparison(tmp_path / name) for name in ("whole", "killed"))
    assert one == other


def test_objectives_by_list_and_name():
    assert parse_objectives("all") == (*MATCHED, *CONTROLS)
    assert parse_objectives("rbd, restd") == ("base", "rbd", "restd")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"objectives": ("restd",)}, "needs the objective 'base'"),
        ({"objectives": ("base", "nothing")}, "Unknown objective 'nothing'"),
        ({"seeds": ()}, "at least one"),
        ({"seeds": (1, 1)}, "none twice"),
        ({"seeds": (-1,)}, "none below 0"),
        ({"baselines": ("elastic",)}, "Known: bm25"),
    ],
)
def test_what_cannot_be_compared(place, tmp_path, changed, said):
    with pytest.raises(ConfigError, match=said):
        comparison(place, tmp_path / "out", **changed)


def test_a_folder_that_is_no_study(tmp_path):
    with pytest.raises(DataError, match="no study"):
        load_study(tmp_path)
    with pytest.raises(DataError, match=r"comparison\.json"):
        read_comparison(tmp_path)


def test_categories_of_the_checkpoint_for_all(tmp_path, monkeypatch):
    """With the checkpoint's router, a model searches the categories the checkpoint chose, whatever its own say."""
    from restd.evaluate import Measure
    from restd.models import CachedRoutes, open_model
    from restd.search import Retriever, SearchOptions
    from tests.training import job, make_index, run, write_world

    data = write_world(tmp_path / "data")
    index = make_index(data, tmp_path / "index")
    base = run(index, data, tmp_path / "base", backbone="calir", updates=15).folder.parent
    made = job(index, data, tmp_path / "x", backbone="calir", init=base, updates=8)
    held = comparison(tmp_path, tmp_path / "study", objectives=("base", "restd"), seeds=(1,))
    routed = SearchOptions(category_width=1)
    held = replace(held, model=made.model, config=made.config, init=base, decoding=routed, router="start")
    held = replace(held, measures=(Measure("Recall", 3), Measure("NDCG", 3)))
    found = compare(held)
    assert found["card"]["decoding"]["router"] == "start"
    routing = next(table for table in comparison_result(found).tables if table.name == "routing")
    assert [row[0] for row in routing.rows] == ["Base-FT", "ResTD (H=4)"]
    assert 0 < found["conditions"]["restd"]["category_recall@3"]["mean"] <= 100
    used = []
    original = Retriever.rank

    def watched(self, queries, k, **options):
        used.append(options["routes"])
        return original(self, queries, k, **options)

    monkeypatch.setattr(Retriever, "rank", watched)
    compare(replace(held, router="own", out=tmp_path / "own"))
    assert used == [None] * len(used)
    compare(replace(held, out=tmp_path / "again"))
    assert used[-1] is not None
    start, _ = open_model(base)
    texts = ["steel kettle", "oak desk"]
    routes = CachedRoutes.of(start.eval(), texts, width=1)
    chosen = [set(start.categories.members(np.array(route)).nonzero()[0]) for route in routes.route(texts)]
    rows, _ = Retriever.load(tmp_path / "study" / "runs" / "restd-1").rank(texts, 3, category_width=1, routes=routes)
    for inside, ranked in zip(chosen, rows.tolist(), strict=True):
        assert set(ranked) <= inside
    with pytest.raises(ConfigError, match="give --init"):
        replace(held, init=None)
    plain = replace(
        comparison(write_place(tmp_path / "plain"), tmp_path / "other", seeds=(1,)), decoding=routed, router="start"
    )
    with pytest.raises(ConfigError, match="knows no categories"):
        compare(plain)


def test_a_study_measured_by_two_rules_is_not_averaged(place, tmp_path, monkeypatch):
    """A comparison with another beam that is killed half-way leaves cells of both beams."""
    from restd.experiments import run as runs

    made = comparison(place, tmp_path / "study", objectives=("base", "restd"), seeds=(1,))
    compare(made)
    study = Study.open(tmp_path / "study")
    study.mean_of_seeds("base", "NDCG@10")
    evaluated, original = [], runs.evaluate_model

    def killed(comparison, name, *given, **options):
        if len(evaluated) == 2:  # the checkpoint they start from, and one cell
            raise KeyboardInterrupt
        evaluated.append(name)
        return original(comparison, name, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(runs, "evaluate_model", killed)
        with pytest.raises(KeyboardInterrupt):
            compare(replace(made, decoding=SearchOptions(beam=3)))
    assert evaluated == ["start", "base-1"]
    mixed = Study.open(tmp_path / "study")
    mixed.mean_of_seeds("restd", "NDCG@10")
    with pytest.raises(DataError, match=r"base-1 of .* other rules .*\(beam: 3 instead of 100\).*restd compare again"):
        mixed.mean_of_seeds("base", "NDCG@10")
    with pytest.raises(DataError, match=r"start of .* other rules"):
        _ = mixed.start
    with pytest.raises(DataError, match="relevance"):
        Study(replace(made, graded=True)).cell("restd", 1)
    compare(made)
    assert np.isfinite(Study.open(tmp_path / "study").mean_of_seeds("base", "NDCG@10")).all()


def test_baselines_of_a_study_stay_and_follow_the_items_texts(tmp_path, monkeypatch):
    from restd.experiments import evaluations as module

    place = write_place(tmp_path / "place")
    made = comparison(place, tmp_path / "study", objectives=("base",), seeds=(1,), baselines=("bm25",))
    first = compare(made)
    again = compare(replace(made, baselines=()))
    assert again["beside"]["bm25"] == first["beside"]["bm25"]
    assert load_study(tmp_path / "study").baselines == ("bm25",)
    ranked, original = [], module.make_ranker
    monkeypatch.setattr(module, "make_ranker", lambda name, context: ranked.append(name) or original(name, context))
    snapshot = Snapshot.load(place / "index")
    tests = read_tests(place / "data", snapshot, split="valid", task="search")
    module.evaluate_baseline(made, "bm25", tests, snapshot, notify=print)
    assert ranked == []
    items = place / "data" / "items.jsonl"
    items.write_text(re.sub(r'"title": "[^"]*"', '"title": "something else"', items.read_text("utf-8")), "utf-8")
    changed = module.evaluate_baseline(made, "bm25", tests, snapshot, notify=print)
    assert ranked == ["bm25"]
    assert changed.mean("NDCG@10") < first["beside"]["bm25"]["NDCG@10"]
    embedded_again = replace(snapshot, embeddings="0" * 64)
    for known in (snapshot, embedded_again, embedded_again):
        module.evaluate_baseline(made, "bm25", tests, known, notify=print)
    assert ranked == ["bm25", "bm25"], "other embeddings are another source; the same ones are not"
