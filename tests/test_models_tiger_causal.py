"""TIGER that sees only what came before: prefixes read in one pass are read as if each were alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.models import SidHistories, TigerBackbone, TigerConfig
from restd.models.decode_protocol import Memory
from tests.models import SIZES, stored

TINY = {"width": 32, "layers": 2, "heads": 2, "head_width": 16, "feed": 64, "history": 4, "causal": True}


def tiny(**changed):
    model = TigerBackbone.made(SIZES, TigerConfig(**{**TINY, **changed}), seed=0).eval()
    if model.config.causal:  # new ones do not care how far away a position is
        torch.nn.init.normal_(recency_of(model).weight, generator=torch.Generator().manual_seed(1))
    return model


def recency_of(model):
    return model.model.decoder.block[0].layer[1].EncDecAttention.relative_attention_bias


def prefixes(counts, seed=0):
    """Every prefix of users with so many events, as leave-one-out makes them; and whose each is."""
    rng = np.random.default_rng(seed)
    sids = np.stack([rng.integers(0, size, sum(counts)) for size in SIZES], axis=1)
    first = np.cumsum([0, *counts[:-1]])
    begin = np.concatenate([np.full(count, start) for start, count in zip(first, counts, strict=True)])
    end = np.concatenate([start + np.arange(1, count + 1) for start, count in zip(first, counts, strict=True)])
    users = [f"user {number}" for number, count in enumerate(counts) for _ in range(count)]
    return SidHistories(sids, begin, end, users)


def wanted(rows):
    return torch.from_numpy(prefixes([rows], seed=9).sids)


windows = st.sampled_from([4, 12, 30])  # texts of few rows, and of more than ask together


@given(st.lists(st.integers(1, 23), min_size=1, max_size=5), windows, st.integers(0, 3), st.integers(0, 9))
def test_reading_together_is_reading_each_alone(counts, history, users, seed):
    model = tiny(users=users, history=history).double()
    held = model.prepare(prefixes(counts))
    rows = np.random.default_rng(seed).permutation(len(held))
    sids = wanted(len(rows))

    def loss(inputs):
        model.zero_grad()
        found = model.sid_loss(model.states(model.encode(inputs), sids), sids)
        found.backward()
        return found.detach(), [value.grad.clone() for value in model.parameters()]

    together, apart = held.merged(rows), held.batch(rows)
    assert len(together.values) == len(np.unique(held.together[rows])) <= len(apart.values)
    (one, one_gradients), (other, other_gradients) = loss(together), loss(apart)
    torch.testing.assert_close(one, other)
    for first, second in zip(one_gradients, other_gradients, strict=True):
        torch.testing.assert_close(first, second)


def test_what_follows_changes_nothing():
    model, held = tiny(), prefixes([4])
    with torch.no_grad():
        states = model.encode(model.prepare(held).batch(np.array([3, 0]))).states
    torch.testing.assert_close(states[0, :3], states[1, :3])


def test_the_decoder_tells_how_far_from_the_end_an_item_is():
    """Attention to the memory looks at nothing but the distance where all positions are alike."""
    model = tiny(layers=1)
    recency_of(model).weight.data.zero_()
    states = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(2))
    turned = Memory(states.flip(1), torch.ones(1, 4, dtype=torch.bool))
    memory, sids = Memory(states, turned.mask), wanted(1)
    with torch.no_grad():
        torch.testing.assert_close(model.states(memory, sids).states, model.states(turned, sids).states)
        recency_of(model).weight.data[0] = 50.0  # of the last position, which then is all that counts
        alone = Memory(states[:, 3:], turned.mask[:, 3:])
        found, last = model.states(memory, sids).states, model.states(alone, sids).states
        torch.testing.assert_close(found, last)
        assert not torch.allclose(found, model.states(turned, sids).states, atol=1e-2)


@pytest.mark.parametrize("lengths", [(3, 1), (2, 2)])
def test_steps_know_the_distance_too(lengths):
    model, held = tiny(), prefixes([4])
    memory = model.encode(model.prepare(held).batch(np.array(lengths)))
    sids = wanted(2)
    with torch.no_grad():
        output = model.states(memory, sids)
        scored, cache = model.stepper().start(memory)
        for level in range(len(SIZES)):
            whole = model.vocabulary_logits(output.states[:, level]).log_softmax(-1)
            found = scored[:, 0].gather(1, sids[:, level, None])
            torch.testing.assert_close(found, whole.gather(1, model.tokens[level][sids[:, level], None]))
            if level + 1 < len(SIZES):
                parents = torch.zeros(2, 1, dtype=torch.int64)
                scored, cache = model.stepper().step(cache, parents, sids[:, level : level + 1])


def test_what_was_learned_of_distances_is_kept(tmp_path):
    model = tiny()
    again = stored(model, tmp_path / "model")
    assert torch.equal(recency_of(again).weight, recency_of(model).weight)


def test_a_new_one_and_one_from_before_take_all_distances_alike(tmp_path):
    model = TigerBackbone.made(SIZES, TigerConfig(**TINY), seed=0)
    assert not recency_of(model).weight.any()
    model.model.decoder.block[0].layer[1].EncDecAttention.relative_attention_bias = None
    assert not recency_of(stored(model, tmp_path / "model")).weight.any()


def test_rows_that_share_a_memory_learn_in_half_precision():
    """Three and one rows: a table has empty seats, of which nothing must come."""
    model = tiny(layers=1)
    held = model.prepare(prefixes([3, 1]))
    with torch.autocast("cpu", torch.float16):
        memory = model.encode(held.merged(np.arange(4)))
        model.sid_loss(model.states(memory, wanted(4)), wanted(4)).backward()
    assert all(torch.isfinite(value.grad).all() for value in model.parameters())
    assert recency_of(model).weight.grad.any()


def test_it_is_not_the_encoder_that_sees_everything():
    held = prefixes([4])
    causal, whole = tiny(), tiny(causal=False)
    with torch.no_grad():
        one, other = (model.encode(model.prepare(held).batch(np.array([3]))).states for model in (causal, whole))
    assert not torch.allclose(one[:, 0], other[:, 0])


@pytest.mark.parametrize("history", [1, 2, 4, 5])
def test_windows_move_by_halves_and_hold_the_latest_items(history):
    model, held = tiny(history=history), prefixes([30])
    found = model.prepare(held)
    items = found.lengths // len(SIZES)
    assert ((found.first + found.lengths) // len(SIZES) == held.end).all()  # the latest is always read
    long = held.end > history
    assert (items[~long] == held.end[~long]).all()
    assert items.max() == history
    assert items[long].min() == history - max(history // 2, 1) + 1
    assert found.cut == long.sum()
    assert len(np.unique(found.first)) <= 1 + -(-(30 - history) // max(history // 2, 1))


def test_only_a_causal_encoder_reads_prefixes_together():
    held = tiny(causal=False).prepare(prefixes([5, 3]))
    assert held.together is None
    assert held.merged(np.arange(8)).beginnings is None


def test_memories_that_rows_share_can_be_taken_apart():
    model = tiny()
    memory = model.encode(model.prepare(prefixes([3, 2])).merged(np.arange(5)))
    with torch.no_grad():
        one = model.stepper().start(memory)
        other = model.stepper().start(model.encode(model.prepare(prefixes([3, 2])).batch(np.arange(5))))
    torch.testing.assert_close(one[0], other[0])
    apart = memory.take(torch.tensor([4, 1]))
    assert apart.text is None
    assert torch.equal(apart.states, memory.states[[1, 0]])
    assert apart.mask.sum(1).tolist() == [2 * len(SIZES), 2 * len(SIZES)]
