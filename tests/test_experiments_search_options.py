"""Comparisons under other ways to search: hybrid, with heads, filtered; each cell's card says how."""

import json
from dataclasses import replace

import pytest

from restd.analyses import comparison_result
from restd.errors import ConfigError, DataError
from restd.evaluate import Evaluation
from restd.experiments import compare, comparison_identity, load_study
from restd.experiments.evaluations import NO_HEADS
from restd.experiments.study import Study
from restd.models.store import model_folder
from restd.search import Fusion, HeadUse, Retriever, SearchOptions
from tests.studies import comparison, write_place
from tests.training import MATERIALS, THINGS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The tiny world, with test queries beside those that hybrid searches are fitted on."""
    folder = write_place(tmp_path_factory.mktemp("place"))
    with (folder / "data" / "judgments.jsonl").open("a", encoding="utf-8") as file:
        for thing in THINGS:
            for material in MATERIALS:
                row = {"query": f"the {material} {thing}", "item": f"red-{material}-{thing}", "grade": 1}
                file.write(json.dumps({**row, "split": "test"}) + "\n")
    return folder


def study(place, name, **changed):
    return comparison(
        place, place / name, **{"objectives": ("base", "restd"), "seeds": (1,), "split": "test", **changed}
    )


def cards(folder):
    return {one.name: Evaluation.load(one).card.decoding for one in sorted((folder / "evaluations").iterdir())}


@pytest.fixture(scope="module")
def hybrid(place):
    return compare(study(place, "hybrid", decoding=SearchOptions(mode="hybrid")))


def test_every_cell_fits_a_fusion_of_its_own(hybrid, place):
    folder = place / "hybrid"
    decodings = cards(folder)
    assert set(hybrid["fusions"]) == {"base-1", "restd-1"}
    for name in ("base-1", "restd-1"):
        run = folder / "runs" / name
        fusion = Fusion.load(run / "fusion")
        assert decodings[f"{name}-test"]["mode"] == "hybrid"
        assert decodings[f"{name}-test"]["weights"] == dict(fusion.weights) == hybrid["fusions"][name]["weights"]
        assert fusion.is_fitted
        loaded = Retriever.load(run, hybrid=True)
        assert fusion.model == loaded.model_hash
    assert Fusion.load(folder / "baselines" / "start" / "fusion").model
    assert not (place / "base" / "fusion").exists()
    report = Fusion.load(folder / "runs" / "restd-1" / "fusion").report
    assert "heads" in {*report["parts"], *report["dropped"]}  # kept by the trajectory objective, and none by base
    base = Fusion.load(folder / "runs" / "base-1" / "fusion")
    assert "heads" not in {*base.weights, *base.report["dropped"]}


def test_the_shared_card_has_no_weights(hybrid):
    assert hybrid["card"]["decoding"]["mode"] == "hybrid"
    assert "weights" not in hybrid["card"]["decoding"]
    changed = json.loads(json.dumps(hybrid))
    changed["fusions"]["base-1"]["weights"] = {"generator": 1.0}
    assert comparison_identity(changed) == comparison_identity(hybrid)


def test_a_hybrid_cell_is_kept_and_not_taken_for_a_generative_one(hybrid, place, monkeypatch):
    from restd.experiments import evaluations as module

    made = load_study(place / "hybrid")
    assert made.decoding == SearchOptions(mode="hybrid")
    evaluate = module.evaluate

    def refuse(*args, **options):
        raise AssertionError("ranked again")

    monkeypatch.setattr(module, "evaluate", refuse)
    assert compare(study(place, "hybrid", decoding=made.decoding))["fusions"] == hybrid["fusions"]
    with pytest.raises(AssertionError, match="ranked again"):
        compare(study(place, "hybrid"))
    monkeypatch.setattr(module, "evaluate", evaluate)
    mixed = replace(made, decoding=SearchOptions())
    with pytest.raises(DataError, match=r"measured by other rules than the study's \(.*mode: hybrid instead of None"):
        Study(mixed).cell("base", 1)
    assert Study(made).cell("base", 1).card.decoding["mode"] == "hybrid"


def test_heads_are_used_where_an_objective_trained_them(place):
    sentences = []
    use = HeadUse("rerank", 0.7)
    found = compare(study(place, "heads", decoding=SearchOptions(heads=use)), notify=sentences.append)
    decodings = cards(place / "heads")
    assert decodings["restd-1-test"]["heads"] == {"mode": "rerank", "weight": 0.7, "extra_candidates": 200}
    assert decodings["base-1-test"]["heads"] == decodings["start-test"]["heads"] == NO_HEADS
    assert "base-1 is searched without heads: its objective trains none" in sentences
    assert found["without_heads"] == ["base"]
    assert found["card"]["decoding"]["heads"]["mode"] == "rerank"
    overall = next(table for table in comparison_result(found).tables if table.name == "overall")
    assert any("Searched without heads" in note and "Base-FT" in note for note in overall.notes)
    made = Study.open(place / "heads")
    assert made.cell("base", 1).card.decoding["heads"] == NO_HEADS
    plain = replace(made.comparison, decoding=SearchOptions())
    for objective in ("base", "restd"):
        with pytest.raises(DataError, match="other rules than the study's"):
            Study(plain).cell(objective, 1)


def test_filters_and_norms_are_rules_of_the_study(place):
    options = SearchOptions(where=("title~red",), score_norm="trie_children")
    found = compare(study(place, "filtered", decoding=options))
    assert found["card"]["decoding"]["where"] == ["title~red"]
    assert found["card"]["decoding"]["score_norm"] == "trie_children"
    open_study = Study.open(place / "filtered")
    assert open_study.comparison.decoding == options
    with pytest.raises(DataError, match="where"):
        Study(replace(open_study.comparison, decoding=replace(options, where=()))).cell("base", 1)
    unfiltered = compare(study(place, "unfiltered", decoding=SearchOptions(score_norm="trie_children")))
    assert "where" not in unfiltered["card"]["decoding"]
    ours, theirs = (one["conditions"]["base"]["Recall@10"]["mean"] for one in (found, unfiltered))
    assert ours > theirs  # every test query asks for a red thing


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split": "valid"}, "fitted on the validation queries, so these cannot judge it"),
        ({"decoding": SearchOptions(mode="hybrid", heads=HeadUse())}, "Leave one of --mode hybrid and --head-mode out"),
    ],
)
def test_hybrids_that_cannot_be_compared(place, changed, message):
    with pytest.raises(ConfigError, match=message):
        study(place, "refused", **{"decoding": SearchOptions(mode="hybrid"), **changed})


def test_the_command_takes_the_options(place, command):
    from tests.studies import SETTINGS
    from tests.training import FAST, TINY

    settings = [word for setting in (*TINY["compact"], *FAST, *SETTINGS) for word in ("--set", setting)]
    words = ("--index", place / "index", "--data", place / "data", "--out", place / "by-command", "--updates", 6)
    words += ("--seeds", "1", "--objectives", "base", "--beam", 7, "--mode", "hybrid", "--where", "title~red")
    code, out, err = command("compare", *words, "--score-norm", "level_codes", "--json", *settings)
    assert code == 0, err
    decoding = json.loads(out)["card"]["decoding"]
    assert {name: decoding[name] for name in ("beam", "mode", "where", "score_norm")} == {
        "beam": 7,
        "mode": "hybrid",
        "where": ["title~red"],
        "score_norm": "level_codes",
    }
    assert (model_folder(place / "by-command" / "runs" / "base-1").parent / "fusion").is_dir()
    code, _, err = command("compare", *words, "--head-mode", "rerank", *settings)
    assert code != 0
    assert "--head-mode" in err
