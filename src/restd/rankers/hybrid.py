"""Several rankers as one, by reciprocal rank fusion."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from restd.errors import ConfigError
from restd.rankers.bm25 import Bm25
from restd.rankers.dense import Dense
from restd.rankers.fusion import DAMPING, fuse
from restd.rankers.registry import RANKERS, RankerContext, RankerEntry, RankerTask
from restd.snapshot import Ranker, refuse_foreign

_DEPTH = 100


@dataclass(frozen=True, slots=True, eq=False)
class Hybrid:
    """Fuses the lists of rankers over the same items; each list is at least a hundred deep."""

    rankers: tuple[Ranker, ...]

    def __post_init__(self) -> None:
        if not self.rankers:
            raise ConfigError("A hybrid fuses the lists of other rankers; give at least one.")
        for ranker in self.rankers[1:]:
            refuse_foreign(
                f"{type(ranker).__name__}, one of the rankers to fuse,",
                ranker.snapshot_hash,
                self.snapshot_hash,
                remedy="Fuse rankers of one snapshot.",
            )

    @property
    def snapshot_hash(self) -> str:
        """Hash of the snapshot that all of them rank."""
        return self.rankers[0].snapshot_hash

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their fused scores, best first; -1 where the lists have fewer."""
        return fuse([ranker.rank(queries, max(k, _DEPTH))[0] for ranker in self.rankers], k)


def _bm25_and_dense(context: RankerContext) -> Hybrid:
    return Hybrid((Bm25.of(context.with_texts()), Dense.of(context.snapshot, context.embeddings())))


RANKERS.add(
    RankerEntry(
        "hybrid",
        "BM25 and dense search, fused by reciprocal ranks.",
        {
            "search": RankerTask(
                _bm25_and_dense,
                {"search": f"reciprocal rank fusion of bm25 and dense, damping {DAMPING:g}"},
            )
        },
        source="Cormack et al. 2009 (reciprocal rank fusion)",
    )
)
