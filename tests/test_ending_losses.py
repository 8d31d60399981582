"""Generation losses of Semantic IDs of unequal length: nothing is learned behind the end, and one length is as ever."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn.functional import cross_entropy, one_hot

from restd.codes import Trie
from restd.codes.ending import is_padding
from restd.data.categories import Categories
from restd.distill import Positives
from restd.encode import fit_tfidf_svd
from restd.errors import ConfigError
from restd.index import SidIndex, SidTable
from restd.models import (
    BACKBONES,
    BuildContext,
    CalirBackbone,
    CalirConfig,
    CompactBackbone,
    ModelConfig,
    SidHistories,
    TigerBackbone,
    TigerConfig,
    make_backbone,
    make_stepper,
)
from restd.models.contract import IGNORED, soft_code_loss
from restd.search.candidate_scores import sid_scores
from restd.train.generation import RightCodes, SoftGenerationLoss
from restd.train.module import Batch
from restd.train.rank_objectives import CodeScores
from tests.models import COMPACT, PATHS, TEXTS, stored
from tests.test_ending import names
from tests.unequal import SIZES, identifiers, model_of, padded, random_memory

TINY_TIGER = TigerConfig(width=32, layers=1, heads=2, head_width=16, feed=64)


def calir(ends=True):
    categories = Categories.of_paths(PATHS, depth=2)
    body = CompactBackbone(fit_tfidf_svd(TEXTS, dim=8), SIZES, replace(COMPACT, steps=2), seed=0, ends=ends)
    return CalirBackbone(body, categories, CalirConfig(body="compact", depth=2, branching=(4, 4)), seed=0).eval()


MAKE = {
    "compact": lambda ends=True: model_of("compact", ends=ends),
    "t5": lambda ends=True: model_of("t5", ends=ends),
    "tiger": lambda ends=True: TigerBackbone.made(SIZES, TINY_TIGER, seed=0, ends=ends).eval(),
    "calir": calir,
}
MODELS = {kind: make() for kind, make in MAKE.items()}


def codes_of(table):
    return torch.from_numpy(padded(table).astype(np.int64))


def naive_loss(model, output, sids):
    """Mean over the positions that are learned, one by one; T5's end of the sequence is one of them."""
    losses = []
    for row, sid in enumerate(sids.tolist()):
        for level, code in enumerate(sid):
            if level and sid[level - 1] == 0:
                break
            state = output.states[row, level]
            if hasattr(model, "vocabulary_logits"):
                scores, target = model.vocabulary_logits(state), model.tokens[level, code]
            else:
                scores, target = model.logits(output.states)[row, level], torch.tensor(code)
            losses.append(-scores.log_softmax(-1)[target])
        if output.ending is not None:
            end = model.vocabulary_logits(output.ending[row]).log_softmax(-1)
            losses.append(-end[model.model.config.eos_token_id])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("kind", list(MODELS))
@settings(max_examples=12)
@given(table=identifiers())
def test_the_loss_is_the_mean_of_what_is_learned(kind, table):
    model, sids = MODELS[kind], codes_of(table)[:6]
    with torch.no_grad():
        output = model.states(random_memory(1).take(torch.zeros(len(sids), dtype=torch.int64)), sids)
        wanted = naive_loss(getattr(model, "body", model), output, sids)
        assert float(model.sid_loss(output, sids)) == pytest.approx(float(wanted), rel=1e-5)
        targets = one_hot(sids, max(SIZES)).float().masked_fill(is_padding(sids)[..., None], 0.0)
        assert float(model.soft_sid_loss(output, targets)) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("kind", list(MODELS))
def test_states_behind_the_end_get_no_gradient(kind):
    model, sids = MODELS[kind], codes_of([(1,), (2, 1), (3, 2, 1)])
    output = model.states(random_memory(3), sids)
    states = output.states.detach().requires_grad_()
    targets = one_hot(sids, max(SIZES)).float().masked_fill(is_padding(sids)[..., None], 0.0)
    for loss in (model.sid_loss, model.soft_sid_loss):
        states.grad = None
        ending = None if output.ending is None else output.ending.detach()
        loss(replace(output, states=states, ending=ending), targets if loss == model.soft_sid_loss else sids).backward()
        assert torch.equal(states.grad.abs().sum(-1) > 0, ~is_padding(sids))


@pytest.mark.parametrize("kind", list(MODELS))
def test_one_length_gives_the_same_bits_as_ever(kind):
    model, sids = MAKE[kind](ends=False), torch.tensor([[0, 2, 0], [3, 0, 0], [0, 0, 3]])
    assert model.learned(sids, sids) is sids
    with torch.no_grad():
        output = model.states(random_memory(3), sids)
        body, level = getattr(model, "body", model), torch.arange(3)
        if kind in ("t5", "tiger"):
            states, targets = output.states, body.tokens[level, sids]
            if kind == "t5":
                states = torch.cat([states, output.ending[:, None]], dim=1)
                targets = torch.cat([targets, torch.full((3, 1), body.tokenizer.eos_token_id)], dim=1)
            wanted = cross_entropy(body.vocabulary_logits(states.flatten(0, 1)).float(), targets.flatten())
        else:
            wanted = cross_entropy(body.logits(output.states).float().flatten(0, 1), sids.flatten())
        assert torch.equal(model.sid_loss(output, sids), wanted)
    logits, targets = model.logits(output.states), one_hot(sids, 4).float()
    plain = -(targets * logits.log_softmax(-1).masked_fill(targets == 0, 0.0)).sum(-1).mean()
    assert torch.equal(soft_code_loss(logits, targets), plain)
    assert "ends" not in model.describe()


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_model_remembers_that_a_code_ends_identifiers(kind, tmp_path):
    assert MODELS[kind].describe()["ends"] is True
    for ends in (True, False):
        read = stored(MAKE[kind](ends=ends), tmp_path / str(ends), ids=[f"i{row}" for row in range(len(PATHS))])
        assert read.ends is ends
        assert getattr(read, "body", read).ends is ends


@pytest.mark.parametrize("trie_children", [False, True])
def test_soft_targets_leave_out_what_follows_the_end(trie_children):
    """Positives that share a prefix are learned together, and an identifier's end is a code like any."""
    sids = codes_of([(1,), (1, 2), (1, 2, 3), (3, 1)])
    positives = Positives.of(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 3]))
    trie = Trie.of(sids.numpy(), SIZES) if trie_children else None
    loss = SoftGenerationLoss(RightCodes(sids, positives), trie, max(SIZES), ends=True)
    model, rows, queries = MODELS["compact"], torch.arange(4), torch.tensor([0, 0, 0, 1])
    with torch.no_grad():
        output = model.states(random_memory(4), sids)
        logits = model.logits(output.states)
        following = [[[1, 3], [0, 2]], [[1, 3], [0, 2], [0, 3]], [[1, 3], [0, 2], [0, 3]], [[1, 3], [1], [0]]]
        targets = [
            [{1: 1.0}, {0: 1 / 3, 2: 2 / 3}],
            [{1: 1.0}, {0: 1 / 3, 2: 2 / 3}, {0: 0.5, 3: 0.5}],
            [{1: 1.0}, {0: 1 / 3, 2: 2 / 3}, {0: 0.5, 3: 0.5}],
            [{3: 1.0}, {1: 1.0}, {0: 1.0}],
        ]
        losses = []
        for row, levels in enumerate(targets):
            for level, shares in enumerate(levels):
                scores = logits[row, level]
                if trie_children:
                    allowed = torch.zeros(4, dtype=torch.bool).index_fill_(0, torch.tensor(following[row][level]), True)
                    scores = scores.masked_fill(~allowed, -torch.inf)
                logs = scores.log_softmax(-1)
                losses.append(-sum(share * float(logs[code]) for code, share in shares.items()))
        batch = Batch(model.prepare(TEXTS[:4]).batch(np.arange(4)), sids, rows, queries)
        assert float(loss(batch, output, model, validating=False)) == pytest.approx(np.mean(losses), rel=1e-5)
        if not trie_children:
            validated = float(loss(batch, output, model, validating=True))
            assert validated == pytest.approx(float(model.sid_loss(output, sids)), rel=1e-5)


def test_positions_that_follow_with_certainty_are_no_targets():
    sids = codes_of([(1,), (2, 1), (3, 2, 1)])
    learned = MODELS["compact"].learned(sids, sids)
    assert learned.tolist() == [[1, 0, IGNORED], [2, 1, 0], [3, 2, 1]]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["compact", "t5"])
def test_ranking_losses_score_identifiers_as_the_search_does(kind):
    model, sids = MODELS[kind], codes_of([(1,), (3, 2, 1), (1, 2)])
    memory = random_memory(len(sids), seed=3)
    scores = CodeScores()(model, model.states(memory, sids).states, sids)
    searched = sid_scores(make_stepper(model, normalizer="level_codes"), memory, sids[:, None])[:, 0]
    assert bool((scores[is_padding(sids)] == 0).all())
    torch.testing.assert_close(scores.sum(dim=1), searched, atol=1e-4, rtol=1e-4)


def test_tiger_reads_items_with_their_terminal_codes():
    tiger = MODELS["tiger"]
    prepared = tiger.prepare(SidHistories.of([padded([(1,), (3, 2, 1)])]))
    assert prepared.lengths.tolist() == [2 * len(SIZES)]
    assert prepared.batch(np.arange(1)).values[0].tolist() == [
        int(tiger.tokens[level, code]) for sid in padded([(1,), (3, 2, 1)]).tolist() for level, code in enumerate(sid)
    ]


def test_a_backbone_that_does_not_know_of_ends_is_refused():
    sids = padded([(1,), (1, 2)])
    index = SidIndex(SidTable(names(2), sids, SIZES, ends=True), sids, None, None, None, "none")
    context = BuildContext(index, seed=0)
    assert make_backbone(ModelConfig("tiger", tiger=TINY_TIGER), context).ends

    def make(config, context):
        return TigerBackbone.made(SIZES, TINY_TIGER, seed=0)

    BACKBONES.add(replace(BACKBONES["tiger"], name="endless", make=make))
    try:
        with pytest.raises(ConfigError, match=r"of unequal length, and the backbone tiger does not know"):
            make_backbone(ModelConfig("endless"), context)
    finally:
        BACKBONES.remove("endless")
