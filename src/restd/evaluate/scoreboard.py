"""A hybrid search beside its parts, and without each of them, on the same queries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from restd.evaluate.fitting import FittingSet, fit_on
from restd.evaluate.judging import judge
from restd.evaluate.metrics import Measure
from restd.evaluate.statistics import Difference, paired_difference
from restd.search import Fusion
from restd.search.candidates import best_candidates

MEASURES = (Measure("NDCG", 10), Measure("Recall", 10), Measure("Recall", 100))
DEEPEST = max(measure.k for measure in MEASURES)
"""Items that every part must list for these measures: collect the tests with `SearchOptions(k=DEEPEST)`."""
HYBRID, LEXICAL_AND_DENSE = "hybrid", "bm25_dense"
WITHOUT = "without "
"""What the name of a hybrid search without one of its parts begins with."""


@dataclass(frozen=True, slots=True, eq=False)
class Scoreboard:
    """Values of every query, by item, for the hybrid search, its parts and its ablations.

    Args:
        values: by name of the ranker, then by measure.
        weights: of the parts of each ranker.
    """

    values: Mapping[str, Mapping[str, Float[np.ndarray, "query"]]]
    weights: Mapping[str, Mapping[str, float]]

    def means(self) -> dict[str, dict[str, float]]:
        """Averages over queries, in per cent."""
        return {
            name: {measure: float(values.mean()) for measure, values in by_measure.items()}
            for name, by_measure in self.values.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values: averages, the hybrid's lead over every other, and weights."""
        leads = {
            name: {measure: self.difference(HYBRID, name, measure).to_dict() for measure in self.values[HYBRID]}
            for name in self.values
            if name != HYBRID
        }
        return {"rankers": self.means(), "hybrid_over": leads, "weights": {n: dict(w) for n, w in self.weights.items()}}

    def difference(self, name: str, other: str, measure: str) -> Difference:
        """How far ahead one ranker is of another, query by query."""
        return paired_difference(self.values[name][measure], self.values[other][measure])


def score_board(fusion: Fusion, valid: FittingSet, tests: FittingSet) -> Scoreboard:
    """Judge the hybrid search, every part alone, BM25 with dense search, and the hybrid without each part.

    Whatever has several parts has weights of its own, fitted on the validation queries.

    Args:
        fusion: the fitted hybrid search.
        valid: candidates of the validation queries.
        tests: candidates of the queries to judge by.
    """
    weights: dict[str, Mapping[str, float]] = {
        part: {part: 1.0} for part, proposed in tests.table.proposed.items() if proposed.any()
    }
    if {"bm25", "dense"} <= set(weights):
        weights[LEXICAL_AND_DENSE] = fit_on(valid, ["bm25", "dense"])
    weights[HYBRID] = fusion.weights
    for part in fusion.parts if len(fusion.parts) > 1 else ():
        rest = [other for other in fusion.parts if other != part]
        if any(tests.table.proposed[other].any() for other in rest):
            weights[f"{WITHOUT}{part}"] = fit_on(valid, rest)
    values = {name: judged_values(tests, own) for name, own in weights.items() if any(own.values())}
    return Scoreboard(values, {name: weights[name] for name in values})


def judged_values(
    tests: FittingSet, weights: Mapping[str, float], *, ignored: Bool[np.ndarray, "query candidate"] | None = None
) -> dict[str, Float[np.ndarray, "query"]]:
    """Values of every query by measure, when its candidates are ordered by these weights.

    Args:
        tests: candidates of the queries to judge by.
        weights: of the parts that rank.
        ignored: candidates that are taken out of the ordered lists before they are judged.
    """
    scores = tests.table.fused(weights)
    if ignored is not None:
        scores = np.where(ignored, -np.inf, scores)
    ranked, _ = best_candidates(tests.table.rows, scores, DEEPEST)
    judged = judge(ranked, tests.tests, tests.units, depth=DEEPEST)
    return {str(measure): measure.of(judged) for measure in MEASURES}


def board_rows(board: Scoreboard) -> list[tuple[str, ...]]:
    """The rows of a table: averages, and the hybrid's lead in NDCG@10 with its interval."""
    means = board.means()
    rows = []
    for name in means:
        lead = ""
        if name != HYBRID:
            gap = board.difference(HYBRID, name, str(MEASURES[0]))
            lead = f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"
        rows.append((name, *(f"{means[name][str(measure)]:.2f}" for measure in MEASURES), lead))
    return rows
