"""Neighbours: items like those of the history, by who took them together or by their embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64
from scipy.sparse import coo_array, csr_array

from restd.baselines.asked import ranked
from restd.data import Histories, Query, Runs
from restd.data.histories import trained_events
from restd.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, eq=False)
class CooccurrenceNeighbours:
    """Items that the same users took: cosines of items' columns in the matrix of who took what.

    Args:
        similar: cosine of every two items that share a user.
        ids: of the items.
        discount: weight of an item of the history relative to the one after it; 0 looks at the latest alone.
        seen: whether items of the history may be recommended again; by default not, as an item is its own nearest
            neighbour.
    """

    similar: Any
    ids: pa.StringArray
    discount: float = 1.0
    seen: bool = False

    def __post_init__(self) -> None:
        _refuse_discount(self.discount)

    @classmethod
    def of(
        cls, histories: Histories, *, shrinkage: float = 0.0, discount: float = 1.0, seen: bool = False
    ) -> "CooccurrenceNeighbours":
        """Compare the items of histories over an index, by their training events alone.

        The cosine is users in common / (√(users of one × users of the other) + shrinkage): the more shrinkage, the
        less is believed of items that few took.
        """
        if not shrinkage >= 0:
            raise ConfigError(f"shrinkage = {shrinkage} cannot be used; wanted at least 0.")
        trained, items = trained_events(histories), len(histories.items)
        pairs = np.unique(histories.user[trained] * items + histories.taken[trained])  # however often it was taken
        took = csr_array((np.ones(len(pairs)), np.divmod(pairs, items)), shape=(len(histories), items))
        common = (took.T @ took).tocoo()
        length = np.sqrt(common.diagonal())
        one, other = common.coords
        cosines = common.data / (length[one] * length[other] + shrinkage)
        return cls(coo_array((cosines, (one, other)), shape=common.shape).tocsr(), histories.items, discount, seen)

    def rank(
        self, queries: Sequence[Query], k: int
    ) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their summed cosines, best first; -1 where fewer share a user with the history."""
        return ranked(Runs.asked(queries, self.ids), k, self._scores, seen=self.seen)

    def _scores(self, runs: Runs) -> Float[np.ndarray, "run item"]:
        found = (_weights(runs, len(self.ids), self.discount) @ self.similar).toarray()
        return np.where(found > 0, found, -np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingNeighbours:
    """Items whose embeddings are near those of the history's items.

    Args:
        vectors: of the items, of unit length.
        ids: of the items.
        discount: weight of an item of the history relative to the one after it; 0 looks at the latest alone.
        seen: whether items of the history may be recommended again; by default not, as an item is its own nearest
            neighbour.
    """

    vectors: Float[np.ndarray, "item dim"]
    ids: pa.StringArray
    discount: float = 1.0
    seen: bool = False

    def __post_init__(self) -> None:
        _refuse_discount(self.discount)

    @classmethod
    def of(
        cls, vectors: Float[np.ndarray, "_ dim"], ids: pa.StringArray, *, discount: float = 1.0, seen: bool = False
    ) -> "EmbeddingNeighbours":
        """Take the embeddings of an index's items, row for row; they are scaled to unit length."""
        if len(vectors) != len(ids):
            raise DataError(f"{len(vectors):,} vectors were given for {len(ids):,} items; wanted one each.")
        held = np.asarray(vectors, np.float32)
        if not np.isfinite(held).all():
            raise DataError("Some vectors hold values that are no numbers; encode those items again.")
        unit = held / np.maximum(np.linalg.norm(held, axis=1, keepdims=True), 1e-12)
        return cls(unit, ids, discount, seen)

    def rank(
        self, queries: Sequence[Query], k: int
    ) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the nearest items and their summed cosines, best first."""
        return ranked(Runs.asked(queries, self.ids), k, self._scores, seen=self.seen)

    def _scores(self, runs: Runs) -> Float[np.ndarray, "run item"]:
        wanted = _weights(runs, len(self.ids), self.discount) @ self.vectors  # the sum of cosines, as sums commute
        return wanted.astype(np.float32) @ self.vectors.T


def _weights(runs: Runs, items: int, discount: float) -> Any:
    """How much each item of a run counts: 1 for the latest, and less before."""
    behind = np.repeat(runs.count, runs.count) - 1 - runs.places
    return coo_array((discount**behind, (runs.owner, runs.flat)), shape=(len(runs), items)).tocsr()


def _refuse_discount(discount: float) -> None:
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount = {discount} cannot be used; wanted a number from 0 to 1.")
