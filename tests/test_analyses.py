"""Analyses of a study: against brute force, and on what must hold whatever the models are."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from restd.analyses import AnalysisResult, beams
from restd.analyses.beams import Searcher, beam, cases, prefix_recall, some_queries
from restd.analyses.disagreement import disagreement, measure_disagreement
from restd.analyses.learning import Course, learning
from restd.analyses.overhead import overhead_result
from restd.analyses.probes import probe_queries, probes
from restd.analyses.slices import make_slices, sliced, slices
from restd.analyses.sweeps import sweep_result
from restd.analyses.teachers import Teachers, _same_group_pairs, conflicts, jensen_shannon, study_teachers, variation
from restd.data import History
from restd.distill.equations import correction_weight
from restd.errors import ConfigError, DataError
from restd.evaluate import TestSet
from restd.experiments import Study, compare, measure_updates, run_sweep
from restd.experiments.sweeps import CORRECTION, changed_settings, sensitivity
from restd.index import SidIndex
from restd.report import ANALYSES, draw, make_page, read_results, save_figure, to_svg, write_report
from restd.train import DistillSettings, read_log
from tests.studies import comparison, write_place


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    place = write_place(tmp_path_factory.mktemp("place"))
    compare(comparison(place, place / "study"))
    return Study.open(place / "study")


def quiet(sentence):
    """Say nothing."""


def test_divergence_splits_into_disagreement_and_the_distance_of_the_mean():
    """E KL(Q_d ‖ P) = E KL(Q_d ‖ Q̄) + KL(Q̄ ‖ P), and J is at most ln 2."""
    generator = torch.Generator().manual_seed(0)
    teachers = torch.rand(5, 9, generator=generator, dtype=torch.float64).softmax(-1)
    student = torch.rand(9, generator=generator, dtype=torch.float64).softmax(-1)
    mean = teachers.mean(0)

    def kl(one, other):
        return (one * (one / other).log()).sum(-1)

    whole = kl(teachers, student).mean()
    assert float(whole) == pytest.approx(float(kl(teachers, mean).mean() + kl(mean, student)), abs=1e-9)
    spread = torch.special.entr(mean).sum() - torch.special.entr(teachers).sum(-1).mean()
    assert float(kl(teachers, mean).mean()) == pytest.approx(float(spread), abs=1e-9)
    assert float(jensen_shannon(teachers[0], teachers[0])) == 0.0
    pairs = jensen_shannon(torch.eye(3).double(), torch.eye(3).double().roll(1, 0))
    assert pairs.tolist() == pytest.approx([np.log(2)] * 3)


def test_conflicts_against_single_items(study):
    found = conflicts(study.index, DistillSettings()).data["levels"]
    held = Teachers.of(study.index, DistillSettings())
    raw = held.raw(torch.arange(len(study.index)))
    for level, entry in enumerate(found):
        stored = torch.from_numpy(study.index.sids[:, level].astype(np.int64))
        wrong = raw[:, level].argmax(-1) != stored
        assert entry["conflict"] == pytest.approx(100 * float(wrong.float().mean()))
        assert entry["edited"] == pytest.approx(100 * study.index.edited[:, level].mean())
        if wrong.any():
            own = raw[:, level].gather(1, stored[:, None])[:, 0]
            weights = correction_weight(own[wrong], raw[:, level].amax(-1)[wrong])
            assert entry["mean"] == pytest.approx(float(weights.mean()), abs=1e-6)
    assert found[0]["edited"] == pytest.approx(found[0]["conflict"])  # the first residual is never affected


def test_pairs_share_their_group_and_are_uniform():
    group = np.array([0, 0, 0, 1, 1, 2])
    one, other = _same_group_pairs(group, 8_000, seed=0)
    assert (group[one] == group[other]).all()
    assert (one != other).all()
    assert (group[one] == 0).mean() == pytest.approx(3 / 4, abs=0.03)  # three pairs of four
    with pytest.raises(DataError, match="nothing to compare"):
        _same_group_pairs(np.arange(4), 10, seed=0)


def test_variation_is_zero_where_teachers_are_the_code(study):
    real = variation(study.index, DistillSettings(), pairs=500).data
    assert 0.0 < real["mean"] < np.log(2)
    sharp = variation(study.index, DistillSettings(temperature="fixed", tau=1e-6), pairs=500).data
    assert sharp["mean"] < 0.1 * real["mean"]


def test_disagreement_of_pairs_by_hand(study):
    teachers = study_teachers(study)
    rows = np.array([3, 9, 20])
    names = tuple("abcdefg")
    first = np.array([0, 3, 6, 9, 12, 15, 18, 19])
    many = np.append(np.tile(rows, 6), 5)
    tests = TestSet("test", "", "", names, names, first, many, np.ones(19), np.ones(19, np.int64))
    found = measure_disagreement(tests, teachers)
    held = teachers.corrected(torch.from_numpy(rows))[:, 0]
    wanted = np.mean([float(jensen_shannon(held[a], held[b])) for a, b in ((0, 1), (0, 2), (1, 2))])
    assert found.queries.tolist() == [0, 1, 2, 3, 4, 5]  # one positive cannot disagree
    assert found.divergence == pytest.approx([wanted] * 6)
    with pytest.raises(DataError, match="at least 6 queries"):
        measure_disagreement(some_queries(tests, 3), teachers)
    with pytest.raises(DataError, match="nothing to compare base with"):
        disagreement(Study(replace(study.comparison, objectives=("base",))), ours="base")


def test_strata_are_thirds(study):
    found = disagreement(study)
    sizes = [entry["queries"] for entry in found.data["strata"] if entry["against"] == "base"]
    assert sum(sizes) == 15
    assert max(sizes) - min(sizes) <= 1
    means = [entry["divergence"] for entry in found.data["strata"] if entry["against"] == "base"]
    assert means == sorted(means)
    assert {entry["against"] for entry in found.data["regressions"]} == {"base", "rbd"}


def test_learning_is_what_the_logs_say(study):
    found = learning(study)
    for name in study.comparison.objectives:
        for seed in study.comparison.seeds:
            records = read_log(study.model(name, seed) / "log.jsonl")
            said = found.data[name][str(seed)]
            assert len(said["loss"]) == 10  # a continuation has no validations: tenths of it
            assert np.mean(said["loss"]) == pytest.approx(np.mean([held["sid_loss"] for held in records]), rel=0.05)
            assert said["loss"][-1] == pytest.approx(np.mean([held["sid_loss"] for held in records[-2:]]), rel=0.05)
            assert bool(said["divergence"]) == (name != "base")
    ratio = np.mean([held["kl"] * held["weight"] / held["sid_loss"] for held in records])
    assert said["share"] == pytest.approx(ratio)
    assert said["capped"] == 0.0  # the study has no cap
    assert found.tables[0].rows[0][1:3] == ("–", "–")
    assert [figure.name for figure in found.figures] == ["learning-losses"]


def test_learning_finds_the_best_epoch_and_averages_what_lies_before_it():
    steps = [{"update": n, "sid_loss": 10.0 - n, "kl": 1.0, "output_kl": 2.0} for n in range(1, 7)]
    weights = {"weight": 0.1, "output_weight": 0.5, "capped": 0.0, "output_capped": 1.0}
    ends = [{"update": n, "valid_loss": 5.0, "validation": score} for n, score in ((2, 1.0), (4, 3.0), (6, 3.0))]
    found = Course.of([{**step, **weights} for step in steps], ends)
    assert found.loss == (8.5, 6.5, 4.5)
    assert found.best == 1
    assert found.divergence == (3.0, 3.0, 3.0)
    assert found.share == pytest.approx(np.mean([1.1 / (10.0 - n) for n in range(1, 7)]))
    assert found.capped == 0.5


def test_runs_without_a_log_are_told(tmp_path):
    with pytest.raises(DataError, match="no record of an update"):
        Course.read(tmp_path / "log.jsonl")


def test_slices_add_up_to_the_whole(study):
    found = slices(study)
    for name, members in make_slices(study.tests).items():
        entries = found.data[name]
        sizes = np.array([entry["queries"] for entry in entries])
        assert sizes.tolist() == np.bincount(members.of).tolist()
        for ranker in ("base", "restd"):
            scores = [entry["scores"][ranker]["NDCG@10"] for entry in entries]
            whole = study.mean_of_seeds(ranker, "NDCG@10").mean()
            assert float(np.average(scores, weights=sizes)) == pytest.approx(float(whole))
        for entry in entries:
            gain = entry["scores"]["restd"]["NDCG@10"] - entry["scores"]["base"]["NDCG@10"]
            assert entry["gain"]["mean"] == pytest.approx(gain)
            assert entry["gain"]["low"] <= entry["gain"]["mean"] <= entry["gain"]["high"]


def test_slices_of_large_numbers_are_told_apart():
    found = sliced(np.array([0.0, 5, 1001, 1002, 1003, 1004, 1200, 1300, 2500, 3400]))
    assert found.names == ("0", "5–1,001", "1,002–1,003", "1,004–1,200", "1,300–3,400")


def test_slices_of_histories_by_hand():
    """Items that training never saw are a slice of their own, and a history is as long as its items are many."""
    histories = tuple(History(tuple("abcdefgh"[:length])) for length in (1, 2, 2, 5, 8))
    names = tuple("vwxyz")
    trained = np.array([0, 7, 1, 0, 30])
    tests = TestSet("test", "", "", names, histories, np.arange(6), np.arange(5), np.ones(5), trained, task="recommend")
    found = make_slices(tests)
    assert found["answers"].names == ("0", "1", "7", "30")
    assert found["answers"].of.tolist() == [0, 2, 1, 0, 3]
    assert found["length"].names == ("1", "2", "5–8")  # the middle two are alike, and stay together
    assert found["length"].of.tolist() == [0, 1, 1, 2, 2]


def test_numbers_that_are_all_alike_make_one_slice():
    assert sliced(np.full(9, 3.0)).names == ("3",)
    assert sliced(np.zeros(4)).names == ("0",)


def test_probe_lots_are_disjoint(study):
    fit, held_out = probe_queries([study.tests], seed=1)
    assert not set(fit.texts) & set(held_out.texts)
    assert len(fit.texts) + len(held_out.texts) == len(study.tests)
    again, _ = probe_queries([study.tests], seed=1)
    assert again.texts == fit.texts


def test_probes_have_every_cell(study):
    found = probes(study)
    assert [(cell["state"], cell["target"]) for cell in found.data["future"]] == [
        (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3),
    ]  # fmt: skip
    for cell in (*found.data["future"], *found.data["current"]):
        assert cell["low"] <= cell["reduction"] <= cell["high"]
        assert cell["ours"] > 0
    assert found.figures[0].data["values"][1][0] is None


def test_the_same_model_has_nothing_to_gain_in_probes(study):
    from restd.analyses.probes import _reduction, probe_model

    fit, held_out = probe_queries([study.tests], seed=1)
    model = study.model("base", 1)
    one, two = (probe_model(model, study.index, study_teachers(study), fit, held_out, offsets=2) for _ in range(2))
    assert _reduction([one], [two], (0, 1))["reduction"] == 0.0


def test_a_beam_as_wide_as_the_catalogue_loses_nothing(study):
    searcher = Searcher.of(study.model("base", 1), study.index)
    found, rows = prefix_recall(searcher, study.tests, study.index, width=60, advance=lambda count: None)
    assert (found == 100.0).all()
    assert (np.sort(rows, axis=1) == np.arange(60)).all()
    narrow, _ = prefix_recall(searcher, study.tests, study.index, width=2, advance=lambda count: None)
    assert (np.diff(narrow, axis=1) <= 0).all()  # what is lost does not come back
    assert narrow[:, -1].mean() < 100.0


def test_beam_analysis(study):
    found = beam(study, queries=10)
    assert found.data["queries"] == 10
    scores = [entry["scores"] for entry in found.data["entries"] if "scores" in entry]
    for held in scores:
        assert held["exact"]["Recall@100"] == held["100"]["Recall@100"] == 100.0  # sixty items


def test_models_are_followed_on_the_device_of_the_study(study, monkeypatch):
    searcher = Searcher.of(study.model("base", 1), study.index, device="meta")
    assert searcher.trie.rows.device.type == "meta"
    assert {weight.device.type for weight in searcher.backbone.parameters()} == {"meta"}
    assert searcher.read(["oak desk"]).states.device.type == "meta"
    devices = []

    def stopped(model, *, device):
        devices.append(str(device))
        raise DataError("stop here")

    monkeypatch.setattr(beams, "open_model", stopped)
    elsewhere = Study(replace(study.comparison, device="cuda:1"))
    for analysis in (beam, cases):
        with pytest.raises(DataError, match="stop here"):
            analysis(elsewhere)
    assert devices == ["cuda:1", "cuda:1"]


def test_some_queries_keep_their_positives(study):
    part = some_queries(study.tests, 4, seed=2)
    whole = {text: study.tests.rows[study.tests.positives(n)].tolist() for n, text in enumerate(study.tests.texts)}
    assert len(part) == 4
    for number, text in enumerate(part.texts):
        assert part.rows[part.positives(number)].tolist() == whole[text]
    assert some_queries(study.tests, 100) is study.tests
    with pytest.raises(ConfigError, match="at least 1"):
        some_queries(study.tests, 0)


def test_cases_show_both_models(study):
    found = cases(study, count=3)
    assert len(found.data["cases"]) == 3
    for entry in found.data["cases"]:
        assert set(entry["traces"]) == {"restd", "base"}
        assert all(rank >= 1 for rank in entry["exact_rank"].values())
        assert len(entry["traces"]["base"]["levels"]) == 3
    with pytest.raises(DataError, match="no objective 'hard'"):
        cases(study, theirs="hard")
    with pytest.raises(DataError, match="no objective 'hard'"):
        beam(study, objectives=("hard",))
    with pytest.raises(ConfigError, match="both are 'base'"):
        cases(study, ours="base", theirs="base")


def test_sweeps_reuse_the_study_where_nothing_changed(study):
    told = []
    axes = {"lambda": sensitivity(1.0)["lambda"]}
    cells = run_sweep(study, axes, seeds=(1,), notify=told.append)
    found = sweep_result(cells, name="sensitivity", title="x")
    started = [sentence for sentence in told if sentence.startswith("restd-lambda=")]
    assert len(started) == 4  # λ = 1 is the study's own
    entries = found.data["lambda"]
    assert [entry["value"] for entry in entries] == ["0.25", "0.5", "1", "1.5", "2"]
    assert entries[2]["NDCG@10"]["mean"] == pytest.approx(study.cell("restd", 1).mean("NDCG@10"))
    assert len(CORRECTION["floor"].values) == len(sensitivity(0.1)["rho"].values) == 5
    doubled = replace(study.comparison.config.distill, factor=2.0)
    assert changed_settings(doubled, {"factor": 1.5}).factor == 3.0  # of the study's own
    assert changed_settings(DistillSettings(), {"weight": 0.1}) == DistillSettings()  # the paper's λ, said or not
    with pytest.raises(DataError, match="no result of base with seed 7"):
        run_sweep(study, axes, seeds=(7,), notify=quiet)
    raw = sweep_result(run_sweep(study, CORRECTION, seeds=(1,), notify=quiet), name="correction", title="x")
    assert [entry["value"] for entry in raw.data["floor"]] == ["raw teacher", "0", "0.05", "0.1", "0.2"]


def test_overhead_times_three_arms(study):
    found = overhead_result(measure_updates(study, updates=5, notify=quiet))
    assert set(found.data) == {"base", "rbd", "restd"}
    assert found.data["base"]["ratio"] == 1.0
    assert found.data["restd"]["parameters"] > found.data["base"]["parameters"]


def test_a_cell_that_is_missing_is_named(study):
    with pytest.raises(DataError, match=r"no result of shuffled with seed 1 .* add it with restd compare"):
        study.cell("shuffled", 1)


def test_findings_survive_json_and_every_figure_is_drawn(study, tmp_path):
    for made in (conflicts(study.index, DistillSettings()), probes(study), cases(study, count=2), disagreement(study)):
        again = AnalysisResult.from_dict(json.loads(json.dumps(made.to_dict())))
        assert again.tables == made.tables
        for figure in again.figures:
            assert draw(figure).axes
            assert to_svg(figure) == to_svg(figure)
            assert all(path.stat().st_size > 1_000 for path in save_figure(figure, tmp_path))


def test_the_report_is_one_page_that_asks_nobody(study, command):
    folder = study.comparison.out
    assert command("analyze", "conflicts", folder)[0] == 0
    assert command("analyze", "cases", folder, "--count", "2", "--json")[0] == 0
    assert (folder / ANALYSES / "conflicts-conflicts.tex").is_file()
    written = write_report(folder, folder / "report", title="A <title> & more")
    page = written[0].read_text(encoding="utf-8")
    assert "A &lt;title&gt; &amp; more" in page
    for outside in ("http://", "https://", 'src="/', "<script", "@import"):
        assert outside not in page
    assert page.count("data:image/svg+xml;base64,") == 4
    assert "Protocol card" in page
    assert "Conflicts between teacher" in page
    names = [finding.name for finding in read_results(folder)]
    assert names == ["comparison", "cases", "conflicts"]
    text = written[1].read_text(encoding="utf-8")
    for part in re.findall(r"\]\((parts/[^)]+)\)", text):
        assert (folder / "report" / part).is_file()
    path = folder / ANALYSES / "cases.json"
    changed = {**json.loads(path.read_text("utf-8")), "of": "another comparison"}
    path.write_text(json.dumps(changed), encoding="utf-8")
    _, _, err = command("report", folder)
    assert "cases belongs to another comparison and is left out" in err
    assert make_page(read_results(folder), json.loads((folder / "comparison.json").read_text("utf-8")), title="x")


def test_what_analyses_refuse(study, tmp_path, command):
    code, _, err = command("analyze", "nothing", study.comparison.out)
    assert code == 2
    assert "Known: learning, probes" in err
    code, _, err = command("analyze", "probes", tmp_path)
    assert code == 2
    assert "is not a study" in err
    code, _, err = command("report", tmp_path)
    assert code == 2
    assert "comparison.json" in err


def test_the_study_knows_its_index(study):
    assert isinstance(study.index, SidIndex)
    assert len(study.tests) == 15
    assert study.start is not None
