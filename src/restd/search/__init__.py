"""Search: only items that exist, exact scores where requested, explanations."""

from restd.search.beam import Beams, Level, beam_search, exact_rank, exact_scores
from restd.search.explain import Explanation, LevelTrace
from restd.search.heads import KeptHeads
from restd.search.options import BEAMS, HEAD_MODES, HeadUse, SearchKeywords, SearchOptions
from restd.search.ranker import RetrieverRanker
from restd.search.results import Hit
from restd.search.retriever import Retriever

__all__ = [
    "BEAMS",
    "HEAD_MODES",
    "Beams",
    "Explanation",
    "HeadUse",
    "Hit",
    "KeptHeads",
    "Level",
    "LevelTrace",
    "Retriever",
    "RetrieverRanker",
    "SearchKeywords",
    "SearchOptions",
    "beam_search",
    "exact_rank",
    "exact_scores",
]
