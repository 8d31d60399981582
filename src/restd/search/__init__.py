"""Search: valid, exact where asked, explained."""

from restd.search.beam import Beams, Level, beam_search, exact_rank, exact_scores

__all__ = ["Beams", "Level", "beam_search", "exact_rank", "exact_scores"]
