"""Hard negatives of training queries, and the function that finds them: training itself cannot search."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.models import Backbone

if TYPE_CHECKING:
    from restd.train.loop import TrainingSet


@dataclass(frozen=True, slots=True, eq=False)
class Negatives:
    """Negatives of some training queries, with their positives; queries are numbers of the training pairs' texts."""

    queries: Int64[np.ndarray, "query"]
    """In ascending order."""
    items: Int64[np.ndarray, "query negative"]
    """Rows of the index, best-ranked first; -1 behind the last one of a query that has fewer."""
    positive_query: Int64[np.ndarray, "positive"]
    """In ascending order, and the items of a query too."""
    positive_item: Int64[np.ndarray, "positive"]
    scores: Float[np.ndarray, "query negative"] | None = None
    """Of a teacher, or the log-probabilities of a reference; None where neither is needed."""
    positive_scores: Float[np.ndarray, "positive"] | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything by name, as a checkpoint keeps it."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {name: values for name, values in named.items() if values is not None}

    def scored(
        self, scores: Float[np.ndarray, "query negative"], positive_scores: Float[np.ndarray, "positive"]
    ) -> "Negatives":
        """The same with scores."""
        return replace(self, scores=scores.astype(np.float32), positive_scores=positive_scores.astype(np.float32))


@runtime_checkable
class Refresh(Protocol):
    """Finds the negatives of a model in evaluation mode; `restd.evaluate.beam_negatives` makes one."""

    def __call__(self, backbone: Backbone, train: "TrainingSet", *, number: int) -> Negatives:
        """Negatives of the queries of a training set; the search is the run's `number`-th, counted from 0."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class NegativeTable:
    """Negatives as a loss looks them up, on its device."""

    place: Int64[Tensor, "text"]
    """Row of each text among the queries, -1 for one that has no negatives."""
    items: Int64[Tensor, "query negative"]
    counts: Int64[Tensor, "query"]
    scores: Float[Tensor, "query negative"] | None
    keys: Int64[Tensor, "positive"]
    positive_scores: Float[Tensor, "positive"] | None
    catalogue: int

    @classmethod
    def of(cls, negatives: Negatives, *, texts: int, items: int, device: torch.device) -> "NegativeTable":
        """Arrange the negatives of a training set with this many texts, over this many items."""
        counts = (negatives.items >= 0).sum(axis=1)
        place = np.full(texts, -1, np.int64)
        place[negatives.queries] = np.where(counts > 0, np.arange(len(counts)), -1)
        keys = negatives.positive_query * items + negatives.positive_item

        def moved(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        scores, positive_scores = (
            None if array is None else moved(array) for array in (negatives.scores, negatives.positive_scores)
        )
        return cls(moved(place), moved(negatives.items), moved(counts), scores, moved(keys), positive_scores, items)

    def draw(
        self, queries: Int64[Tensor, "pair"], count: int, *, best_first: bool
    ) -> tuple[Int64[Tensor, "pair {count}"], Float[Tensor, "pair {count}"] | None]:
        """Negatives of queries that have some, each drawn on its own, and their scores.

        Args:
            queries: numbers of texts.
            count: negatives for each.
            best_first: whether the first of them is the best-ranked one instead.
        """
        rows = self.place[queries]
        drawn = torch.rand(len(rows), count, device=rows.device) * self.counts[rows][:, None]
        column = drawn.long().clamp_max(self.items.shape[1] - 1)
        if best_first:
            column[:, 0] = 0
        scores = None if self.scores is None else self.scores[rows[:, None], column]
        return self.items[rows[:, None], column], scores

    def scores_of(self, queries: Int64[Tensor, "pair"], items: Int64[Tensor, "pair"]) -> Float[Tensor, "pair"] | None:
        """Scores of the queries' positives."""
        if self.positive_scores is None:
            return None
        return self.positive_scores[torch.searchsorted(self.keys, queries * self.catalogue + items)]
