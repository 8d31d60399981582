"""Search: only items that exist, exact scores where requested, explanations.

Names are imported when first used: a client of a service uses options and answers, and loads no model.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from restd.search.answers import Explanation, Hit, LevelTrace, PartScore
    from restd.search.beam import Beams, Level, beam_search, exact_rank, exact_scores
    from restd.search.beam_tree import BeamLevel, BeamNode, BeamTree
    from restd.search.candidate_scores import sid_scores
    from restd.search.candidates import CandidateTable
    from restd.search.fusion import Fusion
    from restd.search.heads import KeptHeads
    from restd.search.options import BEAMS, HEAD_MODES, HeadUse, SearchKeywords, SearchOptions
    from restd.search.ranker import RetrieverRanker
    from restd.search.retriever import Retriever

_HOMES = {
    "BEAMS": "restd.search.options",
    "HEAD_MODES": "restd.search.options",
    "BeamLevel": "restd.search.beam_tree",
    "BeamNode": "restd.search.beam_tree",
    "BeamTree": "restd.search.beam_tree",
    "Beams": "restd.search.beam",
    "CandidateTable": "restd.search.candidates",
    "Explanation": "restd.search.answers",
    "Fusion": "restd.search.fusion",
    "HeadUse": "restd.search.options",
    "Hit": "restd.search.answers",
    "KeptHeads": "restd.search.heads",
    "Level": "restd.search.beam",
    "LevelTrace": "restd.search.answers",
    "PartScore": "restd.search.answers",
    "Retriever": "restd.search.retriever",
    "RetrieverRanker": "restd.search.ranker",
    "SearchKeywords": "restd.search.options",
    "SearchOptions": "restd.search.options",
    "beam_search": "restd.search.beam",
    "exact_rank": "restd.search.beam",
    "exact_scores": "restd.search.beam",
    "sid_scores": "restd.search.candidate_scores",
}

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


def __getattr__(name: str) -> Any:
    """Import public names when they are first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'restd.search' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
