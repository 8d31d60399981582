"""T5 and mT5: the codes are tokens, and everything else is what plain `transformers` computes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from restd.errors import ConfigError, DataError
from restd.models import Backbone, T5Backbone, T5Config
from restd.models.tokenizer import train_tokenizer
from tests.models import FRESH, QUERIES, SIZES, TEXTS, memory_of, scores, some_sids, stored, tiny_t5, untied


@pytest.fixture(params=["fresh", "mt5", "t5-1.1"])
def model(request, tmp_path):
    if request.param == "fresh":
        return tiny_t5()
    return T5Backbone.made(SIZES, untied(tmp_path / "saved", request.param)[1], seed=0).eval()


def level_tokens(tokenizer, level):
    return tokenizer.convert_tokens_to_ids([f"<{'abc'[level]}_{code}>" for code in range(SIZES[level])])


def tokens_of(model, sids):
    known = [level_tokens(model.tokenizer, level) for level in range(3)]
    return torch.tensor(
        [[known[level][code] for level, code in enumerate(row)] for row in sids.tolist()], dtype=torch.int64
    )


def plain_logits(model, prefix, texts=QUERIES):
    """What `transformers` predicts after the start and the codes so far."""
    inputs = model.prepare(texts).batch(np.arange(len(texts)))
    start = torch.full((len(texts), 1), model.model.config.decoder_start_token_id)
    given = torch.cat([start, tokens_of(model, prefix)], dim=1)
    with torch.no_grad():
        mask = inputs.mask.long()
        return model.model(input_ids=inputs.values, attention_mask=mask, decoder_input_ids=given).logits[:, -1]


def test_it_is_a_backbone(model):
    assert isinstance(model, Backbone)
    assert model.width == 32
    assert model.sizes == SIZES
    assert model.route(memory_of(model), width=3) is None


def test_the_generation_loss_is_that_of_transformers(model):
    sids = some_sids()
    inputs = model.prepare(QUERIES).batch(np.arange(len(QUERIES)))
    codes = tokens_of(model, sids)
    whole = torch.cat([codes, torch.full((len(sids), 1), model.tokenizer.eos_token_id)], dim=1)
    wanted, endless = (
        model.model(input_ids=inputs.values, attention_mask=inputs.mask.long(), labels=labels).loss
        for labels in (whole, codes)
    )
    found = model.sid_loss(model.states(model.encode(inputs), sids), sids)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert not torch.allclose(found, endless, atol=1e-3)


def test_the_loss_needs_whole_sids():
    model = tiny_t5()
    with pytest.raises(ConfigError, match="give every code"):
        model.sid_loss(model.states(memory_of(model), some_sids()[:, :2]), some_sids())


def test_states_are_those_that_predict_each_code(model):
    sids = some_sids()
    found = scores(model, sids=sids)
    for level, size in enumerate(SIZES):
        codes = level_tokens(model.tokenizer, level)
        wanted = plain_logits(model, sids[:, :level])[:, codes]
        assert torch.allclose(found[:, level, :size], wanted, atol=1e-4)
        later = plain_logits(model, sids[:, : level + 1])[:, codes]
        assert not torch.allclose(found[:, level, :size], later, atol=1e-2)


def test_the_end_is_predicted_after_the_last_code(model):
    sids = some_sids()
    output = model.states(memory_of(model), sids)
    assert torch.allclose(model.vocabulary_logits(output.ending), plain_logits(model, sids), atol=1e-4)
    assert model.states(memory_of(model), sids[:, :2]).ending is None


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("given", [0, 1, 2, 3])
def test_some_codes_give_one_more_state(given, steps):
    model = tiny_t5(steps=steps)
    whole = model.states(memory_of(model), some_sids()).states
    part = model.states(memory_of(model), some_sids()[:, :given]).states
    assert part.shape[1] == min(given + 1, 3)
    assert torch.allclose(part, whole[:, : part.shape[1]], atol=1e-5)


def test_logits_are_a_slice_of_the_vocabulary(model):
    states = model.states(memory_of(model), some_sids()).states
    found, whole = model.logits(states), model.vocabulary_logits(states)
    assert whole.shape[-1] >= len(model.tokenizer)
    for level, size in enumerate(SIZES):
        tokens = level_tokens(model.tokenizer, level)
        assert torch.allclose(found[:, level, :size], whole[:, level, tokens], atol=1e-5)
        assert (found[:, level, size:] == -torch.inf).all()
    assert found.isinf().sum() == len(QUERIES) * (2 + 1)


def test_padding_changes_nothing(model):
    alone = torch.cat([scores(model, [text], sids=some_sids()[[row]]) for row, text in enumerate(QUERIES)])
    assert torch.allclose(alone, scores(model), atol=1e-4)


def test_plain_transformers_opens_what_was_untied(model, tmp_path):
    again = stored(model, tmp_path / "model")
    assert torch.equal(scores(again), scores(model))
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    texts = [f"<query> {text}" for text in QUERIES]
    rows = model.prepare(QUERIES)
    assert tokenizer(texts)["input_ids"] == [rows.batch(np.array([row])).values[0].tolist() for row in range(4)]
    inputs = rows.batch(np.arange(4))
    start = torch.full((4, 1), plain.config.decoder_start_token_id)
    with torch.no_grad():
        found = plain(input_ids=inputs.values, attention_mask=inputs.mask.long(), decoder_input_ids=start).logits
    assert torch.allclose(found[:, 0, level_tokens(tokenizer, 0)], scores(model)[:, 0], atol=1e-5)


@pytest.mark.parametrize("spare", [0, 100])
@pytest.mark.parametrize("kind", ["mt5", "t5-1.1"])
def test_what_a_pretrained_model_knows_is_kept(tmp_path, kind, spare):
    plain, config = untied(tmp_path / "saved", kind, spare=spare)
    model = T5Backbone.made(SIZES, config, seed=0)
    known = len(plain.lm_head.weight) - spare
    assert torch.equal(model.model.lm_head.weight[:known], plain.lm_head.weight[:known])
    assert torch.equal(model.model.get_input_embeddings().weight[:known], plain.shared.weight[:known])
    new = model.tokens[0]
    for table in (model.model.lm_head, model.model.get_input_embeddings()):
        assert 0.5 < table.weight[new].std() / table.weight[:known].std() < 2.0
        assert len(table.weight) == max(len(model.tokenizer), len(plain.lm_head.weight))


def test_long_texts_are_cut_and_still_end():
    model = tiny_t5(max_tokens=8)
    found = model.prepare(QUERIES)
    whole = tiny_t5().prepare(QUERIES)
    assert found.lengths.tolist() == np.minimum(whole.lengths, 8).tolist()
    assert found.cut == (whole.lengths > 8).sum() == 1
    assert whole.cut == 0
    cut, kept = (held.batch(np.array([1])).values[0].tolist() for held in (found, whole))
    assert cut == [*kept[:7], model.tokenizer.eos_token_id]


def test_the_task_opens_the_text():
    model = tiny_t5()
    query, item = (model.prepare(["red mug"], role=role).batch(np.arange(1)).values[0] for role in ("query", "item"))
    assert query[0] != item[0]
    assert torch.equal(query[1:], item[1:])
    assert model.tokenizer.unk_token_id not in query


def test_no_texts_are_no_error():
    assert len(tiny_t5().prepare([])) == 0


def test_the_same_seed_gives_the_same_weights_and_draws_nothing_else():
    before = torch.get_rng_state()
    first, second, other = (tiny_t5(seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["model.shared.weight"], other["model.shared.weight"])


def test_a_pretrained_model_draws_nothing_else(tmp_path):
    _, config = untied(tmp_path / "saved", "mt5")
    before = torch.get_rng_state()
    first, second = (T5Backbone.made(SIZES, config, seed=1).state_dict() for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_dropout_is_set_everywhere():
    still, noisy = tiny_t5(dropout=0.0), tiny_t5(dropout=0.5)
    rest = scores(still)
    assert torch.equal(scores(noisy), rest)
    still.train()
    noisy.train()
    assert torch.equal(scores(still), rest)
    assert not torch.equal(scores(noisy), rest)


def test_the_tokenizer_is_the_same_at_each_run():
    first, second = (train_tokenizer(TEXTS, 60) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert first.backend_tokenizer.to_str() != train_tokenizer(TEXTS[:5], 60).backend_tokenizer.to_str()
    ids = first("Small OAK desk")["input_ids"]
    assert first.decode(ids, skip_special_tokens=True) == "small oak desk"
    assert ids[-1] == first.eos_token_id


def test_a_model_that_cannot_be_reached(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing-at-all", str(tmp_path / "nothing")):
        with pytest.raises(DataError, match="could not be loaded"):
            T5Backbone.made(SIZES, T5Config(model=name), seed=0)


def test_another_kind_of_model(tmp_path):
    from transformers import BartConfig, BartForConditionalGeneration

    shape = BartConfig(
        vocab_size=60,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=1,
        decoder_attention_heads=1,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
    )
    BartForConditionalGeneration(shape).save_pretrained(tmp_path)
    train_tokenizer(TEXTS, 60).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="Expected a model of type t5 or mt5, got 'bart'"):
        T5Backbone.made(SIZES, T5Config(model=str(tmp_path)), seed=0)


def test_bad_settings():
    with pytest.raises(ConfigError, match="needs texts"):
        T5Backbone.made(SIZES, FRESH, seed=0)
    with pytest.raises(ConfigError, match="or more, got -1"):
        tiny_t5(steps=-1)
    with pytest.raises(ConfigError, match="26 levels"):
        tiny_t5(sizes=(2,) * 27)
    with pytest.raises(ConfigError, match=r"max_tokens must be at least 2, got 1"):
        replace(FRESH, max_tokens=1)
    with pytest.raises(ConfigError, match=r"below 1, got 1\.5"):
        replace(FRESH, dropout=1.5)
