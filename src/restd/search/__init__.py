"""Search: valid, exact where asked, explained."""

from restd.search.beam import Beams, Level, beam_search, exact_rank, exact_scores
from restd.search.explain import Explanation, LevelTrace
from restd.search.fusion import Ranker, fuse
from restd.search.heads import HeadUse, KeptHeads
from restd.search.items import Condition, Items
from restd.search.retriever import NEXT_WIDTH, Retriever
from restd.search.shelf import Hit

__all__ = [
    "NEXT_WIDTH",
    "Beams",
    "Condition",
    "Explanation",
    "HeadUse",
    "Hit",
    "Items",
    "KeptHeads",
    "Level",
    "LevelTrace",
    "Ranker",
    "Retriever",
    "beam_search",
    "exact_rank",
    "exact_scores",
    "fuse",
]
