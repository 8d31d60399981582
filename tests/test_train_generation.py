"""Generation losses of soft targets: every right code of a query, and only codes that can follow."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.codes import Trie
from restd.data.pairs import Pairs, read_pairs
from restd.distill import Positives
from restd.errors import ConfigError
from restd.models.contract import Backbone, code_mask, soft_code_loss
from restd.train import read_log
from restd.train.generation import RightCodes, following_codes
from tests.models import SIZES, memory_of, some_sids, tiny_compact, tiny_t5
from tests.training import make_index, run, same_weights, write_walks, write_world

seeds = st.integers(0, 1_000)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return make_index(data, folder / "index"), data


def drawn(seed, *, items=14, queries=3, pairs=12):
    """SIDs, and pairs of queries and items with grades, each pair once."""
    generator = torch.Generator().manual_seed(seed)
    sids = torch.stack([torch.randint(size, (items,), generator=generator) for size in (2, 2, 3)], dim=1)
    cells = torch.randperm(queries * items, generator=generator)[:pairs]
    cells = torch.cat([cells, torch.arange(queries) * items]).unique()
    grades = torch.randint(1, 4, (len(cells),), generator=generator).float()
    return sids, cells // items, cells % items, grades


@settings(max_examples=20)
@given(seeds)
def test_targets_are_the_shares_of_positives_that_share_the_prefix(seed):
    sids, query, item, grades = drawn(seed)
    for weights, alike in ((None, False), (grades, False), (None, True)):
        right = RightCodes(sids, Positives.of(query, item, weights), alike=alike)
        targets = right.of_rows(item, query, codes=3)
        each = torch.ones(len(item)) if weights is None else weights
        for row in range(len(item)):
            for level in range(3):
                wanted = torch.zeros(3)
                for other in range(len(item)):
                    if query[other] == query[row] and torch.equal(sids[item[other], :level], sids[item[row], :level]):
                        wanted[sids[item[other], level]] += each[other]
                wanted = (wanted > 0).float() if alike else wanted
                assert torch.allclose(targets[row, level], wanted / wanted.sum(), atol=1e-6)


@given(seeds)
def test_they_are_what_one_pair_after_another_estimates(seed):
    """Averaged over a query's positives, hard and soft targets have the same loss: the same gradient in expectation."""
    sids, query, item, _ = drawn(seed)
    own = query == query[0]
    rows, queries = item[own], query[own]
    scores = torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    prefix = sids[rows]
    # a table of scores by prefix: what any model of prefixes is
    table = torch.stack([scores[0, 0, 0].expand(len(rows), 3), scores[prefix[:, 0], 0, 1]], dim=1)
    last = scores[prefix[:, 0], prefix[:, 1], 2]
    table = torch.cat([table, last[:, None]], dim=1)
    soft = RightCodes(sids, Positives.of(query, item)).of_rows(rows, queries, codes=3)
    hard = torch.nn.functional.one_hot(prefix, 3).float()
    assert torch.allclose((soft * table).sum((1, 2)).mean(), (hard * table).sum((1, 2)).mean(), atol=1e-5)


@given(seeds)
def test_only_codes_that_some_item_continues_with_can_follow(seed):
    sids, *_ = drawn(seed)
    allowed = following_codes(Trie.of(sids.numpy(), (2, 2, 3)), sids, codes=3)
    for row in range(len(sids)):
        for level in range(3):
            beside = (sids[:, :level] == sids[row, :level]).all(dim=1)
            assert allowed[row, level].nonzero().flatten().tolist() == sids[beside, level].unique().tolist()


@pytest.mark.parametrize("make", [tiny_compact, tiny_t5])
def test_the_loss_of_single_codes_is_the_backbones_own(make):
    model, sids = make(), some_sids()
    output = model.states(memory_of(model), sids)
    targets = torch.nn.functional.one_hot(sids, max(SIZES)).float()
    assert model.soft_targets
    assert torch.allclose(model.soft_sid_loss(output, targets), model.sid_loss(output, sids), atol=1e-5)


def test_scores_of_codes_that_cannot_follow_have_no_gradient():
    sids = some_sids()
    logits = torch.randn(*sids.shape, max(SIZES), generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.nn.functional.one_hot(sids, max(SIZES)).float()
    allowed = targets.bool() | torch.nn.functional.one_hot((sids + 1) % torch.tensor(SIZES), max(SIZES)).bool()
    soft_code_loss(logits, targets, allowed=allowed).backward()
    assert torch.equal(logits.grad != 0, allowed)


def test_a_lone_child_costs_nothing():
    model, sids = tiny_compact(), some_sids()
    output = model.states(memory_of(model), sids)
    targets = torch.nn.functional.one_hot(sids, max(SIZES)).float()
    assert model.soft_sid_loss(output, targets, allowed=targets > 0).item() == 0.0
    everything = code_mask(SIZES).expand(len(sids), -1, -1)
    whole = model.soft_sid_loss(output, targets, allowed=everything)
    assert torch.allclose(whole, model.sid_loss(output, sids), atol=1e-6)


def test_a_t5_learns_the_end_beside_soft_codes():
    model, sids = tiny_t5(), some_sids()
    output = model.states(memory_of(model), sids)
    even = torch.full((len(sids), len(SIZES), max(SIZES)), 0.0)
    for level, size in enumerate(SIZES):
        even[:, level, :size] = 1 / size
    words = model.vocabulary_logits(output.states).log_softmax(-1)
    end = model.vocabulary_logits(output.ending).log_softmax(-1)[:, model.tokenizer.eos_token_id]
    codes = [words[:, level, model.tokens[level, :size]].mean(1) for level, size in enumerate(SIZES)]
    assert torch.allclose(model.soft_sid_loss(output, even), -torch.stack([*codes, end]).mean(), atol=1e-5)


def losses_of(folder):
    return [record["sid_loss"] for record in read_log(folder / "log.jsonl") if "sid_loss" in record]


@pytest.mark.parametrize("backbone", ["compact", "t5", "calir"])
@pytest.mark.parametrize("setting", ["multi_positive=items", "loss_norm=trie_children"])
def test_every_backbone_trains_with_soft_targets(world, tmp_path, backbone, setting):
    base = run(*world, tmp_path / "base", backbone=backbone, updates=8)
    made = run(*world, tmp_path / "run", f"train.{setting}", backbone=backbone, objective="restd", updates=8)
    losses = losses_of(tmp_path / "run")
    assert losses[-1] < losses[0]
    assert not same_weights(made.folder, base.folder)


def test_a_recommender_trains_over_what_can_follow(tmp_path):
    data = write_walks(tmp_path / "data")
    index = make_index(data, tmp_path / "index")
    run(index, data, tmp_path / "run", "train.loss_norm=trie_children", backbone="tiger", updates=40)
    losses = losses_of(tmp_path / "run")
    assert 0 < np.mean(losses[-10:]) < np.mean(losses[:10])


def test_where_every_query_has_one_item_nothing_changes(world, tmp_path):
    """Up to rounding: the loss is computed another way."""
    index, data = world
    (tmp_path / "data").mkdir()
    lines = (data / "judgments.jsonl").read_text("utf-8").splitlines()
    first = {line.partition('"item"')[0]: line for line in reversed(lines)}
    (tmp_path / "data" / "judgments.jsonl").write_text("\n".join(first.values()) + "\n", encoding="utf-8")
    (tmp_path / "data" / "items.jsonl").write_bytes((data / "items.jsonl").read_bytes())
    messages = []
    for name, setting in (("off", "off"), ("on", "grades")):
        run(
            index,
            tmp_path / "data",
            tmp_path / name,
            f"train.multi_positive={setting}",
            updates=8,
            notify=messages.append,
        )
    assert np.allclose(losses_of(tmp_path / "off"), losses_of(tmp_path / "on"), atol=1e-4)
    assert [message for message in messages if "Multi-positive" in message] == [
        "Multi-positive targets: 0 of 15 pairs are of queries with several items"
    ]


def test_grades_reach_the_pairs_and_stay_with_them(tmp_path):
    rows = [("q", "a", 1), ("q", "a", 3), ("q", "b", 2), ("r", "b", 0), ("r", "c", 2)]
    lines = ["query,item,grade,split", *(f"{query},{item},{grade},train" for query, item, grade in rows), "v,a,1,valid"]
    (tmp_path / "judgments.csv").write_text("\n".join(lines), encoding="utf-8")
    pairs = read_pairs(tmp_path, pa.array(["a", "b", "c"])).train
    assert list(zip(pairs.text, pairs.item, pairs.grade, strict=True)) == [(0, 0, 3.0), (0, 1, 2.0), (1, 2, 2.0)]
    whole = pairs.with_queries(Pairs(("p",), np.array([0]), np.array([2]), 1)).with_items(["own"], np.array([0]))
    assert whole.grade is not None
    assert whole.grade.tolist() == [3.0, 2.0, 2.0, 1.0, 1.0]
    assert whole.only(np.array([1, 3])).grade.tolist() == [2.0, 1.0]


def test_a_backbone_without_such_a_loss_says_so(world, tmp_path, monkeypatch):
    model = tiny_compact()
    assert Backbone.soft_targets.fget(model) is False
    output = model.states(memory_of(model), some_sids())
    with pytest.raises(ConfigError, match="compact has no generation loss of soft targets"):
        Backbone.soft_sid_loss(model, output, torch.zeros(4, 3, 5))
    monkeypatch.setattr("restd.models.CompactBackbone.soft_targets", False)
    with pytest.raises(ConfigError, match=r"train\.multi_positive = codes, .* need\. Leave them at 'off'"):
        run(*world, tmp_path / "run", "train.multi_positive=codes")
