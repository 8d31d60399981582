"""The order of pairs, and learning rates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.errors import ConfigError
from restd.train import TrainConfig, default_training
from restd.train.batches import BatchPlan, in_lots

plans = st.tuples(st.integers(1, 200), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9))


@given(plans)
def test_every_pair_is_seen_each_epoch_and_every_update_is_full(drawn):
    pairs, micro, accumulated, processes, seed = drawn
    batch = micro * accumulated * processes
    plan = BatchPlan(np.arange(pairs) % 7, batch, micro, processes, seed)
    updates = plan.epoch(3)
    assert updates.shape == (-(-pairs // batch), accumulated, micro * processes)
    counts = np.bincount(updates.ravel(), minlength=pairs)
    assert counts.min() >= 1
    assert counts.sum() == updates.size
    assert counts.max() - counts.min() <= 1
    assert np.array_equal(updates, plan.epoch(3))
    shares = [np.concatenate(list(plan.update(updates[0], rank=rank))) for rank in range(processes)]
    assert all(len(share) == micro * accumulated for share in shares)
    assert sorted(np.concatenate(shares)) == sorted(updates[0].ravel())


def test_epochs_and_seeds_differ():
    plan = BatchPlan(np.zeros(64, np.int64), 8, 8, 1, 0)
    other = BatchPlan(np.zeros(64, np.int64), 8, 8, 1, 1)
    assert not np.array_equal(plan.epoch(0), plan.epoch(1))
    assert not np.array_equal(plan.epoch(0), other.epoch(0))


def test_near_lengths_share_a_micro_batch():
    lengths = np.random.default_rng(0).integers(1, 60, 2_000)
    parts = BatchPlan(lengths, 128, 8, 1, 0).epoch(0).reshape(-1, 8)
    padded = (lengths[parts].max(axis=1) * 8).sum()
    assert padded < 1.05 * lengths[parts].sum()


def test_half_the_micro_batch_on_two_processes_sees_the_same_updates():
    lengths = np.random.default_rng(0).integers(1, 60, 100)
    alone, two = BatchPlan(lengths, 16, 8, 1, 5).epoch(2), BatchPlan(lengths, 16, 4, 2, 5).epoch(2)
    assert np.array_equal(alone, two)


def test_a_batch_that_cannot_be_parted_is_refused():
    with pytest.raises(ConfigError, match=r"train.batch \(128\) must be divisible by .* = 24"):
        BatchPlan(np.zeros(64, np.int64), 128, 8, 3, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"updates": 0}, "exactly one"),
        ({"epochs": 3}, "exactly one"),
        ({"batch": 0}, "train.batch"),
        ({"lr": 0.0}, "train.lr"),
        ({"patience": -1}, "at least 0"),
    ],
)
def test_impossible_settings_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        TrainConfig(**given)


def test_defaults_are_the_papers_continuation():
    config = TrainConfig(**default_training("t5", continued=True))
    assert (config.updates, config.batch, config.micro, config.lr) == (1_200, 128, 8, 1e-5)
    assert (config.weight_decay, config.clip, config.warm_up, config.keep) == (0.01, 1.0, 120, "last")
    base = TrainConfig(**default_training("t5", continued=False))
    assert (base.epochs, base.lr, base.patience, base.warm_up_updates(1_000)) == (300, 5e-4, 10, 50)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 9))
def test_lots_are_small_and_hold_neighbours_in_length(numbers, most, seed):
    together = np.unique(numbers, return_inverse=True)[1]
    lengths = np.random.default_rng(seed).integers(1, 30, len(together))
    lots = in_lots(together, lengths, most)
    assert sorted(set(lots.tolist())) == list(range(lots.max() + 1))
    assert np.bincount(lots).max() <= most
    assert len(np.unique(lots)) == sum(-(-count // most) for count in np.bincount(together))
    for lot in range(lots.max() + 1):
        whose = np.unique(together[lots == lot])
        assert len(whose) == 1
        others = lengths[(together == whose[0]) & (lots != lot)]
        low, high = lengths[lots == lot].min(), lengths[lots == lot].max()
        assert not ((others > low) & (others < high)).any()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 6), st.integers(1, 3), st.integers(0, 9))
def test_pairs_that_are_read_as_one_stay_together(sizes, micro, processes, seed):
    together = np.repeat(np.arange(len(sizes)), sizes)
    lengths = np.concatenate([np.arange(1, size + 1) for size in sizes])
    plan = BatchPlan(lengths, micro * processes, micro, processes, seed, together)
    updates = plan.epoch(1)
    counts = np.bincount(updates.ravel(), minlength=len(lengths))
    assert counts.min() >= 1
    assert counts.max() - counts.min() <= 1
    # a group is parted only where a micro-batch, or an epoch's second shuffle, begins
    runs = 1 + int((np.diff(together[updates.reshape(-1, micro * processes)], axis=1) != 0).sum())
    assert runs <= 2 * len(sizes) + updates.shape[0] + 1
    shares = [next(plan.update(updates[0], rank=rank)) for rank in range(processes)]
    assert np.concatenate(shares).tolist() == updates[0, 0].tolist()  # not dealt out in turns
