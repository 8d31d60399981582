"""Neighbours: items like those of the history, by who took them together or by their embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64
from scipy.sparse import coo_array, csr_array

from restd.data import EventSpans, Histories, Query, leave_one_out
from restd.data.histories import training_events
from restd.encode import Embeddings
from restd.errors import ConfigError, DataError
from restd.rankers.dense import unit
from restd.rankers.registry import (
    RANKERS,
    RankerContext,
    RankerEntry,
    RankerTask,
    refuse_foreign_embeddings,
    refuse_foreign_histories,
)
from restd.rankers.top_k import rank_by_scores
from restd.snapshot import Ranker, Snapshot

_DISCOUNTS = (1.0, 0.85, 0.7, 0.5)
"""Weights of an item of the history relative to the one after it; the best is chosen on validation."""
_DEPTH = 10


@dataclass(frozen=True, slots=True, eq=False)
class CooccurrenceNeighbours:
    """Items that the same users took: cosines of items' columns in the matrix of who took what.

    Args:
        cosines: of every two items that share a user.
        ids: of the items.
        snapshot_hash: of the snapshot whose items they are.
        discount: weight of an item of the history relative to the one after it; 0 looks at the latest alone.
        seen: whether items of the history may be recommended again; by default not, as an item is its own nearest
            neighbour.
    """

    cosines: Any
    ids: pa.StringArray
    snapshot_hash: str
    discount: float = 1.0
    seen: bool = False

    def __post_init__(self) -> None:
        _refuse_bad_discount(self.discount)

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        histories: Histories,
        *,
        shrinkage: float = 0.0,
        discount: float = 1.0,
        seen: bool = False,
    ) -> "CooccurrenceNeighbours":
        """Compare the items of histories over a snapshot, by their training events alone.

        The cosine is users in common / (√(users of one × users of the other) + shrinkage): the larger the shrinkage,
        the less items that few users took count as alike.
        """
        if not shrinkage >= 0:
            raise ConfigError(f"shrinkage = {shrinkage}: expected at least 0.")
        refuse_foreign_histories(histories, snapshot)
        trained, items = training_events(histories), len(histories.items)
        pairs = np.unique(histories.user[trained] * items + histories.event_items[trained])  # repeats count once
        took = csr_array((np.ones(len(pairs)), np.divmod(pairs, items)), shape=(len(histories), items))
        common = (took.T @ took).tocoo()
        length = np.sqrt(common.diagonal())
        one, other = common.coords
        values = common.data / (length[one] * length[other] + shrinkage)
        cosines = coo_array((values, (one, other)), shape=common.shape).tocsr()
        return cls(cosines, snapshot.ids, snapshot.hash, discount, seen)

    def rank(
        self, queries: Sequence[Query], k: int
    ) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their summed cosines, best first; -1 where fewer share a user with the history."""
        return rank_by_scores(EventSpans.of_queries(queries, self.ids), k, self._scores, seen=self.seen)

    def _scores(self, spans: EventSpans) -> Float[np.ndarray, "run item"]:
        scores = (_weights(spans, len(self.ids), self.discount) @ self.cosines).toarray()
        return np.where(scores > 0, scores, -np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingNeighbours:
    """Items whose embeddings are near those of the history's items.

    Args:
        vectors: of the items, of unit length.
        ids: of the items.
        snapshot_hash: of the snapshot whose items they are.
        discount: weight of an item of the history relative to the one after it; 0 looks at the latest alone.
        seen: whether items of the history may be recommended again; by default not, as an item is its own nearest
            neighbour.
    """

    vectors: Float[np.ndarray, "item dim"]
    ids: pa.StringArray
    snapshot_hash: str
    discount: float = 1.0
    seen: bool = False

    def __post_init__(self) -> None:
        _refuse_bad_discount(self.discount)
        if len(self.vectors) != len(self.ids):
            raise DataError(f"{len(self.vectors):,} vectors were given for {len(self.ids):,} items; expected one each.")
        if not np.isfinite(self.vectors).all():
            raise DataError("Some vectors contain NaN or infinity; encode those items again.")

    @classmethod
    def of(
        cls, snapshot: Snapshot, embeddings: Embeddings, *, discount: float = 1.0, seen: bool = False
    ) -> "EmbeddingNeighbours":
        """Take the embeddings of a snapshot's items; they are scaled to unit length."""
        refuse_foreign_embeddings(embeddings, snapshot)
        vectors = np.concatenate([unit(batch) for batch in embeddings.batches()])
        return cls(vectors, snapshot.ids, snapshot.hash, discount, seen)

    def rank(
        self, queries: Sequence[Query], k: int
    ) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the nearest items and their summed cosines, best first."""
        return rank_by_scores(EventSpans.of_queries(queries, self.ids), k, self._scores, seen=self.seen)

    def _scores(self, spans: EventSpans) -> Float[np.ndarray, "run item"]:
        wish = _weights(spans, len(self.ids), self.discount) @ self.vectors  # the sum of cosines, as sums commute
        return wish.astype(np.float32) @ self.vectors.T


def _weights(spans: EventSpans, items: int, discount: float) -> Any:
    """How much each item of a history counts: 1 for the latest, and less before."""
    behind = np.repeat(spans.count, spans.count) - 1 - spans.positions
    return coo_array((discount**behind, (spans.owner, spans.flat)), shape=(len(spans), items)).tocsr()


def _refuse_bad_discount(discount: float) -> None:
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount = {discount}: expected a number from 0 to 1.")


Neighbours = TypeVar("Neighbours", CooccurrenceNeighbours, EmbeddingNeighbours)


def _with_best_discount(neighbours: Neighbours, histories: Histories) -> Neighbours:
    """The same neighbours with the discount that validates best, by NDCG@10."""
    valid = leave_one_out(histories, "valid")

    def gain(ranker: Ranker) -> float:
        rows, _ = ranker.rank(valid, _DEPTH)
        return float(((rows == valid.targets[:, None]) / np.log2(np.arange(_DEPTH) + 2)).sum())

    return max((replace(neighbours, discount=discount) for discount in _DISCOUNTS), key=gain)


def _cooccurrence(context: RankerContext) -> Ranker:
    histories = context.histories()
    return _with_best_discount(CooccurrenceNeighbours.of(context.snapshot, histories), histories)


def _by_embedding(context: RankerContext) -> Ranker:
    neighbours = EmbeddingNeighbours.of(context.snapshot, context.embeddings())
    return _with_best_discount(neighbours, context.histories())


_DISCOUNTED = f"summed with a discount of {' or '.join(f'{value:g}' for value in _DISCOUNTS)}"
RANKERS.add(
    RankerEntry(
        "co-occurrence",
        "Items that were taken by the same users as those of the history.",
        {
            "recommend": RankerTask(
                _cooccurrence,
                {"search": "all items scored", "parameters": f"cosines of who took them, {_DISCOUNTED}"},
                seen="never",
            )
        },
        source="Sarwar et al. 2001 (item-based collaborative filtering)",
    )
)
RANKERS.add(
    RankerEntry(
        "neighbours",
        "Items whose embeddings are near those of the history.",
        {
            "recommend": RankerTask(
                _by_embedding,
                {"search": "all items scored", "parameters": f"cosines of embeddings, {_DISCOUNTED}"},
                seen="never",
            )
        },
    )
)
