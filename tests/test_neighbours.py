"""Popularity and neighbours, which recommend without training."""

import numpy as np
import pyarrow as pa
import pytest

from restd.data import leave_one_out
from restd.errors import ConfigError, DataError
from restd.rankers import HistoryPopularity, RankerContext, make_ranker
from restd.rankers.dense import unit
from restd.rankers.neighbours import CooccurrenceNeighbours, EmbeddingNeighbours
from restd.snapshot import Snapshot
from tests.event_lists import histories_of, history, snapshot_of

HELD = ([9, 9], [8, 8])  # what two users hold out
TOOK = histories_of([0, 1, 2, *HELD[0]], [0, 1, *HELD[1]], [1, 3, 3, 5, 5], items=10)
"""Training: 0 by two users, 1 by three, 2 and 3 by one each."""
ITEMS = snapshot_of(TOOK)


def test_taken_popularity_counts_training_events():
    held = HistoryPopularity.of(ITEMS, TOOK)
    assert held.counts.tolist() == [2, 3, 1, 2, 0, 0, 0, 0, 0, 0]
    rows, scores = held.rank([history(1), history(5)], 4)
    assert rows.tolist() == [[1, 0, 3, 2]] * 2
    assert scores.tolist() == [[3, 2, 2, 1]] * 2


def test_cooccurrence_by_hand():
    held = CooccurrenceNeighbours.of(ITEMS, TOOK)
    rows, scores = held.rank([history(0), history(4)], 4)
    assert rows.tolist() == [[1, 2, -1, -1], [-1] * 4]  # nobody took 3 with 0, nor 4 at all
    np.testing.assert_allclose(scores[0, :2], [2 / 6**0.5, 1 / 2**0.5])
    assert np.isneginf(scores[rows < 0]).all()


def test_cooccurrence_shrinks_discounts_and_may_repeat():
    shrunk = CooccurrenceNeighbours.of(ITEMS, TOOK, shrinkage=2.0)
    np.testing.assert_allclose(shrunk.rank([history(0)], 2)[1][0], [2 / (6**0.5 + 2), 1 / (2**0.5 + 2)])
    late = CooccurrenceNeighbours.of(ITEMS, TOOK, discount=0.5)
    rows, scores = late.rank([history(3, 0)], 3)  # 3 is twice as far away
    assert rows.tolist() == [[1, 2, -1]]
    np.testing.assert_allclose(scores[0, :2], [2 / 6**0.5 + 0.5 / 3**0.5, 1 / 2**0.5])
    again = CooccurrenceNeighbours.of(ITEMS, TOOK, discount=0.0, seen=True)
    rows, scores = again.rank([history(3, 0)], 3)
    assert rows.tolist() == [[0, 1, 2]]
    assert scores[0, 0] == pytest.approx(1.0)


def test_embedding_neighbours_by_hand():
    vectors = np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0], [-1.0, 0.0]], np.float32)
    ids = pa.array([f"i{row}" for row in range(4)])
    half = 0.5**0.5
    rows, scores = EmbeddingNeighbours(unit(vectors), ids, "hash", discount=0.5).rank([history(1, 0), history(0)], 4)
    assert rows.tolist() == [[2, 3, -1, -1], [2, 1, 3, -1]]
    np.testing.assert_allclose(scores[0, :2], [1.5 * half, -1.0], rtol=1e-6)
    rows, scores = EmbeddingNeighbours(unit(vectors), ids, "hash", seen=True).rank([history(0)], 2)
    assert rows.tolist() == [[0, 2]]
    np.testing.assert_allclose(scores, [[1.0, half]], rtol=1e-6)
    with pytest.raises(DataError, match="4 vectors were given for 3 items"):
        EmbeddingNeighbours(vectors, ids[:3], "hash")
    with pytest.raises(DataError, match="NaN or infinity"):
        EmbeddingNeighbours(vectors * np.nan, ids, "hash")


def test_impossible_settings_of_neighbours():
    with pytest.raises(ConfigError, match=r"discount = 1\.5"):
        CooccurrenceNeighbours.of(ITEMS, TOOK, discount=1.5)
    with pytest.raises(ConfigError, match="discount = -1"):
        EmbeddingNeighbours(np.eye(10, dtype=np.float32), TOOK.items, "hash", discount=-1.0)
    with pytest.raises(ConfigError, match="shrinkage = -1"):
        CooccurrenceNeighbours.of(ITEMS, TOOK, shrinkage=-1.0)


def test_how_fast_neighbours_forget_is_chosen_by_validation(place):
    """Walkers go on from where they are, whatever came before."""
    snapshot = Snapshot.load(place / "index")
    context = RankerContext(snapshot, place / "data", place / "index", "recommend")
    chosen, histories = make_ranker("co-occurrence", context), context.histories()
    asked = leave_one_out(histories, "valid")

    def hits(ranker):
        return (ranker.rank(asked, 1)[0][:, 0] == asked.targets).mean()

    assert chosen.discount < 1.0
    assert hits(chosen) > hits(CooccurrenceNeighbours.of(snapshot, histories))
