"""A retriever with its options fixed, as a ranker."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from restd.data import Query
from restd.models import CachedRoutes
from restd.search.options import SearchOptions
from restd.search.retriever import Retriever


@dataclass(frozen=True, slots=True, eq=False)
class RetrieverRanker:
    """Ranks with options that do not change; the beam is never wider than it is stated."""

    retriever: Retriever
    options: SearchOptions
    routes: CachedRoutes | None = None

    @property
    def snapshot_hash(self) -> str:
        """Hash of what is searched."""
        return self.retriever.snapshot_hash

    def rank(
        self, queries: Sequence[Query], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their scores, best first."""
        return self.retriever.rank(queries, k, options=self.options, routes=self.routes, widen=False)
