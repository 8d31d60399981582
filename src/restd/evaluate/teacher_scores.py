"""The teacher of prefix margins: an ensemble of BM25 and dense similarity, and grades where somebody judged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int64

from restd.rankers import RankerContext, make_companion
from restd.snapshot import Companion, Snapshot
from restd.train import Negatives


@dataclass(frozen=True, slots=True, eq=False)
class EnsembleTeacher:
    """Rankers with weights that add up to one."""

    parts: tuple[tuple[float, Companion], ...]

    @classmethod
    def of(cls, snapshot: Snapshot, *, data: Path, home: Path, dense: float) -> "EnsembleTeacher":
        """BM25 and dense similarity over a snapshot; one of weight 0 is not made.

        Args:
            snapshot: the items.
            data: folder of the data set.
            home: the folder `restd index` made.
            dense: weight of dense similarity.
        """
        context = RankerContext(snapshot, data, home)
        weights = {"bm25": 1 - dense, "dense": dense}
        return cls(tuple((weight, make_companion(name, context)) for name, weight in weights.items() if weight > 0))

    def scores(
        self, texts: Sequence[str], rows: Int64[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """Scores from 0 to 1 of each query's candidates, each part scaled to that range; 0 behind the last one (-1)."""
        known = rows >= 0
        total = np.zeros(rows.shape)
        for weight, part in self.parts:
            total += weight * scaled(np.asarray(part.scores(texts, np.maximum(rows, 0)), np.float64), known)
        return total

    def scored(
        self, negatives: Negatives, texts: Sequence[str], *, grades: Float[np.ndarray, "positive"], share: float
    ) -> Negatives:
        """Negatives and positives with the teacher's scores.

        Args:
            negatives: of the queries.
            texts: theirs.
            grades: of the positives, from 0 to 1; negatives have none.
            share: of the grades in a score; the rest is the ensemble.
        """
        place = np.searchsorted(negatives.queries, negatives.positive_query)
        counts = np.bincount(place, minlength=len(texts))
        column = np.arange(len(place)) - (counts.cumsum() - counts)[place]
        right = np.full((len(texts), int(counts.max(initial=0))), -1, np.int64)
        right[place, column] = negatives.positive_item
        scores = (1 - share) * self.scores(texts, np.concatenate([negatives.items, right], axis=1))
        width = negatives.items.shape[1]
        return negatives.scored(scores[:, :width], scores[:, width:][place, column] + share * grades)


def scaled(
    scores: Float[np.ndarray, "query candidate"], known: Bool[np.ndarray, "query candidate"]
) -> Float[np.ndarray, "query candidate"]:
    """Scale each query's known scores to the range from 0 to 1; unknown ones, and equal ones, become 0.

    >>> scaled(np.array([[1.0, 3.0, 2.0, 9.0]]), np.array([[True, True, True, False]]))
    array([[0. , 1. , 0.5, 0. ]])
    """
    if not scores.shape[1]:
        return scores
    least = np.where(known, scores, np.inf).min(axis=1, keepdims=True)
    most = np.where(known, scores, -np.inf).max(axis=1, keepdims=True)
    width = np.where(known.any(axis=1, keepdims=True), most - least, 0.0)
    return np.where(known & (width > 0), (scores - least) / np.where(width > 0, width, 1.0), 0.0)
