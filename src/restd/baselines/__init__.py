"""What a retriever must beat."""

from restd.baselines.bm25 import Bm25
from restd.baselines.dense import Dense
from restd.baselines.hybrid import Hybrid
from restd.baselines.named import BASELINES, DECODING, Place, baseline_named, refuse_unknown
from restd.baselines.popularity import Popularity

__all__ = [
    "BASELINES",
    "DECODING",
    "Bm25",
    "Dense",
    "Hybrid",
    "Place",
    "Popularity",
    "baseline_named",
    "refuse_unknown",
]
