"""Decoding level by level gives what the backbones give under teacher forcing, for any beams of any queries."""

import pytest
import torch

from restd.data.categories import Categories
from restd.models import CalirBackbone, CalirConfig, Memory, T5Backbone
from restd.models.cached_decoder import Head
from restd.models.decode_protocol import Stepper
from tests.models import FRESH, PATHS, SIZES, some_sids, tiny_compact, tiny_t5, untied

KINDS = ["t5", "mt5", "t5-1.1", "compact"]
NORMALIZERS = ["full_vocab", "level_codes"]
BEAMS = 7


def lively(model, seed=0):
    """Make all weights of the decoder, those of norms too, large enough to be felt."""
    generator = torch.Generator().manual_seed(seed)
    decoder = model.decoder if hasattr(model, "decoder") else model.model.decoder
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def made(kind, folder, *, steps=0, sizes=SIZES):
    if kind == "compact":
        return lively(tiny_compact(sizes, steps=steps))
    if kind == "t5":
        return lively(tiny_t5(sizes, steps=steps))
    saved = untied(folder / kind, kind)[1]
    return lively(T5Backbone.made(sizes, type(FRESH)(model=saved.model, steps=steps), seed=0).eval())


@pytest.fixture(params=KINDS)
def model(request, tmp_path):
    return made(request.param, tmp_path)


def random_memory(rows=3, longest=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([longest, 1, 3, 2])[:rows, None]
    return Memory(torch.randn(rows, longest, 32, generator=generator), torch.arange(longest) < lengths)


def expected(model, memory, sids, normalizer="full_vocab"):
    """Log-probabilities of every level along one SID a row, from states under teacher forcing."""
    with torch.no_grad():
        states = model.states(memory, sids).states
        scores = model.logits(states)
        body = getattr(model, "body", model)
        if normalizer == "level_codes" or not isinstance(body, T5Backbone):
            return scores.log_softmax(-1)
        return scores - body.vocabulary_logits(states).logsumexp(-1, keepdim=True)


def zeros(rows, beams):
    return torch.zeros(rows, beams, dtype=torch.int64)


def along(stepper, memory, sids):
    """Log-probabilities of every level along the SIDs of [query, beam, level], each beam following itself."""
    rows, beams, levels = sids.shape
    scores, cache = stepper.start(memory)
    found = [scores.expand(-1, beams, -1)]
    parents = zeros(rows, beams)
    for level in range(levels - 1):
        scores, cache = stepper.step(cache, parents, sids[..., level])
        found.append(scores)
        parents = torch.arange(beams).expand(rows, -1)
    return torch.stack(found, dim=2)


def beams_of(memory, sids):
    """Every query's SIDs as rows of their own."""
    rows, beams, _ = sids.shape
    return memory.take(torch.arange(rows).repeat_interleave(beams)), sids.flatten(0, 1)


def random_sids(rows=3, beams=BEAMS, sizes=SIZES, seed=0):
    return some_sids(rows * beams, sizes, seed=seed).view(rows, beams, -1)


def assert_close(found, wanted, atol=1e-4):
    assert torch.equal(found.isinf(), wanted.isinf())
    real = wanted.isfinite()
    assert (found - wanted)[real].abs().max() <= atol


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_teacher_forcing(kind, steps, normalizer, tmp_path):
    model = made(kind, tmp_path, steps=steps)
    stepper = model.stepper(normalizer=normalizer)
    assert isinstance(stepper, Stepper)
    assert stepper.sizes == SIZES
    memory, sids = random_memory(), random_sids()
    found = along(stepper, memory, sids)
    assert found.shape == (3, BEAMS, 3, max(SIZES))
    assert_close(found.flatten(0, 1), expected(model, *beams_of(memory, sids), normalizer))
    for level, size in enumerate(SIZES):
        assert found[:, :, level, :size].isfinite().all()
        assert (found[:, :, level, size:] == -torch.inf).all()
    assert found.std(dim=(0, 1))[1:, :3].min() > 0.01  # codes and queries are felt


@pytest.mark.parametrize("body", ["t5", "compact"])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_calir_steps_as_its_body(body, normalizer, tmp_path):
    categories = Categories.of_paths(PATHS, depth=3)
    network = made(body, tmp_path, steps=3)
    model = CalirBackbone(network, categories, CalirConfig(body=body), seed=0).eval()
    memory, sids = random_memory(), random_sids()
    found = along(model.stepper(normalizer=normalizer), memory, sids)
    assert_close(found.flatten(0, 1), expected(model, *beams_of(memory, sids), normalizer))


@pytest.mark.parametrize("sizes", [(4,), (2,) * 24])
@pytest.mark.parametrize("kind", ["t5", "compact"])
def test_one_level_and_very_many(kind, sizes, tmp_path):
    """More positions than T5 has exact distances for."""
    model = made(kind, tmp_path, sizes=sizes, steps=4)
    memory, sids = random_memory(), random_sids(beams=2, sizes=sizes)
    assert_close(along(model.stepper(), memory, sids).flatten(0, 1), expected(model, *beams_of(memory, sids)))


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_beams_continue_any_parent(kind, steps, tmp_path):
    """Beams are dropped, repeated and reordered, and their number changes, as in a search."""
    model = made(kind, tmp_path, steps=steps)
    stepper, memory = model.stepper(), random_memory()
    generator = torch.Generator().manual_seed(1)
    scores, cache = stepper.start(memory)
    prefixes = zeros(3, 1)[..., None][..., :0]
    for level, beams in enumerate((4, 9)):
        parents = torch.randint(prefixes.shape[1], (3, beams), generator=generator)
        codes = torch.randint(SIZES[level], (3, beams), generator=generator)
        scores, cache = stepper.step(cache, parents, codes)
        held = prefixes.gather(1, parents[..., None].expand(-1, -1, level))
        prefixes = torch.cat([held, codes[..., None]], dim=-1)
        wanted = expected(model, *beams_of(memory, prefixes))[:, level + 1]
        assert_close(scores.flatten(0, 1), wanted)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind, steps, tmp_path):
    model = made(kind, tmp_path, steps=steps).double()  # other orders of addition are no fault
    memory, sids = random_memory(4), random_sids(4)
    memory = Memory(memory.states.double(), memory.mask)
    together = along(model.stepper(), memory, sids)
    for row in range(4):
        length = int(memory.mask[row].sum())
        alone = Memory(memory.states[[row], :length], memory.mask[[row], :length])
        assert_close(along(model.stepper(), alone, sids[[row]])[0], together[row], atol=1e-5)
    unmasked = Memory(memory.states, torch.ones_like(memory.mask))
    assert not torch.allclose(along(model.stepper(), unmasked, sids)[1], together[1], atol=1e-2)


def test_a_cache_may_be_continued_twice(model):
    """As a search does that looks at one continuation after another."""
    stepper, memory, sids = model.stepper(), random_memory(), random_sids()
    itself = torch.arange(BEAMS).expand(3, -1)
    _, cache = stepper.start(memory)
    first, longer = stepper.step(cache, zeros(3, BEAMS), sids[..., 0])
    second, _ = stepper.step(longer, itself, sids[..., 1])
    stepper.step(cache, zeros(3, 2), zeros(3, 2))
    other, _ = stepper.step(longer, zeros(3, 2), zeros(3, 2) + 2)
    again, longer_again = stepper.step(cache, zeros(3, BEAMS), sids[..., 0])
    assert torch.equal(again, first)
    assert torch.equal(stepper.step(longer_again, itself, sids[..., 1])[0], second)
    assert torch.equal(stepper.step(longer, itself, sids[..., 1])[0], second)
    assert not torch.allclose(other, second[:, :2], atol=1e-2)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_state_is_kept(kind, steps, tmp_path):
    model = made(kind, tmp_path, steps=steps)
    memory, sids = random_memory(), random_sids()
    stepper = model.stepper()
    _, cache = stepper.start(memory)
    assert cache.length == max(steps, 1)
    with torch.no_grad():
        wanted = model.states(memory, sids[:, 0, :0]).states
    assert torch.allclose(cache.first, wanted, atol=1e-4)
    _, longer = stepper.step(cache, zeros(3, BEAMS), sids[..., 0])
    assert longer.first is cache.first
    assert (longer.level, longer.length) == (1, cache.length + 1)


def test_what_beams_share_is_held_once(model):
    _, cache = model.stepper().start(random_memory())
    _, cache = model.stepper().step(cache, zeros(3, BEAMS), zeros(3, BEAMS))
    assert [[position.shape[1] for position in layer] for layer in cache.past] == [[1, BEAMS]] * len(cache.past)
    assert all(held.shape[0] == 3 and held.shape[2] == 6 for both in cache.memory for held in both)


def test_training_mode_does_not_matter_and_no_gradients_are_recorded(model):
    memory, sids = random_memory(), random_sids()
    wanted = along(model.stepper(), memory, sids)
    model.train()
    stepper = model.stepper()
    found = along(stepper, Memory(memory.states.requires_grad_(), memory.mask), sids)
    assert torch.equal(found, wanted)
    assert not found.requires_grad
    assert not stepper.start(memory)[1].first.requires_grad
    assert model.training


def test_a_stepper_is_a_copy(model):
    """Training on does not reach it, not even in part."""
    memory, sids = random_memory(), random_sids()
    steppers = [model.stepper(normalizer=normalizer) for normalizer in NORMALIZERS]
    before = [along(stepper, memory, sids) for stepper in steppers]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for stepper, wanted in zip(steppers, before, strict=True):
        assert torch.equal(along(stepper, memory, sids), wanted)


def test_scores_too_far_apart_for_a_shared_peak():
    """Words that stand e⁸⁸ times above every code overflow the quick sum; the result is still right."""
    model = lively(tiny_t5())
    with torch.no_grad():
        model.model.lm_head.weight *= 400
    memory, sids = random_memory(), random_sids()
    wanted = expected(model, *beams_of(memory, sids))
    assert wanted[wanted.isfinite()].min() < -200
    above = (wanted.amax(-1) < -89).any()
    assert above
    found = along(model.stepper(), memory, sids)
    assert torch.allclose(found.flatten(0, 1), wanted, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("offset", [-300.0, -60.0, 0.0, 60.0, 300.0])
def test_the_sum_over_words_does_not_depend_on_where_scores_lie(offset):
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(9, 30, generator=generator)
    words[-1] = offset
    states = torch.randn(5, 9, generator=generator)
    states[:, -1] = 1.0
    scores = states @ words
    head = Head(words[None, :, :4], torch.zeros(1, 4), words.split(13, dim=1))
    wanted = scores.double().log_softmax(-1)[:, :4].float()
    assert torch.allclose(head(states, 0), wanted, atol=1e-4)


def test_the_vocabulary_is_summed_in_parts(monkeypatch):
    monkeypatch.setattr("restd.models.t5_stepper._WORDS", 5)
    model = lively(tiny_t5())
    memory, sids = random_memory(), random_sids()
    assert_close(along(model.stepper(), memory, sids).flatten(0, 1), expected(model, *beams_of(memory, sids)))
