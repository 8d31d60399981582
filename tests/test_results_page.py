"""docs/results.md says what results/*.json hold, and nothing else."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MADE = runpy.run_path(str(ROOT / "docs" / "make_results.py"))
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
FILES = sorted((ROOT / "results").glob("*.json"))


def test_the_page_is_made_of_the_results():
    assert MADE["rebuilt"](PAGE) == PAGE, "run python docs/make_results.py"


def test_another_figure_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(MADE["finding"].__globals__, "RESULTS", tmp_path)
    for path in FILES:
        held = json.loads(path.read_text(encoding="utf-8"))
        for condition in held.get("conditions", {}).values():
            condition["NDCG@10"]["mean"] += 1
        (tmp_path / path.name).write_text(json.dumps(held), encoding="utf-8")
    assert MADE["rebuilt"](PAGE) != PAGE


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_result_is_on_the_page(path):
    assert f": {path.stem}" in PAGE


def test_every_picture_is_there():
    for name, part in MADE["figures"](PAGE):
        assert (ROOT / "docs" / "results" / f"{name}-{part}.svg").is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_comparison_has_seeds_intervals_and_its_protocol(path):
    held = json.loads(path.read_text(encoding="utf-8"))
    if held.get("kind") != "comparison":
        return
    assert len(held["seeds"]) >= 1
    assert held["card"]["queries"]["judged"] > 0
    for name, condition in held["conditions"].items():
        assert set(condition["seeds"]) == {str(seed) for seed in held["seeds"]}
        if name != "base":
            assert condition["against_base"]["NDCG@10"]["low"] <= condition["against_base"]["NDCG@10"]["high"]
