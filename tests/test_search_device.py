"""Search off the CPU: every tensor of beam, trie and heads is on the device of the scores.

There is no GPU here. Fake tensors carry a device without memory on it, and an operation that mixes devices raises.
"""

from contextlib import nullcontext
from inspect import unwrap

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from restd.distill import HorizonHeads
from restd.models.contract import Memory
from restd.models.decode_protocol import Cache
from restd.search import KeptHeads, Retriever, beam
from restd.snapshot import Snapshot
from tests.models import tiny_compact
from tests.training import make_index, write_world

WIDTH, QUERIES = 6, 3
GPU = torch.device("lazy:0")
"""Stands for any other device: builds without CUDA cannot index fake tensors of the type `cuda`."""


# fake tensors and inference mode do not go together
beam_search = unwrap(beam.beam_search)


class FakeStepper:
    """Scores on the GPU, of no value."""

    def __init__(self, sizes):
        self.sizes = sizes

    def scores(self, beams):
        return torch.empty(QUERIES, beams, max(self.sizes), device=GPU)

    def start(self, memory):
        return self.scores(1), Cache((), (), None, first=torch.empty(QUERIES, 1, WIDTH, device=GPU))

    def step(self, cache, parents, codes):
        assert parents.device.type == codes.device.type == GPU.type
        return self.scores(parents.shape[1]), cache


@pytest.fixture(scope="module", params=["single_substitution", "suffix", "none"])
def snapshot(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    snapshot = Snapshot.load(make_index(data, folder / "index", policy=request.param))
    assert snapshot.index.trie.leaves  # built from real numbers
    return snapshot


@pytest.fixture
def gpu(monkeypatch):
    """Fake tensors; whether there are ties cannot be asked of them."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield monkeypatch


def is_tied(tied):
    return lambda at_edge, from_edge: tied


def memory():
    return Memory(torch.empty(QUERIES, 2, WIDTH, device=GPU), torch.ones(QUERIES, 2, dtype=torch.bool, device=GPU))


@pytest.fixture
def heads(snapshot):
    return KeptHeads.of(HorizonHeads(WIDTH, 8, horizon=3), torch.ones(3), snapshot)


def devices(trie):
    tensors = [tensor for depth in trie.depths for tensor in (depth.first_child, depth.codes, depth.bitmap)]
    return {tensor.device.type for tensor in (*tensors, trie.rows, trie.leaf_first) if tensor is not None}


def test_mixed_devices_would_be_noticed(snapshot, gpu):
    gpu.setattr(beam, "_is_tied", is_tied(False))
    with pytest.raises(RuntimeError, match="device"):
        beam_search(FakeStepper(snapshot.index.sizes), memory(), snapshot.index.trie, width=4)


@pytest.mark.parametrize("width", [4, [2, 5, 3]])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_beam_stays_where_its_scores_are(snapshot, gpu, width, normalized):
    gpu.setattr(beam, "_is_tied", is_tied(False))
    there = snapshot.on(GPU)
    assert devices(there.trie) == {"lazy"}
    levels = []
    beams = beam_search(
        FakeStepper(snapshot.index.sizes),
        memory(),
        there.trie,
        width=width,
        trie_normalized=normalized,
        watch=levels.append,
    )
    for tensor in (beams.sids, beams.scores, beams.leaves, *(level.kept for level in levels)):
        assert tensor.device.type == GPU.type
    assert beams.sids.shape == (QUERIES, 4 if width == 4 else 5, len(snapshot.index.sizes))


def test_a_retriever_searches_where_its_model_is(snapshot):
    model = tiny_compact(snapshot.index.sizes).to("meta")
    retriever = Retriever(model, snapshot)
    assert devices(retriever.snapshot.trie) == {"meta"}
    assert retriever.snapshot.points.device.type == "meta"
    assert devices(snapshot.trie) == {"cpu"}


def test_a_filtered_trie_is_on_the_device_too(snapshot):
    keep = np.zeros(len(snapshot), bool)
    keep[::3] = True
    restricted = snapshot.trie_of(keep)  # real numbers decide what is left of it
    with FakeTensorMode(allow_non_fake_inputs=True):
        there = snapshot.on(GPU)
        assert devices(there._placed(restricted)) == {"lazy"}
        nodes = there._placed(restricted).advance(0, torch.zeros(2, dtype=torch.int64, device=GPU), _codes())
        assert nodes.device.type == GPU.type


def _codes():
    return torch.ones(2, dtype=torch.int64, device=GPU)


def test_heads_stay_where_the_states_are(snapshot, heads, gpu):
    gpu.setattr(beam, "_is_tied", is_tied(False))
    gpu.setattr(torch, "autocast", lambda *words, **options: nullcontext())  # it knows real devices alone
    gpu.setattr("restd.search.heads.deepcopy", lambda module: module)  # fake weights can be moved or copied, not both
    there = snapshot.on(GPU)
    heads = heads.on(GPU)
    first = torch.empty(QUERIES, WIDTH, device=GPU)
    assert there.points.device.type == GPU.type
    assert unwrap(KeptHeads.nearness)(heads, first, there.points).device.type == GPU.type
    assert unwrap(KeptHeads.codes_ahead)(heads, first).device.type == GPU.type
    sids = torch.zeros(len(snapshot), len(snapshot.index.sizes), dtype=torch.int64, device=GPU)
    assert unwrap(KeptHeads.one_shot)(heads, first, sids).device.type == GPU.type
    completions = unwrap(KeptHeads.completions)(heads, first, there.trie, weight=0.5)
    assert {part.device.type for part in completions.best} == {"lazy"}
    stepper = FakeStepper(snapshot.index.sizes)
    beams = beam_search(stepper, memory(), there.trie, width=4, look_ahead=completions)
    assert beams.scores.device.type == GPU.type
