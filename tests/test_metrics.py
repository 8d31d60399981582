"""Metrics against an independent implementation."""

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import R, nDCG

from restd.baselines import Bm25
from restd.data import Catalog
from restd.evaluate import ndcg, recall


@given(st.integers(0, 100_000), st.integers(1, 12), st.integers(1, 20))
def test_equal_to_ir_measures(seed, k, depth):
    rng = np.random.default_rng(seed)
    items = 30
    ranked = np.stack([rng.permutation(items)[:depth] for _ in range(4)])
    positives = [set(rng.choice(items, rng.integers(1, 15), replace=False).tolist()) for _ in range(4)]
    relevant = np.array([[row in wanted for row in rows] for wanted, rows in zip(positives, ranked, strict=True)])
    counts = np.array([len(wanted) for wanted in positives])
    qrels = [ir_measures.Qrel(str(q), str(item), 1) for q, wanted in enumerate(positives) for item in wanted]
    places = [(q, rank, item) for q, rows in enumerate(ranked) for rank, item in enumerate(rows)]
    run = [ir_measures.ScoredDoc(str(q), str(item), -rank) for q, rank, item in places]
    theirs = {(m.measure, m.query_id): m.value for m in ir_measures.iter_calc([nDCG @ k, R @ k], qrels, run)}
    for query in range(4):
        assert ndcg(relevant, counts, k=k)[query] / 100 == pytest.approx(theirs[nDCG @ k, str(query)], abs=1e-9)
        assert recall(relevant, counts, k=k)[query] / 100 == pytest.approx(theirs[R @ k, str(query)], abs=1e-9)


def test_bm25_finds_words_and_folds_accents(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("id,title\na,tetera eléctrica roja\nb,電気ケトル 白\nc,garden hose\n", encoding="utf-8")
    rows, scores = Bm25.of(Catalog(path)).rank(["electrica", "ケトル", "hose"], 3)
    assert rows[:, 0].tolist() == [0, 1, 2]
    assert (np.diff(scores, axis=1) <= 0).all()
