"""The frozen reference of a preference loss: weights on disk, which are in memory only while negatives are scored."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from restd.artifacts import create, open_artifact
from restd.models import Backbone
from restd.train.negatives import Negatives

if TYPE_CHECKING:
    from restd.train.loop import TrainingSet
    from restd.train.rank_objectives import CodeScores

FOLDER = KIND = "reference"
SCHEMA = 1
_QUERIES = 32
_ROWS = 256


def write_reference(folder: Path, backbone: Backbone) -> None:
    """Keep the weights that a run trains, as they are now."""
    weights = {name: weight for name, weight in backbone.named_parameters() if weight.requires_grad}
    with create(folder, kind=KIND, schema=SCHEMA, settings={}) as writer:
        writer.tensors("weights", {name: weight.detach().cpu().numpy() for name, weight in weights.items()})


@contextmanager
def reference_in_place(folder: Path, backbone: Backbone) -> Iterator[None]:
    """Have a backbone use the weights that were kept; its own are back afterwards, bit for bit."""
    artifact = open_artifact(folder, kind=KIND, schema=SCHEMA)
    weights = dict(backbone.named_parameters())
    kept = {name: torch.from_numpy(value) for name, value in artifact.tensors("weights").items()}
    own = {name: weights[name].detach().clone() for name in kept}
    try:
        _copy(kept, backbone)
        yield
    finally:
        _copy(own, backbone)


@torch.no_grad()
def _copy(values: dict[str, torch.Tensor], backbone: Backbone) -> None:
    for name, weight in backbone.named_parameters():
        if name in values:
            weight.copy_(values[name])


@torch.no_grad()
def with_log_probabilities(
    negatives: Negatives, backbone: Backbone, train: "TrainingSet", scores: "CodeScores", *, device: torch.device
) -> Negatives:
    """Score negatives and positives by their log-probabilities under a backbone in evaluation mode."""
    count = negatives.items.shape[1]
    known = negatives.items >= 0
    own_query = np.concatenate([np.repeat(negatives.queries, count)[known.ravel()], negatives.positive_query])
    own_item = np.concatenate([negatives.items[known], negatives.positive_item])
    values = np.zeros(len(own_query), np.float32)
    order = np.argsort(own_query, kind="stable")
    bounds = np.searchsorted(own_query[order], negatives.queries)
    for start in range(0, len(negatives.queries), _QUERIES):
        queries = negatives.queries[start : start + _QUERIES]
        end = bounds[start + _QUERIES] if start + _QUERIES < len(bounds) else len(order)
        memory = backbone.encode(train.texts.batch(queries).to(device))
        for begin in range(int(bounds[start]), int(end), _ROWS):
            rows = order[begin : min(begin + _ROWS, int(end))]
            place = torch.from_numpy(np.searchsorted(queries, own_query[rows])).to(device)
            sids = train.sids[torch.from_numpy(own_item[rows])].to(device)
            states = backbone.states(memory.take(place), sids).states
            values[rows] = scores(backbone, states, sids).sum(dim=-1).cpu().numpy()
    table = np.zeros(known.shape, np.float32)
    table[known] = values[: int(known.sum())]
    return negatives.scored(table, values[int(known.sum()) :])
