"""What teachers know of next items: counted against loops, and found where it was put."""

import json
from collections import Counter

import numpy as np
import pytest

from restd.analyses.transitions import SHARES, Steps, log_chances, transitions
from restd.errors import DataError
from restd.experiments import Comparison
from restd.experiments.study import Study
from tests.training import write_walks
from tests.walks import tiger, walk


def opened(place, data=None):
    made = tiger(place, place / "never-trained")
    return Study(Comparison(place / "index", data or place / "data", place / "study", made.model, made.config))


def drawn(rng, *, items=40, codes=6, count=300):
    code, spread = rng.integers(codes, size=items), rng.dirichlet(np.ones(codes), size=items)
    counted, asked = (Steps(rng.integers(codes, size=count), rng.integers(items, size=count)) for _ in range(2))
    return code, spread, counted, asked


def test_chances_are_those_of_a_loop(rng):
    code, spread, counted, asked = drawn(rng)
    found = log_chances(counted, asked, code, spread, belief=3.0)
    often = Counter(code[counted.item].tolist())
    for place in range(20):
        before, wanted = asked.before[place], code[asked.item[place]]
        seen = [item for start, item in zip(counted.before, counted.item, strict=True) if start == before]
        prior = (often[int(wanted)] + 1) / (len(counted.item) + spread.shape[1])
        chance = (sum(spread[item, wanted] for item in seen) + 3.0 * prior) / (len(seen) + 3.0)
        assert found[place] == pytest.approx(np.log(chance))


def test_chances_of_a_step_sum_to_one(rng):
    code, spread, counted, _ = drawn(rng)
    every = np.array([np.flatnonzero(code == value)[0] for value in range(6)])
    for before in range(6):
        asked = Steps(np.full(6, before), every)
        assert np.exp(log_chances(counted, asked, code, spread, belief=5.0)).sum() == pytest.approx(1.0)


def test_soft_counts_help_where_next_codes_follow_the_teacher(rng):
    """Users take a code like the one they mean; the teacher knows which are alike, and few were counted."""
    codes = 30
    gap = np.abs(np.arange(codes)[:, None] - np.arange(codes))
    alike = np.exp(-np.minimum(gap, codes - gap))
    alike /= alike.sum(1, keepdims=True)
    before = rng.integers(codes, size=2_000)
    next_code = np.array([rng.choice(codes, p=alike[start]) for start in before])
    counted, asked = (Steps(before[part], next_code[part]) for part in (slice(0, 120), slice(120, None)))
    own, every = np.arange(codes), np.eye(codes)
    hard = log_chances(counted, asked, own, every, belief=5.0).mean()
    soft = log_chances(counted, asked, own, 0.5 * every + 0.5 * alike, belief=5.0).mean()
    wrong = log_chances(counted, asked, own, 0.5 * every + 0.5 * alike[rng.permutation(codes)], belief=5.0).mean()
    assert soft > hard + 0.05
    assert wrong < soft - 0.1


def test_a_study_of_walks(place):
    found = transitions(opened(place))
    assert found.data["counted"] > found.data["asked"] == 100  # every other of two hundred users
    assert set(found.data["gains"]) == {"own", "code-mean", "another"}
    table = found.tables[0]
    assert [row[0] for row in table.rows] == [f"{share:.0%}" for share in SHARES]
    for own, mean, beyond in zip(
        found.data["gains"]["own"], found.data["gains"]["code-mean"], found.data["beyond"], strict=True
    ):
        assert own["mean"] - mean["mean"] == pytest.approx(beyond["mean"])
        assert beyond["low"] <= beyond["mean"] <= beyond["high"]
    assert found.data["gains"]["another"][-1]["mean"] < 0  # a stranger's teacher says nothing of the item
    assert "100 of validation users" in found.says


def test_the_test_items_have_no_part(place, tmp_path):
    data = write_walks(tmp_path / "data", users=30)
    before = transitions(opened(place, data)).data
    path = data / "histories.jsonl"
    rows = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
    for user in {row["user"] for row in rows}:
        own = [row for row in rows if row["user"] == user]
        taken = {row["item"] for row in own}
        own[-1]["item"] = next(item for item in walk(place, 60) if item not in taken)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert transitions(opened(place, data)).data == before


def test_queries_have_no_transitions(place, tmp_path):
    study = Study(Comparison(place / "index", place / "data", tmp_path / "study"))
    with pytest.raises(DataError, match="compares answers to queries"):
        transitions(study)
