"""What ranks items without generating: the baselines a retriever must beat, and the parts of a hybrid search."""

from restd.rankers.bm25 import Bm25
from restd.rankers.bm25_stemmed import StemmedBm25
from restd.rankers.dense import Dense
from restd.rankers.fusion import fuse
from restd.rankers.hybrid import Hybrid
from restd.rankers.neighbours import CooccurrenceNeighbours, EmbeddingNeighbours
from restd.rankers.popularity import HistoryPopularity, Popularity
from restd.rankers.registry import (
    COMPANIONS,
    RANKERS,
    RankerContext,
    RankerEntry,
    RankerTask,
    decoding_of,
    find_ranker,
    make_companion,
    make_ranker,
    ranker_names,
    ranker_sections,
    refuse_unread_settings,
    split_name,
)
from restd.rankers.sasrec import SasRec, SasRecConfig
from restd.rankers.sasrec_training import train_sasrec
from restd.snapshot import Ranker

__all__ = [
    "COMPANIONS",
    "RANKERS",
    "Bm25",
    "CooccurrenceNeighbours",
    "Dense",
    "EmbeddingNeighbours",
    "HistoryPopularity",
    "Hybrid",
    "Popularity",
    "Ranker",
    "RankerContext",
    "RankerEntry",
    "RankerTask",
    "SasRec",
    "SasRecConfig",
    "StemmedBm25",
    "decoding_of",
    "find_ranker",
    "fuse",
    "make_companion",
    "make_ranker",
    "ranker_names",
    "ranker_sections",
    "refuse_unread_settings",
    "split_name",
    "train_sasrec",
]
