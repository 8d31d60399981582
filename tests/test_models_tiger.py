"""TIGER's network: what it reads, what it says, and that plain `transformers` would say the same."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from restd.artifacts import open_artifact
from restd.data import Histories, History, Prefixes, leave_one_out
from restd.errors import ConfigError, DataError
from restd.models import Backbone, SidHistories, TigerBackbone, TigerConfig, read_backbone
from restd.models.inputs import sid_histories
from restd.models.tiger import END, code_tokens
from tests.models import SIZES, stored

TINY = TigerConfig(width=32, layers=2, heads=2, head_width=16, feed=64, history=4)


def tiny(**changed):
    config = TigerConfig(**{**{name: getattr(TINY, name) for name in TINY.__dataclass_fields__}, **changed})
    return TigerBackbone.made(SIZES, config, seed=0).eval()


def some_sids(rows, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, size, rows) for size in SIZES], axis=1)


def read(model, *histories, users=()):
    held = model.prepare(SidHistories.of(histories, users))
    return held.batch(np.arange(len(histories)))


def test_it_is_a_backbone():
    assert isinstance(tiny(), Backbone)


def test_every_code_has_its_own_token():
    tokens = [code for level, size in zip(code_tokens(SIZES).tolist(), SIZES, strict=True) for code in level[:size]]
    assert sorted(tokens) == list(range(END + 1, END + 1 + sum(SIZES)))


def test_it_reads_the_latest_items_and_says_what_was_cut():
    model, sids = tiny(), some_sids(6)
    held = model.prepare(SidHistories.of([sids, sids[:2]]))
    assert held.cut == 1
    assert held.lengths.tolist() == [12, 6]
    batch = held.batch(np.arange(2))
    assert batch.values[0].tolist() == read(model, sids[2:]).values[0].tolist()
    assert batch.mask[1].sum() == 6


def test_overlapping_histories_are_read_like_separate_ones():
    model, sids = tiny(), some_sids(7)
    shared = SidHistories(sids, np.array([0, 0, 3]), np.array([2, 5, 7]))
    apart = SidHistories.of([sids[:2], sids[:5], sids[3:7]])
    one, other = (model.prepare(held).batch(np.arange(3)) for held in (shared, apart))
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.mask, other.mask)
    assert len(model.prepare(shared).shards[0]) == 7 * len(SIZES)  # held once


def test_users_have_tokens_where_asked():
    model, sids = tiny(users=5), some_sids(2)
    batch = read(model, sids, sids, sids, users=["ann", "bob", ""])
    first = batch.values[:, 0].tolist()
    assert all(END + 1 + sum(SIZES) <= token < END + 1 + sum(SIZES) + 5 for token in first[:2])
    assert batch.mask.sum(1).tolist() == [7, 7, 6]  # nobody has no token
    assert batch.values[2, :6].tolist() == batch.values[0, 1:].tolist()
    assert read(tiny(), sids, users=["ann"]).values.shape[1] == 6


def test_padding_changes_nothing():
    model, sids = tiny(), some_sids(4)
    wanted = torch.from_numpy(some_sids(1, seed=1))
    with torch.no_grad():
        alone = model.states(model.encode(read(model, sids[:1])), wanted).states
        both = model.states(model.encode(read(model, sids[:1], sids)), wanted.expand(2, -1)).states[:1]
    torch.testing.assert_close(alone, both, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_the_loss_is_that_of_transformers_over_the_codes(tied):
    model, sids = tiny(tied=tied), torch.from_numpy(some_sids(3, seed=2))
    inputs = read(model, *(some_sids(count) for count in (1, 2, 3)))
    labels = model.tokens[torch.arange(len(SIZES)), sids]
    with torch.no_grad():
        ours = model.sid_loss(model.states(model.encode(inputs), sids), sids)
        theirs = model.model(input_ids=inputs.values, attention_mask=inputs.mask.long(), labels=labels).loss
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_are_those_of_transformers(tied):
    # in float32 a unit at its threshold may fall to either side
    ours, theirs = (tiny(tied=tied).double() for _ in range(2))
    sids = torch.from_numpy(some_sids(3, seed=2))
    inputs = read(ours, *(some_sids(count) for count in (1, 2, 3)))
    labels = ours.tokens[torch.arange(len(SIZES)), sids]
    ours.sid_loss(ours.states(ours.encode(inputs), sids), sids).backward()
    theirs.model(input_ids=inputs.values, attention_mask=inputs.mask.long(), labels=labels).loss.backward()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, msg=lambda said, name=name: f"{name}: {said}")


def test_dropout_follows_torchs_seed_and_is_gone_in_evaluation():
    model, sids = tiny(dropout=0.3), torch.from_numpy(some_sids(2))
    inputs = read(model, some_sids(3), some_sids(2, seed=1))

    def states(seed):
        torch.manual_seed(seed)
        memory = model.encode(inputs)
        return memory.states, model.states(memory, sids).states

    quiet = states(1)
    assert all(torch.equal(one, other) for one, other in zip(quiet, states(2), strict=True))
    model.train()
    assert all(torch.equal(one, other) for one, other in zip(states(1), states(1), strict=True))
    for kind in range(2):
        assert not torch.equal(states(1)[kind], states(2)[kind])
        assert float((states(1)[kind] == 0).double().mean()) == pytest.approx(0.3, abs=0.1)  # the last dropout's


COMPILED = """
import numpy as np, torch
from restd.models import SidHistories, TigerBackbone, TigerConfig
model = TigerBackbone.made((4, 4), TigerConfig(16, 1, 2, 8, 32, dropout=0.3), seed=0).train()
inputs = model.prepare(SidHistories.of([np.array([[3, 0], [2, 1]]), np.array([[1, 1]])])).batch(np.arange(2))
sids = torch.tensor([[1, 2], [3, 0]])
def loss():
    return model.sid_loss(model.states(model.encode(inputs), sids), sids)
losses = []
for way in (loss, torch.compile(loss, backend="aot_eager")):
    torch.manual_seed(5)
    losses.append(way())
    losses[-1].backward()
torch.testing.assert_close(*losses)
"""


def test_it_can_be_compiled():
    """Elsewhere, for the checks of shapes that tests switch on cannot be."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tied", [False, True])
def test_steps_are_the_whole_vocabularys_log_probabilities(tied):
    model, sids = tiny(tied=tied), torch.from_numpy(some_sids(2, seed=3))
    memory = model.encode(read(model, some_sids(2), some_sids(3)))
    stepper = model.stepper()
    with torch.inference_mode():
        scored, cache = stepper.start(memory)
        output = model.states(memory, sids)
        for level in range(len(SIZES)):
            whole = model.vocabulary_logits(output.states[:, level]).log_softmax(-1)
            wanted = whole.gather(1, model.tokens[level][None].expand(2, -1)).masked_fill(
                ~model.code_mask[level], -torch.inf
            )
            torch.testing.assert_close(scored[:, 0], wanted, atol=1e-4, rtol=1e-4)
            if level + 1 < len(SIZES):
                parents = torch.zeros(2, 1, dtype=torch.int64)
                scored, cache = stepper.step(cache, parents, sids[:, level : level + 1])


def test_the_same_seed_gives_the_same_weights():
    one, other = (TigerBackbone.made(SIZES, TINY, seed=3).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["model.shared.weight"], tiny().state_dict()["model.shared.weight"])


@pytest.mark.parametrize("tied", [False, True])
def test_it_is_kept_and_read_back(tmp_path, tied):
    model = tiny(users=3, tied=tied)
    again = stored(model, tmp_path / "model")
    assert isinstance(again, TigerBackbone)
    assert again.config == model.config
    sids = torch.from_numpy(some_sids(1))
    with torch.no_grad():
        states = [held.eval().states(held.encode(read(held, some_sids(2))), sids).states for held in (model, again)]
        assert torch.equal(*states)
        assert torch.equal(model.logits(states[0]), again.logits(states[1]))
    assert (again.model.lm_head.weight is again.model.shared.weight) is tied


@pytest.mark.filterwarnings("ignore")  # of two tables; both are read
@pytest.mark.parametrize("changed", [{"tied": False}, {"tied": True}, {"causal": True}])
def test_plain_transformers_opens_it(tmp_path, changed):
    from transformers import AutoModelForSeq2SeqLM

    model = tiny(**changed)
    stored(model, tmp_path / "model")
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    assert plain.config.scale_decoder_outputs is model.config.tied
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, model.model.state_dict()[name]), name


def test_a_model_that_does_not_say_so_has_one_table(tmp_path):
    model = tiny(tied=True)
    stored(model, tmp_path / "model")
    described = model.describe()
    del described["config"]["tied"]
    again = read_backbone(open_artifact(tmp_path / "model", kind="model", schema=1), described)
    assert again.config == model.config
    assert again.output_scale == model.output_scale


def test_first_scores_are_of_order_one_whether_tables_are_tied_or_not():
    for tied in (False, True):
        model = tiny(tied=tied, width=256)
        states = torch.randn(3, len(SIZES), 256, generator=torch.Generator().manual_seed(0))
        assert 0.5 < float(model.vocabulary_logits(states).detach().std()) < 2.0


@pytest.mark.parametrize(
    "wrong", [{"layers": 0}, {"history": 0}, {"users": -1}, {"dropout": 1.0}, {"heads": 0}, {"feed": 0}]
)
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"tiger\.\w+ must be .*, got"):
        TigerConfig(**wrong)


class FakeIndex:
    """As much of an index as reading a history needs."""

    class Table:
        """Ids alone."""

    def __init__(self, ids, sids):
        self.table, self.sids = self.Table(), sids
        self.table.ids = ids


def test_histories_become_semantic_ids():
    import pyarrow as pa

    ids, sids = pa.array(["a", "b", "c"]), some_sids(3)
    look = sid_histories.__wrapped__ if hasattr(sid_histories, "__wrapped__") else sid_histories
    table = pa.table({"user": ["u"] * 4, "item": ["a", "b", "c", "a"], "time": range(4)})
    prefixes = leave_one_out(Histories.of_table(table).over(ids)[0], "test")
    assert isinstance(prefixes, Prefixes)
    fast = look(prefixes, FakeIndex(ids, sids))
    slow = look([History(("a", "b", "c"), "u")], FakeIndex(ids, sids))
    for held in (fast, slow):
        assert held.sids[held.begin[0] : held.end[0]].tolist() == sids.tolist()
        assert list(held.users) == ["u"]
    for wrong, said in ((History(()), "is empty"), (History(("z",)), "'z'")):
        with pytest.raises(DataError, match=said):
            look([wrong], FakeIndex(ids, sids))
    with pytest.raises(ConfigError, match="cannot read a text query"):
        look(["red kettle"], FakeIndex(ids, sids))
