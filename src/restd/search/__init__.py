"""Search: only items that exist, exact scores where requested, explanations."""

from restd.search.beam import Beams, Level, beam_search, exact_rank, exact_scores
from restd.search.beam_tree import BeamLevel, BeamNode, BeamTree
from restd.search.candidate_scores import sid_scores
from restd.search.candidates import CandidateTable
from restd.search.contributions import PartScore
from restd.search.explain import Explanation
from restd.search.fusion import Fusion
from restd.search.heads import KeptHeads
from restd.search.options import BEAMS, HEAD_MODES, HeadUse, SearchKeywords, SearchOptions
from restd.search.ranker import RetrieverRanker
from restd.search.results import Hit
from restd.search.retriever import Retriever
from restd.search.trace import LevelTrace

__all__ = [
    "BEAMS",
    "HEAD_MODES",
    "BeamLevel",
    "BeamNode",
    "BeamTree",
    "Beams",
    "CandidateTable",
    "Explanation",
    "Fusion",
    "HeadUse",
    "Hit",
    "KeptHeads",
    "Level",
    "LevelTrace",
    "PartScore",
    "Retriever",
    "RetrieverRanker",
    "SearchKeywords",
    "SearchOptions",
    "beam_search",
    "exact_rank",
    "exact_scores",
    "sid_scores",
]
