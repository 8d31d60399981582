"""Metrics against an independent implementation, and by hand."""

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import RR, R, nDCG

from restd.errors import ConfigError
from restd.evaluate import (
    NEXT,
    PAPER,
    Judged,
    Measure,
    TestSet,
    judge,
    ndcg,
    recall,
    reciprocal_rank,
    relative_improvement,
)


def queries_of(*positives, grades=None, trained=None):
    """Queries from lists of positive rows."""
    rows = np.concatenate([np.array(sorted(held), np.int64) for held in positives])
    first = np.concatenate([[0], np.cumsum([len(held) for held in positives])])
    names = tuple(f"q{number}" for number in range(len(positives)))
    worth = np.ones(len(rows)) if grades is None else np.array(grades, float)
    seen = np.ones(len(rows), np.int64) if trained is None else np.array(trained, np.int64)
    return TestSet("test", "hash", "snapshot", names, names, first, rows, worth, seen)


@given(st.integers(0, 100_000), st.integers(1, 12), st.integers(1, 20), st.booleans())
def test_equal_to_ir_measures(seed, k, depth, graded):
    rng = np.random.default_rng(seed)
    items, queries = 30, 4
    ranked = np.stack([rng.permutation(items)[:depth] for _ in range(queries)])
    positives = [set(rng.choice(items, rng.integers(1, 15), replace=False).tolist()) for _ in range(queries)]
    grades = rng.integers(1, 4, sum(map(len, positives))) if graded else None
    tests = queries_of(*positives, grades=grades)
    judged = judge(ranked, tests, np.arange(items), graded=graded)
    qrels = [
        ir_measures.Qrel(str(query), str(row), int(grade))
        for query in range(queries)
        for row, grade in zip(tests.rows[tests.positives(query)], tests.grades[tests.positives(query)], strict=True)
    ]
    places = [(q, rank, item) for q, rows in enumerate(ranked) for rank, item in enumerate(rows)]
    run = [ir_measures.ScoredDoc(str(q), str(item), -rank) for q, rank, item in places]
    wanted = [nDCG @ k, R @ k, RR @ k]
    theirs = {(m.measure, m.query_id): m.value for m in ir_measures.iter_calc(wanted, qrels, run)}
    for query in range(queries):
        for ours, measure in ((ndcg, nDCG @ k), (recall, R @ k), (reciprocal_rank, RR @ k)):
            assert ours(judged, k=k)[query] / 100 == pytest.approx(theirs[measure, str(query)], abs=1e-9)


def test_items_that_share_a_sid_collapse_to_the_first():
    """Rows 0 and 1 share a SID: it is one positive, it is found once, and what follows moves up."""
    unit_of = np.array([0, 0, 1, 2])
    tests = queries_of({0, 1, 3})
    judged = judge(np.array([[2, 1, 0, 3]]), tests, unit_of)
    assert judged.gains.tolist() == [[0, 1, 1, 0]]
    assert (judged.ideal > 0).sum() == 2
    assert recall(judged, k=2)[0] == 50.0
    by_item = judge(np.array([[2, 1, 0, 3]]), tests, np.arange(4))
    assert recall(by_item, k=2)[0] == pytest.approx(100 / 3)


def test_of_items_that_share_a_sid_the_best_grade_counts():
    judged = judge(np.array([[1, 2]]), queries_of({0, 1, 2}, grades=[3, 1, 2]), np.array([0, 0, 1]), graded=True)
    assert judged.gains.tolist() == [[3, 2]]
    assert judged.ideal.tolist() == [[3, 2]]


def test_more_positives_than_ranks():
    judged = judge(np.array([[0, 1, 2]]), queries_of(set(range(10))), np.arange(10))
    assert recall(judged, k=3)[0] == 30.0  # of all ten, not of three
    assert ndcg(judged, k=3)[0] == 100.0  # the ideal has only three ranks too


def test_unfilled_ranks_score_nothing():
    judged = judge(np.array([[5, -1, -1]]), queries_of({4, 5}), np.arange(10))
    assert recall(judged, k=3)[0] == 50.0
    assert ndcg(judged, k=3)[0] == pytest.approx(100 / (1 + 1 / np.log2(3)))
    assert reciprocal_rank(Judged(np.zeros((1, 0)), np.ones((1, 1))), k=3)[0] == 0.0


def test_relative_improvement_of_the_paper():
    assert round(relative_improvement(9.28, 7.50), 2) == 23.73
    assert (relative_improvement(30.0, 10.0), relative_improvement(5.0, 10.0)) == (200.0, -50.0)


def test_columns_of_the_tables():
    assert " ".join(map(str, PAPER)) == "Recall@5 Recall@10 Recall@100 NDCG@10 NDCG@100"
    assert " ".join(map(str, NEXT)) == "Recall@5 NDCG@5 Recall@10 NDCG@10 Recall@20 NDCG@20"


def test_groups_by_what_training_named():
    tests = queries_of({0, 1}, {2, 3}, {4}, trained=[3, 1, 2, 0, 0])
    assert tests.groups().tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", ["NDCG", "NDCG@0", "P@5", "@5", "NDCG@ten"])
def test_unknown_measures(text):
    with pytest.raises(ConfigError, match="Expected Recall@k"):
        Measure.parse(text)


@pytest.mark.parametrize(
    ("text", "said"), [("r@5", "Recall@5"), ("MRR@1", "MRR@1"), ("NDCG@100", "NDCG@100"), (" mrr@10", "MRR@10")]
)
def test_measures_by_name(text, said):
    assert str(Measure.parse(text)) == said
