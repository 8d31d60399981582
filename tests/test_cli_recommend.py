"""Recommending as a person does it: commands, and what they say of bad input."""

import json

import pytest

from restd.evaluate import NEXT
from restd.search import Retriever
from tests.training import FAST, TINY, write_walks
from tests.walks import SETTINGS, walk


def test_a_rate_is_chosen_and_trained_with_by_one_command(place, command, tmp_path):
    sets = [word for setting in (*TINY["tiger"], *FAST, *SETTINGS, "train.judged=20") for word in ("--set", setting)]
    where = ("--index", place / "index", "--data", place / "data", "--out", tmp_path / "run")
    words = (
        "train",
        *where,
        "--task",
        "recommend",
        *sets,
        "--epochs",
        1,
        "--learning-rates",
        "0.01,0.001",
        "--probe-epochs",
        1,
    )
    code, out, err = command(*words)
    assert code == 0, err
    assert "Model:" in out
    assert "Learning rate of base:" in err
    code, _, err = command(*words)
    assert code == 0
    assert "nothing has changed" in err
    code, _, err = command(
        "train", *where[:4], "--out", tmp_path / "on", "--task", "search", "--init", tmp_path / "run"
    )
    assert code == 2
    assert "is for recommend, not for search" in err


def test_users_with_white_space_and_training_users_can_be_kept(place, command, tmp_path):
    data = write_walks(tmp_path / "data", users=12)
    path = data / "histories.jsonl"
    path.write_text(path.read_text("utf-8").replace("user1", "Ann  U"), encoding="utf-8")
    for split in ("test", "train"):
        words = ("evaluate", "--baseline", "popularity", "--index", place / "index", "--data", data, "--split", split)
        code, _, err = command(*words, "--out", tmp_path / split)
        assert code == 0, err
        assert (tmp_path / split / "run.trec").is_file()


def test_commands_from_walks_to_page(place, command, tmp_path):
    sets = [word for setting in (*TINY["tiger"], *FAST, *SETTINGS) for word in ("--set", setting)]
    where = ("--index", place / "index", "--data", place / "data")
    words = ("compare", *where, "--task", "recommend", "--out", tmp_path / "study", *sets, "--updates", 6)
    code, out, err = command(*words, "--objectives", "base,rbd,restd", "--seeds", "1,2", "--baselines",
                             "popularity,co-occurrence,neighbours")  # fmt: skip
    assert code == 0, err
    assert "TIGER + ResTD" in out
    assert "Differences from TIGER" in out
    assert "Neighbours by co-occurrence" in out
    comparison = json.loads((tmp_path / "study" / "comparison.json").read_text("utf-8"))
    assert comparison["task"] == "recommend"
    assert comparison["card"]["decoding"] == {
        "ranker": "restd", "search": "beam over the trie", "beam": 20, "score_norm": "full_vocab", "seen": True,
    }  # fmt: skip
    assert set(comparison["measures"]) == {str(measure) for measure in NEXT}
    for name in ("slices", "transitions", "conflicts", "beam", "cases", "probes"):
        code, _, err = command("analyze", name, tmp_path / "study")
        assert code == 0, err
    code, _, err = command("analyze", "disagreement", tmp_path / "study")
    assert code == 2
    assert "two positives or more" in err
    code, _, _ = command("report", tmp_path / "study", "--title", "Walks")
    assert code == 0
    page = (tmp_path / "study" / "report" / "report.html").read_text("utf-8")
    assert "TIGER + ResTD" in page
    history = [word for item in walk(place, 3) for word in ("--history", item)]
    code, out, _ = command("recommend", "--model", place / "run", *history, "-k", 4, "--json")
    assert code == 0
    assert [hit["item"] for hit in json.loads(out)["hits"]] == [
        hit.item for hit in Retriever.load(place / "run").recommend(walk(place, 3), k=4, beam=20)
    ]
    code, out, _ = command("recommend", "--model", place / "run", *history, "--explain", walk(place, 4)[-1])
    assert code == 0
    assert "the last of 3" in out
    listed = Retriever.load(place / "run").recommend(walk(place, 3), k=9, beam=20)
    code, out, _ = command(
        "recommend", "--model", place / "run", *history, "-k", 9, "--explain", listed[8].item, "--json"
    )
    assert json.loads(out)["rank"] == 9  # as in the list, which leaves out what was taken
    code, out, _ = command("recommend", "--model", place / "run", "--histories", place / "data", "-k", 2, "--json")
    assert len(json.loads(out)) == 200


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("recommend", "--model", "{run}", "--history", " , "), "is empty"),
        (("recommend", "--model", "{run}", "--history", "x"), "'x'"),
        (("recommend", "--model", "{run}"), "Pass either --history"),
        (("recommend", "--model", "{run}", "--history", "red-oak-desk", "--user", "ann"), "no tokens for users"),
        (("recommend", "--model", "{run}", "--history", "red-oak-desk", "--explain", "red-oak-desk"), "in the history"),
        (("evaluate", "--model", "{run}", "--beam", "0"), "expected at least 1"),
        (("evaluate", "--model", "{run}", "--task", "search"), "a model to recommend"),
        (("evaluate", "--baseline", "bm25", "--index", "{index}", "--data", "{data}"), "does not recommend"),
        (("evaluate", "--baseline", "sasrec", "--index", "{index}", "--data", "{data}"), "Pass --out"),
        (("train", "--task", "recommend", "--backbone", "compact", "--index", "{index}", "--data", "{data}", "--out",
          "{new}"), "not for recommend"),
        (("train", "--task", "guess", "--index", "{index}", "--data", "{data}", "--out", "{new}"), "must be search"),
        (("train", "--task", "recommend", "--learning-rates", "fast", "--index", "{index}", "--data", "{data}", "--out",
          "{new}"), "must be numbers separated by commas"),
    ],
)  # fmt: skip
def test_wrong_words_are_a_sentence(place, command, tmp_path, words, message):
    places = {"run": place / "run", "index": place / "index", "data": place / "data", "new": tmp_path / "new"}
    code, _, err = command(*(str(word).format(**places) for word in words))
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_sasrec_is_trained_kept_and_judged_by_the_same_rules(place, command, tmp_path, monkeypatch):
    monkeypatch.setattr("restd.rankers.sasrec_training._DROPOUTS", (0.2,))
    words = ("evaluate", "--baseline", "sasrec", "--index", place / "index", "--data", place / "data", "--json")
    code, out, err = command(*words, "--out", tmp_path / "result")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["sid"] == summary["item"]
    assert summary["card"]["decoding"]["seen"] is True
    assert (tmp_path / "result" / "baselines" / "sasrec-ce-0.2" / "model").is_dir()
    code, out, _ = command("evaluate", "--baseline", "popularity", *words[3:], "--against", tmp_path / "result")
    assert code == 0
    assert json.loads(out)["against"]["differences"]["Recall@10"]["mean"] < 0


def test_shoppers_are_made_by_a_command(command, tmp_path):
    code, out, _ = command("data", "shoppers", "--items", 500, "--users", 100, "--out", tmp_path / "set", "--json")
    assert code == 0
    assert json.loads(out)["rows"]["items"] == 500
    code, _, err = command("data", "shoppers", "--users", 3, "--out", tmp_path / "few")
    assert code == 2
    assert "Expected 100 to 1,000,000 users" in err
