"""Aligned embeddings: linear maps of items and queries, trained so that a query lies near its items.

An encoder that never saw the catalogue keeps what makes texts alike; a projection to a few dimensions keeps what makes
items differ. Neither is what makes an item the answer to a query. Two linear maps, one for each side, started from the
items' principal axes and trained for seconds by in-batch contrast, keep that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from restd.progress import progress
from restd.quantize.align_settings import AlignConfig
from restd.quantize.known_pairs import KnownPairs, pull_towards
from restd.quantize.quantizer import refuse_identical, unit_length

_DEPTH = 10
_PREFIX = "align_"


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """Maps of embeddings into a space where inner products say how well an item answers a query."""

    item_map: Float[np.ndarray, "dim input"]
    item_shift: Float[np.ndarray, "dim"]
    query_map: Float[np.ndarray, "dim input"]
    query_shift: Float[np.ndarray, "dim"]

    @property
    def input_dim(self) -> int:
        """Width of the embeddings it reads."""
        return self.item_map.shape[1]

    def items(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "item dim"]:
        """Map item embeddings; the results have length one."""
        return unit_length(unit_length(vectors) @ self.item_map.T + self.item_shift)

    def queries(self, vectors: Float[np.ndarray, "query input"]) -> Float[np.ndarray, "query dim"]:
        """Map query embeddings; the results have length one."""
        return unit_length(unit_length(vectors) @ self.query_map.T + self.query_shift)

    def tensors(self) -> dict[str, np.ndarray]:
        """All that was learned, by names that no quantiser uses."""
        names = ("item_map", "item_shift", "query_map", "query_shift")
        return {f"{_PREFIX}{name}": getattr(self, name) for name in names}

    @classmethod
    def of_tensors(cls, arrays: Mapping[str, np.ndarray]) -> "Alignment | None":
        """Restore what `tensors` gave; None where there is no alignment among the arrays."""
        own = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
        return cls(**own) if own else None


@dataclass(frozen=True, slots=True, eq=False)
class QueryPairs:
    """Embeddings of queries, and which items answer them.

    Args:
        vectors: one row per query.
        query: row of each pair's query.
        item: row of each pair's item.
        grade: how well each item answers, where that is known.
    """

    vectors: Float[np.ndarray, "query input"]
    query: Int64[np.ndarray, "pair"]
    item: Int64[np.ndarray, "pair"]
    grade: Float[np.ndarray, "pair"] | None = None

    def within(self, rows: Int64[np.ndarray, "row"]) -> "QueryPairs":
        """Pairs of some items only, named by their place among `rows`, which must be ascending."""
        known = np.isin(self.item, rows)
        grade = None if self.grade is None else self.grade[known]
        return QueryPairs(self.vectors, self.query[known], np.searchsorted(rows, self.item[known]), grade)


class Fitted(NamedTuple):
    """An alignment, and how good it was on validation queries before training and after each epoch."""

    alignment: Alignment
    history: tuple[float, ...]


def principal_alignment(items: Float[np.ndarray, "item input"], dim: int) -> Alignment:
    """The maps that training starts from: both sides on the items' principal axes, at most as many as there are.

    >>> points = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    >>> start = principal_alignment(points, 3)
    >>> bool(np.allclose(start.items(points), start.queries(points)))
    True
    """
    from restd.quantize.kmeans_fit import principal_axes

    prepared = unit_length(items)
    refuse_identical(prepared)
    mean = prepared.mean(axis=0, dtype=np.float64).astype(np.float32)
    axes = principal_axes(prepared - mean, min(dim, prepared.shape[1]))
    shift = -axes @ mean
    return Alignment(axes, shift, axes.copy(), shift.copy())


def fit_alignment(
    items: Float[np.ndarray, "item input"],
    train: QueryPairs,
    valid: QueryPairs,
    config: AlignConfig,
    *,
    dim: int,
) -> Fitted:
    """Train both maps by in-batch contrast, and keep those of the best validation.

    An item of the batch that also answers a query is not one of its negatives. Validation ranks all items for the
    validation queries; the first maps compete too, so that the result is never worse on them than PCA.

    Args:
        items: embeddings of all items.
        train: pairs to learn from.
        valid: pairs to stop by.
        config: how to train.
        dim: width of the aligned space.
    """
    start = principal_alignment(items, dim)
    inputs = torch.from_numpy(unit_length(items))
    queries = torch.from_numpy(unit_length(train.vectors))
    sides = [torch.from_numpy(array.copy()).requires_grad_() for array in start.tensors().values()]
    first = [side.detach().clone() for side in sides]
    generator = torch.Generator().manual_seed(config.seed)
    pairs = torch.from_numpy(np.stack([train.query, train.item], axis=1))
    known = KnownPairs.of(train.query, train.item, items=len(items))
    updates = max(1, len(pairs) // config.batch) * config.epochs
    optimiser = torch.optim.AdamW(sides, lr=config.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    best, history = start, [reciprocal_rank(start, items, valid)]
    with progress("Aligning", total=config.epochs) as advance:
        for _ in range(config.epochs):
            order = torch.randperm(len(pairs), generator=generator)
            for chunk in order.split(config.batch)[: max(1, len(pairs) // config.batch)]:
                query, item = pairs[chunk].T
                also = known.others(query, item)
                loss = _contrast(queries[query], inputs[item], sides, temperature=config.temperature, mask=also)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                pull_towards(sides, first, config.weight_decay * float(schedule.get_last_lr()[0]))
                schedule.step()
            current = Alignment(*(side.detach().numpy().copy() for side in sides))
            history.append(reciprocal_rank(current, items, valid))
            advance(1, validation=history[-1])
            if history[-1] > max(history[:-1]):
                best = current
            if len(history) - 1 - int(np.argmax(history)) >= config.patience:
                break
    return Fitted(best, tuple(history))


def reciprocal_rank(alignment: Alignment, items: Float[np.ndarray, "item input"], pairs: QueryPairs) -> float:
    """Mean reciprocal rank of each query's best item among the ten nearest of all items; 0 beyond them."""
    return mean_reciprocal_rank(alignment.queries(pairs.vectors) @ alignment.items(items).T, pairs)


def mean_reciprocal_rank(scores: Float[np.ndarray, "query item"], pairs: QueryPairs) -> float:
    """Mean over queries of 1 / rank of the best relevant item, 0 beyond the tenth; ties count against the item.

    >>> pairs = QueryPairs(np.zeros((2, 1), np.float32), np.array([0, 1]), np.array([2, 0]))
    >>> mean_reciprocal_rank(np.array([[0.1, 0.3, 0.2], [0.9, 0.1, 0.2]]), pairs)
    0.75
    """
    best = np.full(len(pairs.vectors), -np.inf)
    np.maximum.at(best, pairs.query, scores[pairs.query, pairs.item])
    own = np.zeros(len(best), np.int64)
    np.add.at(own, pairs.query, scores[pairs.query, pairs.item] >= best[pairs.query])
    ranks = (scores >= best[:, None]).sum(axis=1) - own + 1
    return float(np.where((ranks <= _DEPTH) & np.isfinite(best), 1.0 / ranks, 0.0).mean())


def _contrast(
    queries: Float[Tensor, "pair input"],
    items: Float[Tensor, "pair input"],
    sides: list[Tensor],
    *,
    temperature: float,
    mask: Bool[Tensor, "pair pair"],
) -> Float[Tensor, ""]:
    """Cross-entropy of each pair among the batch, from queries to items and from items to queries."""
    item_map, item_shift, query_map, query_shift = sides
    asked = functional.normalize(queries @ query_map.T + query_shift, dim=-1)
    offered = functional.normalize(items @ item_map.T + item_shift, dim=-1)
    scores = (asked @ offered.T / temperature).masked_fill(mask, -torch.inf)
    own = torch.arange(len(scores))
    return (functional.cross_entropy(scores, own) + functional.cross_entropy(scores.T, own)) / 2
