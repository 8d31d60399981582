"""What a retriever must beat."""

from restd.baselines.bm25 import Bm25
from restd.baselines.dense import Dense
from restd.baselines.hybrid import Hybrid
from restd.baselines.named import BASELINES, Place, baseline_named, decoding_of, refuse_unknown
from restd.baselines.neighbours import CooccurrenceNeighbours, EmbeddingNeighbours
from restd.baselines.popularity import Popularity
from restd.baselines.sasrec import SasRec, SasRecConfig
from restd.baselines.sasrec_training import train_sasrec
from restd.baselines.taken import TakenPopularity

__all__ = [
    "BASELINES",
    "Bm25",
    "CooccurrenceNeighbours",
    "Dense",
    "EmbeddingNeighbours",
    "Hybrid",
    "Place",
    "Popularity",
    "SasRec",
    "SasRecConfig",
    "TakenPopularity",
    "baseline_named",
    "decoding_of",
    "refuse_unknown",
    "train_sasrec",
]
