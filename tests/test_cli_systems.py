"""`restd compare --systems` as a person runs it, and all systems from end to end."""

import json

import pytest

from restd.data import write_dataset
from restd.search import SearchOptions
from restd.shop import ShopSpec, shop_source
from restd.systems import SYSTEMS, read_budget
from tests.systems import compared
from tests.training import write_world


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


def test_from_names_to_page(data, tmp_path, command):
    """In a process of its own, whose memory is measured; BM25 needs no encoder, so there is one stage."""
    words = ("compare", "--systems", "bm25", "--data", data, "--out", tmp_path / "out", "--split", "valid")
    code, out, err = command(*words, "--budget", "tiny")
    assert code == 0, err
    assert "BM25" in out
    assert "1 systems on one catalogue of 60 items" in " ".join(out.split())
    code, out, err = command(*words, "--budget", "tiny", "--json")
    assert code == 0
    costs = json.loads(out)["rows"]["bm25"]["costs"]
    assert costs["indexing"]["own_process"]
    assert costs["query"]["peak"] > 10 << 20
    code, out, _ = command("report", tmp_path / "out")
    assert code == 0
    assert (tmp_path / "out" / "report" / "report.html").is_file()
    assert (tmp_path / "out" / "report" / "parts" / "systems-main.tex").is_file()
    code, _, err = command("analyze", "cases", tmp_path / "out")
    assert code == 2
    assert "is a study of systems" in err
    assert "systems/NAME" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--systems", "bm25", "--index", "somewhere"), "--index cannot be combined with --systems"),
        (("--systems", "bm25", "--mode", "hybrid"), "--mode cannot be combined with --systems"),
        (("--systems", ","), "--systems names none. Known: bm25"),
        (("--systems", "bm25", "--budget", "huge"), "The budget 'huge' is neither"),
        (("--systems", "bm25", "--seeds", ""), "at least one seed"),
        (("--systems", "bm25", "--jobs", "0"), "1 or more"),
        ((), "--index is missing"),
        (("--index", "somewhere", "--budget", "tiny"), "--budget belongs to --systems"),
    ],
)
def test_what_cannot_be_asked(data, tmp_path, command, words, message):
    code, _, err = command("compare", "--data", data, "--out", tmp_path / "out", *words)
    assert code == 2
    assert message in " ".join(err.split())


def test_what_restd_is_not_laid_over_is_said(data, tmp_path, command):
    """Even where the command then ends for another reason: nothing is run here."""
    words = ("compare", "--systems", "ltrgr", "--data", data, "--out", tmp_path / "out", "--budget", "tiny")
    _, _, err = command(*words, "--set", "quantizer.codes=256")
    assert "restd: not laid over ltrgr, as it has an objective of its own (ltrgr)" in " ".join(err.split())


@pytest.mark.slow
def test_all_systems_from_end_to_end(tmp_path):
    """Every system with and without ResTD on a generated shop, under the budget that comes with the package."""
    write_dataset(shop_source(ShopSpec(items=500)), tmp_path / "shop")
    budget = read_budget("tiny").with_settings(["index.encoder=tfidf-svd", "train.updates=10"])
    names = list(SYSTEMS)
    narrow = SearchOptions.of(beam=10)  # what is searched is tested elsewhere
    summary = compared(tmp_path / "shop", tmp_path / "out", *names, budget=budget, split="test", decoding=narrow)
    assert list(summary["systems"]) == names
    assert not summary["failed"]
    for name in ("tiger", "cat-id2", "merge", "forge", "hgrec", "calir"):
        assert f"{name}+restd" in summary["rows"]
    for row in summary["rows"].values():
        assert 0 <= row["Recall@10"]["mean"] <= row["Recall@100"]["mean"] <= 100
        assert row["costs"]["query"]["milliseconds"] > 0
