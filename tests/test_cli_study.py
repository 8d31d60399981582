"""`restd compare`, `analyze` and `report` as a person runs them."""

import json

import pytest

from tests.studies import SETTINGS, write_place
from tests.training import FAST, TINY


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_place(tmp_path_factory.mktemp("place"))


@pytest.fixture
def compare(place, command):
    """Run the command on the tiny world; later words win."""
    settings = [word for setting in (*TINY["compact"], *FAST, *SETTINGS) for word in ("--set", setting)]

    def compare(*words, out=None):
        where = ("--index", place / "index", "--data", place / "data", "--out", out or place / "study")
        base = ("--split", "valid", "--seeds", "1,2", "--updates", 6, "--init", place / "base")
        return command("compare", *where, *settings, *base, *words)

    return compare


def test_from_question_to_page(place, compare, command):
    code, out, err = compare("--objectives", "base,restd", "--baselines", "bm25,popularity")
    assert code == 0
    assert "Matched training objectives" in out
    assert "Differences from Base-FT" in out
    assert "ResTD against Base-FT in NDCG@10" in out
    assert "[4/4] restd, seed 2" in err
    code, out, err = compare("--objectives", "base,restd", "--json")
    assert code == 0
    assert list(json.loads(out)["conditions"]) == ["base", "restd"]
    assert "nothing has changed" in err
    for name in ("conflicts", "beam"):
        code, out, _ = command("analyze", name, place / "study")
        assert code == 0
        assert "restd report" in out
    code, out, _ = command("report", place / "study", "--title", "Mine")
    assert code == 0
    assert "Differences from Base-FT" in out
    assert "ResTD against Base-FT in NDCG@10" in out
    page = (place / "study" / "report" / "report.html").read_text(encoding="utf-8")
    assert "<h1>Mine</h1>" in page
    assert "Where beams lose positives" in page
    code, out, _ = command("report", place / "study", "--json", "--out", place / "elsewhere")
    assert len(json.loads(out)["files"]) > 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "one,two"), "must be whole numbers"),
        (("--seeds", ""), "at least one"),
        (("--objectives", "everything"), "Unknown objective 'everything'"),
        (("--baselines", "elastic"), "Known: bm25"),
        (("--measures", "P@5"), "Expected Recall@k"),
        (("--split", "test"), "no queries in the split 'test'"),
        (("--router", "mine"), "router"),
        (("--router", "start"), "knows no categories"),
        (("--init", "nowhere"), "nowhere"),
    ],
)
def test_every_mistake_is_one_sentence(compare, tmp_path, words, message):
    code, _, err = compare(*words, out=tmp_path / "study")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert err.count("restd: ") == 1


def test_a_study_of_another_index_is_refused(place, compare, tmp_path):
    from tests.training import make_index

    other = make_index(place / "data", tmp_path / "other", seed=9)
    code, _, err = compare("--index", other, out=tmp_path / "study")
    assert code == 2
    assert "was trained for" in err


def test_all_analyses_at_once(place, compare, command):
    assert compare("--objectives", "base,rbd,restd", out=place / "whole")[0] == 0
    code, out, _ = command("analyze", "all", place / "whole", "--queries", "5", "--count", "1", "--json")
    assert code == 0
    names = [finding["name"] for finding in json.loads(out)]
    assert names == [
        "learning",
        "probes",
        "slices",
        "disagreement",
        "variation",
        "conflicts",
        "beam",
        "cases",
        "overhead",
    ]
