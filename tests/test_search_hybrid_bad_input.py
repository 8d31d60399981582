"""Hybrid search on what it cannot use: each ends in a sentence that says what to do, or in a fallback that says so."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from restd.errors import ArtifactError, DataError, MissingExtraError
from restd.evaluate import fit_fusion, fitting, fitting_queries, some_queries
from restd.evaluate.fitting import FittingSet, add_parts, available_parts
from restd.search import Fusion, Retriever
from restd.search.candidates import CandidateTable
from tests.training import make_index, run, write_world


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    data = write_world(folder / "data")
    run(make_index(data, folder / "index"), data, folder / "run", updates=10)
    return folder


@pytest.fixture
def trained(place, tmp_path):
    """A run of its own for every test, for fusions beside it."""
    shutil.copytree(place / "run", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def retriever(trained, place):
    loaded = Retriever.load(trained, place / "index", place / "data")
    loaded.set_companions(["bm25", "dense"])
    return loaded


@pytest.fixture
def without_bm25s(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)  # what an import of a package that is not there looks like


def fixed(retriever):
    return Fusion.fixed(available_parts(retriever)).weights


def test_no_validation_query_gives_fixed_weights_and_says_so(retriever):
    tests = fitting_queries(retriever.data, retriever.snapshot)
    nothing = {"rows": np.zeros(0, np.int64), "grades": np.zeros(0), "trained": np.zeros(0, np.int64)}
    none = replace(tests, ids=(), texts=(), first=np.zeros(1, np.int64), **nothing)
    messages = []
    fusion = fit_fusion(retriever, none, notify=messages.append)
    assert messages == ["There are no validation queries to choose weights by; fixed ones are used"]
    assert fusion.weights == fixed(retriever)
    assert not fusion.is_fitted


def test_judgments_without_training_or_validation_are_refused(retriever, tmp_path):
    data = write_world(tmp_path / "data")
    lines = (data / "judgments.jsonl").read_text("utf-8").splitlines()
    rows = [{**json.loads(line), "split": "test"} for line in lines]
    (data / "judgments.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match=r"no training pairs: of \d+ judgments"):
        fitting_queries(data, retriever.snapshot)


def test_one_validation_query_gives_fixed_weights_and_says_so(retriever):
    one = some_queries(fitting_queries(retriever.data, retriever.snapshot), 1)
    messages = []
    fusion = fit_fusion(retriever, one, notify=messages.append)
    assert messages == ["1 validation query with these candidates cannot choose weights; fixed ones are used"]
    assert fusion.weights == fixed(retriever)


def test_features_that_are_all_zero_give_fixed_weights_and_say_so(retriever, monkeypatch):
    collect = fitting.collect

    def alike(*arguments, **options):
        """Every part scores all candidates alike, so that scaled scores are all 0."""
        made = collect(*arguments, **options)
        scores = {part: np.zeros_like(values) for part, values in made.table.scores.items()}
        table = CandidateTable(made.table.rows, scores, made.table.proposed)
        return FittingSet(made.tests, table, made.relevant, made.units)

    monkeypatch.setattr(fitting, "collect", alike)
    messages = []
    tests = fitting_queries(retriever.data, retriever.snapshot)
    fusion = fit_fusion(retriever, tests, notify=messages.append)
    assert messages == [
        f"{len(tests)} validation queries with these candidates cannot choose weights; fixed ones are used"
    ]
    assert fusion.weights == fixed(retriever)


def test_a_companion_whose_package_is_missing_is_left_out_with_its_name(retriever, without_bm25s):
    messages = []
    add_parts(retriever, notify=messages.append)
    assert "Without bm25: BM25 needs the package 'bm25s'" in messages[0]
    assert "pip install" in messages[0]
    assert "bm25" not in available_parts(retriever)
    with pytest.raises(MissingExtraError, match="pip install"):
        add_parts(retriever, ["generator", "bm25"], notify=messages.append)


def test_a_fitted_part_whose_package_is_missing_is_left_out_with_a_warning(trained, place, without_bm25s, caplog):
    Fusion({"generator": 1.0, "bm25": 2.0, "dense": 1.0}).save(trained / "fusion")
    loaded = Retriever.load(trained, place / "index", place / "data", hybrid=True)
    assert "Hybrid search without bm25: BM25 needs the package 'bm25s'" in caplog.text
    assert loaded.fusion.weights == {"generator": 1.0, "bm25": 0.0, "dense": 1.0}
    assert len(loaded.search("oak desk", k=5, mode="hybrid")) == 5


def test_only_the_generator_is_left_where_no_part_can_be_made(trained, place, without_bm25s, caplog):
    Fusion({"bm25": 2.0}).save(trained / "fusion")
    loaded = Retriever.load(trained, place / "index", place / "data", hybrid=True)
    assert "Hybrid search without bm25" in caplog.text
    hybrid, plain = (loaded.search("oak desk", k=5, mode=mode, beam=60) for mode in ("hybrid", "generative"))
    assert [hit.item for hit in hybrid] == [hit.item for hit in plain]


def test_a_fusion_of_another_model_or_index_is_refused_when_it_is_loaded(trained, place, retriever):
    folder = trained / "fusion"
    layout = retriever.index.layout()
    Fusion({"generator": 1.0}, layout=layout, model="f" * 64).save(folder)
    with pytest.raises(ArtifactError, match=r"fitted for the model ffffffff, but this one is .*; run restd fit again"):
        Retriever.load(trained, place / "index", place / "data", hybrid=True)
    shutil.rmtree(folder)
    Fusion({"generator": 1.0}, layout={**layout, "sizes": [4, 4]}, model=retriever.model_hash).save(folder)
    with pytest.raises(ArtifactError, match="an index with other codebooks or levels; run restd fit again"):
        Retriever.load(trained, place / "index", place / "data", hybrid=True)
    shutil.rmtree(folder)
    Fusion({"generator": 1.0}, layout=layout, model=retriever.model_hash).save(folder)
    assert Retriever.load(trained, place / "index", place / "data", hybrid=True).fusion.parts == ("generator",)
