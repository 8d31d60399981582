"""The compact retriever: a frozen or trained encoder and a small decoder over codes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.encode import load_encoder
from restd.errors import ConfigError
from restd.models import Backbone, Memory
from restd.models.contract import code_loss
from tests.models import QUERIES, SIZES, memory_of, scores, some_sids, tiny_compact, tiny_sentence_model


def random_memory(rows=4, longest=6, width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (rows, 1), generator=generator)
    return Memory(torch.randn(rows, longest, width, generator=generator), torch.arange(longest) < lengths)


def lively(model, seed=0):
    """Make first weights large enough for every path through the network to be felt."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def test_it_is_a_backbone():
    model = tiny_compact()
    assert isinstance(model, Backbone)
    assert (model.sizes, model.width) == (SIZES, 32)
    assert model.route(memory_of(model), width=3) is None
    assert model.states(memory_of(model), some_sids()).latents is None


@given(st.integers(0, 3), st.integers(0, 4), st.integers(0, 99))
def test_later_codes_do_not_influence_earlier_states(place, steps, seed):
    model = lively(tiny_compact((5, 3, 4, 6), steps=steps), seed)
    memory = random_memory(seed=seed)
    first, second = (some_sids(4, model.sizes, seed=number) for number in (seed, seed + 1))
    mixed = torch.cat([first[:, :place], second[:, place:]], dim=1)
    one, other = (model.states(memory, sids).states for sids in (first, mixed))
    assert torch.allclose(one[:, : place + 1], other[:, : place + 1], atol=1e-5)
    if place < 3 and not torch.equal(first[:, place], second[:, place]):
        assert not torch.allclose(one[:, place + 1], other[:, place + 1], atol=1e-3)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("given", [0, 1, 2, 3])
def test_some_codes_give_one_more_state(given, steps):
    model = lively(tiny_compact(steps=steps))
    memory = random_memory()
    whole, part = (model.states(memory, some_sids()[:, :count]).states for count in (3, given))
    assert part.shape[1] == min(given + 1, 3)
    assert torch.allclose(part, whole[:, : part.shape[1]], atol=1e-5)
    assert torch.allclose(model.logits(part), model.logits(whole)[:, : part.shape[1]], atol=1e-5)


@pytest.mark.parametrize("steps", [0, 3])
def test_padding_changes_nothing(sentence_encoder, steps):
    model = lively(tiny_compact(encoder=sentence_encoder, steps=steps))
    texts = ["mug", "small oak desk lamp red blue", ""]
    memory = memory_of(model, texts)
    assert memory.mask.sum(1).tolist() == [3, 8, 2]
    sids = some_sids(3)
    together = model.states(memory, sids).states
    for row in range(3):
        length = int(memory.mask[row].sum())
        alone = Memory(memory.states[[row], :length], memory.mask[[row], :length])
        assert torch.allclose(model.states(alone, sids[[row]]).states[0], together[row], atol=1e-5)
    unmasked = Memory(memory.states, torch.ones_like(memory.mask))
    assert not torch.allclose(model.states(unmasked, sids).states[0], together[0], atol=1e-3)


def test_a_text_alone_and_beside_a_longer_one(sentence_encoder):
    model = lively(tiny_compact(encoder=sentence_encoder))
    together = scores(model, ["mug", "small oak desk lamp red blue"], sids=some_sids(2))
    alone = scores(model, ["mug"], sids=some_sids(2)[:1])
    assert torch.allclose(alone[0], together[0], atol=1e-5)


def test_unequal_levels_lack_codes():
    found = scores(tiny_compact())
    assert found.shape == (len(QUERIES), 3, 5)
    for level, size in enumerate(SIZES):
        assert found[:, level, :size].isfinite().all()
        assert (found[:, level, size:] == -torch.inf).all()


def test_the_loss_is_the_mean_over_levels():
    model = lively(tiny_compact())
    sids = some_sids()
    output = model.states(memory_of(model), sids)
    logs = model.logits(output.states).log_softmax(-1)
    wanted = -torch.stack([logs[row, level, sids[row, level]] for row in range(4) for level in range(3)]).mean()
    assert torch.allclose(model.sid_loss(output, sids), wanted, atol=1e-6)
    assert torch.allclose(code_loss(model.logits(output.states), sids), wanted, atol=1e-6)
    assert not torch.allclose(model.sid_loss(output, some_sids(seed=5)), wanted, atol=1e-4)


def test_one_latent_step_is_none():
    plain, one, two = (lively(tiny_compact(steps=steps, seed=steps)) for steps in (0, 1, 2))
    assert not torch.allclose(scores(one), scores(plain), atol=1e-2)
    one.load_state_dict(plain.state_dict())
    assert torch.equal(scores(one), scores(plain))
    with pytest.raises(RuntimeError, match=r"decoder\.places"):
        two.load_state_dict(plain.state_dict())


def test_the_last_latent_state_predicts_the_first_code():
    model = tiny_compact(steps=3)
    output = model.states(memory_of(model), some_sids())
    assert output.latents.shape == (len(QUERIES), 3, 32)
    assert torch.equal(output.latents[:, -1], output.states[:, 0])
    assert not torch.allclose(output.latents[:, 0], output.states[:, 0], atol=1e-3)


def uncached(model, memory, sids, *, replaced=None):
    """States of every position from one call a step, each over everything so far; one latent may be replaced."""
    decoder, steps = model.decoder, model.config.steps
    held = [block.cross.keys_values(memory.states) for block in decoder.blocks]
    seen = memory.mask[:, None, None, :]
    inputs = decoder.start.expand(len(sids), 1, -1)
    for step in range(steps - 1):
        latent = decoder._run(inputs, [None] * len(held), held, seen)[0][:, -1:]
        inputs = torch.cat([inputs, torch.zeros_like(latent) if step == replaced else latent], dim=1)
    codes = torch.stack([decoder.codes[level, sids[:, level]] for level in range(2)], dim=1)
    return decoder._run(torch.cat([inputs, codes], dim=1), [None] * len(held), held, seen)[0]


def test_latent_steps_are_what_no_cache_would_give():
    model = lively(tiny_compact(steps=3))
    memory, sids = random_memory(), some_sids()
    output = model.states(memory, sids)
    whole = uncached(model, memory, sids)
    assert torch.allclose(output.latents, whole[:, :3], atol=1e-5)
    assert torch.allclose(output.states, whole[:, 2:], atol=1e-5)


@pytest.mark.parametrize("step", [0, 1])
def test_each_latent_step_is_felt_by_all_later_states(step):
    model = lively(tiny_compact(steps=3))
    memory, sids = random_memory(), some_sids()
    before, after = (uncached(model, memory, sids, replaced=replaced) for replaced in (None, step))
    moved = (before - after).abs().amax(dim=(0, 2)) > 1e-3
    assert moved.tolist() == [position > step for position in range(5)]


def test_an_encoder_without_token_states_gives_one_position():
    model = tiny_compact()
    memory = memory_of(model)
    assert memory.states.shape == (len(QUERIES), 1, 32)
    assert memory.mask.all()
    assert memory.take(torch.tensor([2, 2])).states.shape == (2, 1, 32)


def test_a_frozen_encoder_is_no_part_of_the_module(sentence_encoder):
    model = tiny_compact(encoder=sentence_encoder)
    assert not [name for name in model.state_dict() if name.startswith(("encoder", "sentence_encoder"))]
    assert model.prepare(["mug"]).batch(np.arange(1)).values.is_floating_point()
    before = [parameter.clone() for parameter in sentence_encoder.module.parameters()]
    model.train()
    model.sid_loss(model.states(memory_of(model), some_sids()), some_sids()).backward()
    assert all(parameter.grad is None for parameter in sentence_encoder.module.parameters())
    assert all(map(torch.equal, before, sentence_encoder.module.parameters()))
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_trained_encoder_learns(tmp_path):
    encoder = load_encoder(tiny_sentence_model(tmp_path), device="cpu")
    model = tiny_compact(encoder=encoder, tune_encoder=True)
    ids, _ = encoder.tokens(["mug"], limit=8)
    assert model.prepare(["mug"]).batch(np.arange(1)).values[0].tolist() == ids[0].tolist()
    named = [name for name, _ in model.named_parameters() if any(map(name.startswith, model.rates))]
    assert len(named) == len(list(encoder.module.parameters())) > 0
    model.sid_loss(model.states(memory_of(model), some_sids()), some_sids()).backward()
    touched = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert {name for name in named if "layer.0" in name} <= set(touched)
    before = scores(model)
    assert torch.allclose(before, scores(tiny_compact(encoder=encoder)), atol=5e-3), "it starts from the frozen one"
    with torch.no_grad():
        next(encoder.module.parameters()).mul_(-1.0)
    assert not torch.allclose(before, scores(model), atol=5e-3)


def test_long_texts_are_cut_and_counted(sentence_encoder):
    for tune in (False, True):
        model = tiny_compact(encoder=sentence_encoder, tune_encoder=tune, max_tokens=5)
        found = model.prepare(["mug", "red blue steel lamp", "red blue steel"])
        assert found.lengths.tolist() == [3, 5, 5]
        assert found.cut == 1
        assert len(model.prepare([])) == 0


def test_states_are_kept_in_a_cache(sentence_encoder, tmp_path, monkeypatch):
    model = tiny_compact(encoder=sentence_encoder)
    first = model.prepare(QUERIES, cache=tmp_path / "states")
    monkeypatch.setattr(sentence_encoder, "token_states", None)
    again = model.prepare(QUERIES, cache=tmp_path / "states")
    assert torch.equal(first.batch(np.arange(4)).values, again.batch(np.arange(4)).values)


def test_an_encoder_wider_inside_than_outside(tmp_path):
    encoder = load_encoder(tiny_sentence_model(tmp_path, dense=5), device="cpu")
    for tune in (False, True):
        assert scores(tiny_compact(encoder=encoder, tune_encoder=tune)).shape == (len(QUERIES), 3, 5)


def test_the_same_seed_gives_the_same_weights_and_draws_nothing_else():
    before = torch.get_rng_state()
    first, second, other = (tiny_compact(seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["decoder.codes"], other["decoder.codes"])


def test_it_can_learn_which_query_has_which_sid():
    model, sids = tiny_compact(dropout=0.0), torch.tensor([[0, 1, 2], [4, 0, 3], [2, 2, 1], [1, 1, 0]])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = model.sid_loss(model.states(memory_of(model), sids), sids)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert torch.equal(scores(model, sids=sids).argmax(-1), sids)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 30, "heads": 4}, r"compact.width \(30\) must be divisible by compact.heads \(4\)"),
        ({"width": 0}, r"width \(0\)"),
        ({"heads": 0}, r"heads \(0\)"),
        ({"blocks": 0}, "compact.blocks must be at least 1, got 0"),
        ({"max_tokens": 1}, "max_tokens must be at least 2, got 1"),
        ({"dropout": 1.0}, "below 1, got 1.0"),
        ({"steps": -1}, "latent steps must be 0 .none. or more, got -1"),
        ({"tune_encoder": True}, "'tfidf-svd' cannot be trained"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        tiny_compact(**settings)
