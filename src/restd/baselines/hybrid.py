"""Several rankers as one, by reciprocal rank fusion."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from restd.search.fusion import Ranker, fuse

_DEPTH = 100


@dataclass(frozen=True, slots=True, eq=False)
class Hybrid:
    """Fuses the lists of rankers over the same items; each list is at least a hundred deep."""

    rankers: tuple[Ranker, ...]

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their fused scores, best first; -1 where the lists have fewer."""
        return fuse([ranker.rank(queries, max(k, _DEPTH))[0] for ranker in self.rankers], k)
