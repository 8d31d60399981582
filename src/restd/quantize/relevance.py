"""Items that answer the same queries: partners to draw close, and triplets to keep apart by grade."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.quantize.alignment import QueryPairs

_BEST = 3.0
"""The best grade, as the weights 1 / (4 - grade) of MERGE count: 3, 2, 1."""


class Partners(NamedTuple):
    """Items of a batch with another that answers one of their queries."""

    place: Int64[Tensor, "pair"]
    """Of the item in the batch."""
    partner: Int64[Tensor, "pair"]
    """Row of the other item."""


class Triplets(NamedTuple):
    """Rows of two items of the same grade for a query, and of one with a lower grade."""

    anchor: Int64[Tensor, "triplet"]
    alike: Int64[Tensor, "triplet"]
    worse: Int64[Tensor, "triplet"]


@dataclass(frozen=True, slots=True, eq=False)
class SharedQueries:
    """Training pairs in an order that draws come from: by query, the best grades first.

    >>> pairs = QueryPairs(np.ones((1, 2)), np.zeros(3, np.int64), np.array([4, 2, 7]), np.array([1.0, 3.0, 3.0]))
    >>> shared = SharedQueries.of(pairs, items=8)
    >>> shared.item.tolist(), shared.grade.round(1).tolist()
    ([2, 7, 4], [3.0, 3.0, 1.0])
    >>> [int(part) for part in shared.triplets(1, torch.Generator().manual_seed(0)).worse]
    [4]
    """

    query: Int64[np.ndarray, "pair"]
    item: Int64[np.ndarray, "pair"]
    grade: Float[np.ndarray, "pair"]
    """Scaled so that the best of all is 3."""
    first: Int64[np.ndarray, "query_plus_one"]
    """Where each query's pairs begin."""
    of_item: tuple[Int64[np.ndarray, "shared_pair"], Int64[np.ndarray, "item_plus_one"]]
    """Pairs by item, and where each item's begin; only pairs of queries with at least two items."""
    groups: Int64[np.ndarray, "group 3"]
    """Begin and end of each run of at least two equal grades, and the end of its query: between them are worse ones."""
    incidence: Any
    """Sparse [item, query]: which items share a query is one product."""

    @classmethod
    def of(cls, pairs: QueryPairs, *, items: int) -> "SharedQueries":
        """Sort the pairs of a fit; without grades all are equal."""
        from scipy.sparse import csr_array

        grade = np.ones(len(pairs.item)) if pairs.grade is None else np.asarray(pairs.grade, np.float64)
        grade = grade * (_BEST / max(float(grade.max(initial=0.0)), 1e-12))
        order = np.lexsort((pairs.item, -grade, pairs.query))
        query, item, grade = pairs.query[order], pairs.item[order], grade[order]
        queries = len(pairs.vectors)
        first = np.searchsorted(query, np.arange(queries + 1))
        several = np.flatnonzero(np.diff(first)[query] > 1)
        by_item = several[np.argsort(item[several], kind="stable")]
        starts = np.searchsorted(item[by_item], np.arange(items + 1))
        new = np.concatenate([[True], (np.diff(query) > 0) | (np.diff(grade) < 0)])[: len(query)]
        begin = np.flatnonzero(new)
        end = np.append(begin[1:], len(query))
        groups = np.stack([begin, end, first[query[begin] + 1]], axis=1).reshape(-1, 3)
        groups = groups[(end - begin > 1) & (end < groups[:, 2])]
        incidence = csr_array((np.ones(len(item), np.float32), (item, query)), shape=(items, queries))
        return cls(query, item, grade, first, (by_item, starts), groups, incidence)

    def partners(self, rows: Int64[Tensor, "item"], generator: torch.Generator) -> Partners:
        """For each item of the batch that shares a query, one item that it shares it with."""
        by_item, starts = self.of_item
        batch = rows.numpy()
        place = np.flatnonzero(starts[batch + 1] > starts[batch])
        begin, end = starts[batch[place]], starts[batch[place] + 1]
        pair = by_item[begin + _draw(end - begin, generator)]
        start, stop = self.first[self.query[pair]], self.first[self.query[pair] + 1]
        other = start + (pair - start + 1 + _draw(stop - start - 1, generator)) % (stop - start)  # any but itself
        return Partners(torch.from_numpy(place), torch.from_numpy(self.item[other]))

    def answered(self, rows: Int64[Tensor, "item"], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """For each item of the batch that answers a query: its place, one of its queries, and the grade."""
        batch = rows.numpy()
        starts = self.incidence.indptr
        place = np.flatnonzero(starts[batch + 1] > starts[batch])
        begin, end = starts[batch[place]], starts[batch[place] + 1]
        query = self.incidence.indices[begin + _draw(end - begin, generator)].astype(np.int64)
        return torch.from_numpy(place), torch.from_numpy(query), self._grades(batch[place], query)

    def triplets(self, count: int, generator: torch.Generator) -> Triplets:
        """Draw triplets; none where no query has two items of one grade and one of a lower grade."""
        if not len(self.groups):
            none = torch.zeros(0, dtype=torch.int64)
            return Triplets(none, none, none)
        chosen = torch.randint(len(self.groups), (count,), generator=generator).numpy()
        begin, end, last = self.groups[chosen].T
        one = _draw(end - begin, generator)
        other = (one + 1 + _draw(end - begin - 1, generator)) % (end - begin)
        worse = end + _draw(last - end, generator)
        return Triplets(*(torch.from_numpy(self.item[place]) for place in (begin + one, begin + other, worse)))

    def shared(self, rows: Int64[Tensor, "row"], others: Int64[Tensor, "other"]) -> Bool[Tensor, "row other"]:
        """Whether items answer a query together, or are the same."""
        together = (self.incidence[rows.numpy()] @ self.incidence[others.numpy()].T).toarray() > 0
        return torch.from_numpy(together) | (rows[:, None] == others)

    def best_mean(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "query input"]:
        """Mean vector of each query's best-graded items; zero for a query without any."""
        from scipy.sparse import csr_array

        best = self.grade == self.grade[self.first[self.query]]  # a query's best grade comes first
        queries = len(self.first) - 1
        chosen = csr_array((np.ones(int(best.sum())), (self.query[best], self.item[best])), (queries, len(vectors)))
        counts = np.maximum(np.asarray(chosen.sum(axis=1)).reshape(-1, 1), 1)
        return np.asarray((chosen @ vectors) / counts, np.float32)

    def _grades(self, item: np.ndarray, query: np.ndarray) -> Float[Tensor, "pair"]:
        keys = self.query * self.incidence.shape[0] + self.item
        order = np.argsort(keys, kind="stable")
        place = order[np.searchsorted(keys, query * self.incidence.shape[0] + item, sorter=order)]
        return torch.from_numpy(self.grade[place].astype(np.float32))


def _draw(below: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """A number from 0 to below - 1 for each entry."""
    uniform = torch.rand(len(below), generator=generator, dtype=torch.float64).numpy()
    return np.minimum((uniform * below).astype(np.int64), np.maximum(below - 1, 0))
