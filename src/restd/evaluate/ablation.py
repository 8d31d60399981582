"""What each part of a fitted hybrid search is worth: its scoreboard, collected and judged in one call."""

from dataclasses import replace

from restd.errors import ConfigError
from restd.evaluate.fitting import available_parts, collect, fitting_queries
from restd.evaluate.queries import TestSet
from restd.evaluate.scoreboard import DEEPEST, Scoreboard, score_board
from restd.search import Retriever, SearchOptions


def ablation_board(retriever: Retriever, tests: TestSet, *, options: SearchOptions | None = None) -> Scoreboard:
    """Judge a fitted hybrid search beside its parts and without each of them.

    Weights of the ablations are fitted on the validation queries of the retriever's data, as its own were.

    Args:
        retriever: with its fusion, its data and every part that is to be shown alone.
        tests: queries to judge by, read for the retriever's snapshot.
        options: how to search.
    """
    fusion, data, options = retriever.fusion, retriever.data, options or SearchOptions()
    if fusion is None or data is None:
        raise ConfigError(
            "Only a hybrid search with weights that knows its data can be taken apart; load the retriever with its "
            "data and hybrid=True, after restd fit."
        )
    parts = available_parts(retriever)
    valid = collect(retriever, fitting_queries(data, retriever.snapshot), parts=parts, options=options)
    return score_board(fusion, valid, collect(retriever, tests, parts=parts, options=replace(options, k=DEEPEST)))
