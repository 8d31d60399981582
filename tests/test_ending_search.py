"""Beams, exact scores and chosen scores over Semantic IDs of unequal length, against products of probabilities."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings

from restd.codes import Trie
from restd.models import EndingStepper, T5Backbone, make_stepper
from restd.models.decode_protocol import Stepper
from restd.search import beam_search, exact_scores
from restd.search.candidate_scores import sid_scores
from restd.search.trace import trace
from tests.steppers import TableStepper, memory_of
from tests.unequal import SIZES, identifiers, model_of, padded, random_memory

MODELS = {kind: model_of(kind) for kind in ("compact", "t5")}
WAYS = [("compact", "level_codes"), ("t5", "full_vocab"), ("t5", "level_codes")]


def log_probabilities(model, memory, sid, normalizer):
    """[row, level, code] along one identifier, by the decoder without any cache; terminal codes follow the end."""
    rows = len(memory.mask)
    given_codes = torch.tensor(padded([sid]).astype("int64")).expand(rows, -1)
    with torch.no_grad():
        states = model.states(memory, given_codes).states
        scores = model.logits(states)
        if normalizer == "full_vocab" and isinstance(model, T5Backbone):
            return scores - model.vocabulary_logits(states).logsumexp(-1, keepdim=True)
        return scores.log_softmax(-1)


def brute_force(model, memory, table, normalizer, *, trie_normalized=False):
    """Log-probability of every identifier: of its codes, and of its end where it ends early."""
    known, made = sorted(set(table)), []
    for sid in known:
        logs, total = log_probabilities(model, memory, sid, normalizer), torch.zeros(len(memory.mask))
        for level, code in enumerate((*sid, 0)[: len(SIZES)]):
            own = logs[:, level]
            if trie_normalized:
                following = {(*other, 0)[level] for other in known if other[:level] == sid[:level]}
                own = own[:, sorted(following)].log_softmax(-1)
                total = total + own[:, sorted(following).index(code)]
            else:
                total = total + own[:, code]
        made.append(total)
    return known, torch.stack(made, dim=1)


def in_order(known):
    """Identifiers in the order of the trie's leaves."""
    return [tuple(code for code in sid if code) for sid in Trie.of(padded(known), SIZES).sids().tolist()]


@pytest.mark.parametrize(("kind", "normalizer"), WAYS)
@pytest.mark.parametrize("trie_normalized", [False, True])
@settings(max_examples=12)
@given(table=identifiers())
def test_beam_exact_and_chosen_scores_are_products_of_probabilities(kind, normalizer, trie_normalized, table):
    model, memory, trie = MODELS[kind], random_memory(), Trie.of(padded(table), SIZES)
    stepper = make_stepper(model, normalizer=normalizer)
    known, wanted = brute_force(model, memory, table, normalizer, trie_normalized=trie_normalized)
    assert in_order(known) == known
    exact = exact_scores(stepper, memory, trie, rows=7, trie_normalized=trie_normalized)
    torch.testing.assert_close(exact, wanted, atol=2e-5, rtol=1e-5)
    beams = beam_search(stepper, memory, trie, width=len(known), trie_normalized=trie_normalized)
    for query in range(len(wanted)):
        leaves, scores = (part[query, : len(known)] for part in (beams.leaves, beams.scores))
        assert sorted(leaves.tolist()) == list(range(len(known)))
        torch.testing.assert_close(scores, wanted[query, leaves], atol=2e-5, rtol=1e-5)
        assert bool((scores.diff() <= 0).all())
    candidates = torch.from_numpy(padded(known).astype("int64")).expand(len(wanted), -1, -1)
    chosen = sid_scores(stepper, memory, candidates, trie=trie if trie_normalized else None)
    torch.testing.assert_close(chosen, wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", list(MODELS))
@pytest.mark.parametrize("trie_normalized", [False, True])
def test_all_identifiers_together_have_the_probability_of_one(kind, trie_normalized):
    """The empty one included: every prefix may end, and some identifiers are beginnings of others."""
    ranges = [range(1, size) for size in SIZES]
    table = [codes for length in range(len(SIZES) + 1) for codes in product(*ranges[:length])]
    assert len(table) == 1 + 3 + 6 + 18
    stepper = make_stepper(MODELS[kind], normalizer="level_codes")
    trie = Trie.of(padded(table), SIZES)
    total = exact_scores(stepper, random_memory(), trie, trie_normalized=trie_normalized).logsumexp(dim=1)
    torch.testing.assert_close(total, torch.zeros(2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_without_a_trie_nothing_follows_the_end(seed):
    stepper = EndingStepper(TableStepper(SIZES, seed=seed))
    assert isinstance(stepper, Stepper)
    beams = beam_search(stepper, memory_of([1, 2]), None, width=200)
    reached = beams.scores > -torch.inf
    for query in range(2):
        sids = beams.sids[query, reached[query]].tolist()
        assert len(set(map(tuple, sids))) == len(sids) == 28
        assert all(0 not in sid or not any(sid[sid.index(0) :]) for sid in sids)
    torch.testing.assert_close(beams.scores.logsumexp(dim=1), torch.zeros(2), atol=1e-5, rtol=0)


@settings(max_examples=20)
@given(identifiers())
def test_a_trace_follows_an_identifier_to_its_end(table):
    model, memory, trie = MODELS["compact"], random_memory(1), Trie.of(padded(table), SIZES)
    stepper, known = make_stepper(model), sorted(set(table))
    ranks = set()
    for sid in known:
        whole = torch.from_numpy(padded([sid])[0].astype("int64"))
        levels, rank = trace(stepper, memory, trie, whole, width=len(known), trie_normalized=False)
        assert all(level.kept for level in levels)
        ended = [level.score for level in levels[len(sid) :]]
        assert len(set(ended)) <= 1, "terminal codes behind the first cost nothing"
        ranks.add(rank)
    assert ranks == set(range(1, len(known) + 1))


def test_identifiers_of_one_length_are_decoded_as_ever():
    stepper = make_stepper(model_of("compact", ends=False))
    assert type(stepper).__name__ == "CompactStepper"
    assert type(make_stepper(MODELS["compact"])) is EndingStepper
    assert make_stepper(MODELS["compact"]).sizes == SIZES
