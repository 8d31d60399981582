"""Evaluation: which queries are judged, under which rules, and what is kept."""

import json

import numpy as np
import pyarrow as pa
import pytest

from restd.data.trec import read_run, write_run
from restd.errors import ArtifactError, DataError
from restd.evaluate import (
    PAPER,
    Evaluation,
    Measure,
    evaluate,
    judge_ranking,
    rank_all,
    ranking_table,
    read_ranking,
    read_tests,
    refuse_incomparable,
)
from restd.snapshot import Snapshot
from tests.training import make_index, write_world


class Oracle:
    """Ranks what it was told to, and says how often it was asked."""

    def __init__(self, rows, snapshot):
        self.rows, self.asked, self.snapshot_hash = rows, 0, snapshot.hash

    def rank(self, queries, k):
        self.asked += len(queries)
        rows = np.array([self.rows[query][:k] for query in queries])
        return rows, np.zeros(rows.shape)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    home = make_index(data, folder / "index")
    return home, data, Snapshot.load(home)


def answers(tests, snapshot, *, reverse=False):
    """Positives first, everything else behind them; or the other way round."""
    found = {}
    for number, text in enumerate(tests.texts):
        own = tests.rows[tests.positives(number)].tolist()
        rest = [row for row in range(len(snapshot)) if row not in own]
        found[text] = rest + own if reverse else own + rest
    return Oracle(found, snapshot)


def test_a_perfect_ranking_and_the_worst(world):
    _, data, snapshot = world
    tests = read_tests(data, snapshot, split="valid")
    best, _ = evaluate(answers(tests, snapshot), tests, snapshot, name="best")
    assert best.mean("NDCG@10") == pytest.approx(100.0)
    assert best.mean("Recall@5", level="item") == 100.0
    worst, _ = evaluate(answers(tests, snapshot, reverse=True), tests, snapshot, name="worst")
    assert worst.mean("NDCG@10") == 0.0
    assert worst.mean("Recall@100") == 100.0
    assert [str(measure) for measure in PAPER] == list(best.values["sid"])


def test_what_a_card_says(world):
    _, data, snapshot = world
    tests = read_tests(data, snapshot, split="valid")
    found, _ = evaluate(answers(tests, snapshot), tests, snapshot, name="x", decoding={"width": 7}, seeds=(42,))
    card = found.card
    assert card.queries["judged"] == 15
    assert card.catalogue["items"] == 60
    assert card.decoding == {"ranker": "x", "width": 7}
    assert card.seeds == (42,)
    assert card.relevance.startswith("binary")
    assert "torch" in card.versions


def test_groups_make_up_the_whole(world):
    _, data, snapshot = world
    tests = read_tests(data, snapshot, split="valid")
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 3, len(tests))
    found, _ = evaluate(answers(tests, snapshot), tests, snapshot, name="x")
    values = {"sid": {"NDCG@10": rng.uniform(0, 100, len(tests))}}
    made = Evaluation("x", found.card, tests.ids, groups, values).summary()
    whole = sum(held["queries"] * held["NDCG@10"] for held in made["groups"].values() if held["queries"])
    assert whole / len(tests) == pytest.approx(made["sid"]["NDCG@10"])


def test_what_is_saved_is_what_is_loaded(world, tmp_path):
    _, data, snapshot = world
    tests = read_tests(data, snapshot, split="valid")
    found, _ = evaluate(answers(tests, snapshot), tests, snapshot, name="x", seeds=(1, 2))
    found.save(tmp_path / "kept")
    again = Evaluation.load(tmp_path / "kept")
    assert again.card == found.card
    assert again.summary() == found.summary()
    assert again.queries == found.queries
    refuse_incomparable(found, again)


def test_a_run_written_and_read_is_the_same_ranking(world, tmp_path):
    """All scores are equal: ranks alone must carry the order through the file."""
    _, data, snapshot = world
    tests = read_tests(data, snapshot, split="valid")
    ranking = rank_all(answers(tests, snapshot), tests, depth=20)
    table = ranking_table(ranking, tests, snapshot.ids)
    write_run(table, tmp_path / "run.trec", tag="x")
    again, said = read_ranking(read_run(tmp_path / "run.trec"), tests, snapshot, path="run.trec")
    assert (again.rows == ranking.rows).all()
    assert said == []
    before, after = (judge_ranking(held, tests, snapshot, name="x", decoding={}).summary() for held in (ranking, again))
    assert before == after


def test_a_run_with_unknown_items(world):
    _, data, snapshot = world
    tests = read_tests(data, snapshot, split="valid")
    run = pa.table({"query_id": [tests.ids[0]] * 2, "item": ["red-oak-desk", "nothing"], "score": [2.0, 1.0]})
    with pytest.raises(DataError, match=r"ranks item 'nothing' for query .* \(1 of 2 rows"):
        read_ranking(run, tests, snapshot, path="run.trec")


def test_a_run_of_other_queries_is_refused_and_a_partial_one_told(world):
    _, data, snapshot = world
    tests = read_tests(data, snapshot, split="valid")
    row = {"item": ["red-oak-desk"], "score": [1.0]}
    with pytest.raises(DataError, match="ranks nothing for any of the 15 judged queries"):
        read_ranking(pa.table({"query_id": ["stranger"], **row}), tests, snapshot, path="run.trec")
    run = pa.table({"query_id": [tests.ids[0], "stranger"], "item": ["red-oak-desk"] * 2, "score": [1.0, 1.0]})
    _, said = read_ranking(run, tests, snapshot, path="run.trec")
    assert said[0].startswith("1 queries of run.trec are not judged")
    assert said[1].startswith("14 judged queries have no result")


def test_no_test_queries(world):
    _, data, snapshot = world
    with pytest.raises(DataError, match=r"no queries in the split 'test'; it has: train .*, valid"):
        read_tests(data, snapshot)


def test_queries_without_positives_are_counted_and_told(world, tmp_path):
    _, _, snapshot = world
    lines = [
        {"query": "a desk", "item": "red-oak-desk", "grade": 1, "split": "test"},
        {"query": "a desk", "item": "red-oak-desk", "grade": 2, "split": "test"},
        {"query": "a moon", "item": "red-oak-desk", "grade": 0, "split": "test"},
        {"query": "a star", "item": "not-in-the-index", "grade": 1, "split": "test"},
    ]
    path = tmp_path / "judgments.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    tests = read_tests(path, snapshot)
    assert tests.texts == ("a desk",)
    assert tests.grades.tolist() == [2.0]  # of a pair given twice the best counts, once
    assert tests.without_positives == 2
    assert tests.unknown == 1
    assert any("2 queries have no positive" in sentence for sentence in tests.notes())
    assert any("1 positives name items" in sentence for sentence in tests.notes())
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[2:]), encoding="utf-8")
    with pytest.raises(DataError, match="No query of the split 'test'"):
        read_tests(path, snapshot)


def test_results_of_different_indexes_are_not_compared(world, tmp_path):
    _, data, snapshot = world
    other = Snapshot.load(make_index(data, tmp_path / "other", seed=5))
    tests = read_tests(data, snapshot, split="valid")
    one, _ = evaluate(answers(tests, snapshot), tests, snapshot, name="one")
    theirs = read_tests(data, other, split="valid")
    two, _ = evaluate(answers(theirs, other), theirs, other, name="two")
    with pytest.raises(ArtifactError, match=r"one and two were measured under different rules .*snapshot"):
        refuse_incomparable(one, two)


def test_deeper_ranks_where_items_share_sids(tmp_path):
    """With collisions left in, k distinct SIDs need more than k items."""
    data = write_world(tmp_path / "data")
    snapshot = Snapshot.load(make_index(data, tmp_path / "index", policy="none"))
    tests = read_tests(data, snapshot, split="valid")
    ranker = answers(tests, snapshot)
    found, ranking = evaluate(ranker, tests, snapshot, name="x", measures=[Measure("Recall", 5)])
    assert snapshot.index.table.unique < len(snapshot)
    assert ranking.rows.shape[1] > 5
    assert found.mean("Recall@5") == 100.0


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    from tests.training import run

    home, data, _ = world
    return run(home, data, tmp_path_factory.mktemp("run") / "base", updates=60).folder.parent


def test_the_command(world, trained, tmp_path, command):
    home, data, _ = world
    kept = tmp_path / "kept"
    code, out, _ = command("evaluate", "--model", trained, "--split", "valid", "--out", kept, "--json")
    assert code == 0
    held = json.loads(out)
    assert held["card"]["decoding"]["beam"] == 100
    assert held["sid"]["Recall@10"] > 20.0
    assert {path.name for path in kept.iterdir()} == {"evaluation", "run.trec", "qrels.trec"}
    where = ("--index", home, "--data", data, "--split", "valid")
    code, out, _ = command("evaluate", "--run", kept / "run.trec", *where, "--against", kept, "--json")
    again = json.loads(out)
    assert again["sid"] == held["sid"]
    assert all(gap["p"] == 1.0 for gap in again["against"]["differences"].values())
    code, out, _ = command("evaluate", "--baseline", "bm25", *where, "--against", kept, "--measures", "n@10")
    assert code == 0
    assert "conditional on the fitted models" in out
    assert "Decoding differs" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Pass exactly one of --model, --baseline and --run"),
        (("--baseline", "bm25"), "--index is missing"),
        (("--baseline", "nothing", "--index", "HOME", "--data", "DATA", "--split", "valid"), "Known: bm25"),
        (("--baseline", "bm25", "--index", "HOME", "--data", "DATA"), "no queries in the split 'test'"),
        (
            ("--baseline", "bm25", "--index", "HOME", "--data", "DATA", "--split", "valid", "--measures", "x"),
            "Expected Recall@k",
        ),
    ],
)
def test_what_the_command_refuses(world, command, words, said):
    home, data, _ = world
    given = [{"HOME": home, "DATA": data}.get(word, word) for word in words]
    code, _, err = command("evaluate", *given)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_the_command_refuses_results_of_another_index(world, trained, tmp_path, command):
    home, data, _ = world
    other = make_index(data, tmp_path / "other", seed=5)
    where = ("--data", data, "--split", "valid", "--baseline", "bm25")
    assert command("evaluate", *where, "--index", home, "--out", tmp_path / "one")[0] == 0
    code, _, err = command("evaluate", *where, "--index", other, "--against", tmp_path / "one")
    assert code == 2
    assert "measured under different rules" in err
