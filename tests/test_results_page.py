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


def test_every_result_of_the_search_is_read_by_a_table():
    own = {path for folder in ("search", "supervision", "generator") for path in (ROOT / "results" / folder).glob("*")}
    assert own <= MADE["MADE"]["known_files"]()


def test_tables_over_many_files_are_made_from_these(tmp_path, monkeypatch):
    """The same files with other figures make other tables, and files that are missing make fewer rows."""
    made = MADE["MADE"]
    blocks = {name: block() for name, block in made["BLOCKS"].items()}
    monkeypatch.setitem(made["kept"].__globals__, "RESULTS", tmp_path)
    assert {block() for block in made["BLOCKS"].values()} == {made["NOTHING"]}
    write_results(tmp_path)
    rows = {name: block().count("\n") for name, block in made["BLOCKS"].items()}
    assert all(block() != made["NOTHING"] for block in made["BLOCKS"].values())
    assert all(block() != blocks[name] for name, block in made["BLOCKS"].items())
    assert "| shop, English | aligned index | 1,700 | 3.00 | 3.00 | 3.00 | +1.00 |" in made["BLOCKS"]["steps"]()
    assert "+1.00 [+0.50, +1.50]†" in made["BLOCKS"]["supervision-ndcg10"]()
    assert "| 2.50 | 2.50 | 2.50 | +0.50 |" in made["BLOCKS"]["generator"]()
    assert "Base-FT differs" not in made["BLOCKS"]["supervision-says"]()
    (tmp_path / "search" / "us20-s1.json").unlink()
    assert made["BLOCKS"]["steps"]().count("\n") == rows["steps"] - 1


def write_results(folder):
    """One made-up file of every kind, in the form that the commands write."""
    measures = ("NDCG@10", "Recall@10", "Recall@100")
    gap = {"mean": 1.0, "low": 0.5, "high": 1.5, "p": 0.01, "adjusted": 0.02}
    scores = dict.fromkeys(measures, 2.0)
    entry = {measure: {"mean": 2.0, "deviation": None, "seeds": 1} for measure in measures}
    ours = {**entry, "against_base": dict.fromkeys(measures, gap)}
    quality = {
        "kept": {kind: {"NDCG@10": 1.0, "Recall@100": 2.0} for kind in ("embeddings", "latents", "Semantic IDs")}
    }
    board = {"rankers": dict.fromkeys(("bm25", "hybrid"), scores), "weights": {}}
    board["hybrid_over"] = {name: dict.fromkeys(measures, gap) for name in ("bm25", "without bm25")}
    comparison = json.loads((ROOT / "results" / "shop-us.json").read_text(encoding="utf-8"))
    comparison["settings"]["train"]["pseudo_queries"] = 4
    comparison |= {"measures": list(measures), "beside": {}}
    comparison["conditions"] = {"base": entry, "restd": ours}
    rankers = {
        "base": {"generator": entry, "hybrid": entry},
        "restd": {"generator": ours, "heads": entry, "hybrid": ours},
    }
    parts = {"data": {"objectives": rankers, "slices": [{"pairs": "1–2", "queries": 5, "objectives": rankers}]}}
    new = {"objectives": rankers, "beside": {"bm25_dense": entry}}
    cold = {"data": {"new": new, "queries": {"new": 3}}}
    files = {
        "search/us20-plan": {"s1": {"updates": 1_700}},
        "supervision/controls-valid": comparison,
        "generator/base-42": {"item": scores},
        "generator/ema-42": {"item": dict.fromkeys(measures, 2.5)},
        "search/us20-s0": {"item": scores},
        "search/us20-s1": {"item": dict.fromkeys(measures, 3.0)},
        "search/us20-al-quality": quality,
        "search/us20-ablate": board,
        "supervision/all-al-generative": comparison,
        "supervision/all-al-parts": parts,
        "supervision/all-al-cold-start": cold,
        "supervision/controls-hybrid": comparison,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


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
