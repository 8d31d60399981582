"""Ranking metrics, on the percent scale, one value per query."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from restd.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A ranking compared with the judgments.

    Args:
        gains: of each rank; 0 where the result is not relevant, not judged, or not there.
        ideal: each query's gains in the best possible order, 0 behind the last positive.
    """

    gains: Float[np.ndarray, "query rank"]
    ideal: Float[np.ndarray, "query place"]


def recall(judged: Judged, *, k: int) -> Float[np.ndarray, "query"]:
    """Share of a query's positives among its first k results (eq. sid-recall).

    The denominator is all positives, not min(k, all): with more positives than ranks, 100 cannot be reached.

    >>> recall(Judged(np.array([[1.0, 0.0, 1.0]]), np.ones((1, 4))), k=3).tolist()
    [50.0]
    """
    return 100.0 * (judged.gains[:, :k] > 0).sum(1) / (judged.ideal > 0).sum(1)


def ndcg(judged: Judged, *, k: int) -> Float[np.ndarray, "query"]:
    """Discounted gain of the first k results over the best possible (eq. sid-ndcg); an unfilled rank scores nothing.

    >>> ndcg(Judged(np.array([[1.0, 0.0], [0.0, 1.0]]), np.ones((2, 1))), k=2).round(2).tolist()
    [100.0, 63.09]
    """
    gained, best = (_discounted(gains, k) for gains in (judged.gains, judged.ideal))
    return 100.0 * gained / best


def reciprocal_rank(judged: Judged, *, k: int) -> Float[np.ndarray, "query"]:
    """One over the rank of the first relevant result, 0 where none is among the first k.

    >>> reciprocal_rank(Judged(np.array([[0.0, 1.0], [0.0, 0.0]]), np.ones((2, 1))), k=2).tolist()
    [50.0, 0.0]
    """
    hits = judged.gains[:, :k] > 0
    if not hits.shape[1]:
        return np.zeros(len(hits))
    return np.where(hits.any(1), 100.0 / (1 + hits.argmax(1)), 0.0)


def _discounted(gains: Float[np.ndarray, "query rank"], k: int) -> Float[np.ndarray, "query"]:
    first_gains = gains[:, :k]
    return first_gains @ (1.0 / np.log2(np.arange(2, first_gains.shape[1] + 2)))


_KINDS = {"Recall": recall, "NDCG": ndcg, "MRR": reciprocal_rank}
_SHORT = {"r": "Recall", "recall": "Recall", "n": "NDCG", "ndcg": "NDCG", "mrr": "MRR", "rr": "MRR"}


@dataclass(frozen=True, slots=True, order=True)
class Measure:
    """A metric at a cut-off.

    >>> Measure.parse("n@10"), str(Measure("Recall", 5))
    (Measure(name='NDCG', k=10), 'Recall@5')
    """

    name: str
    k: int

    @classmethod
    def parse(cls, text: str) -> "Measure":
        """Read `Recall@10`, `NDCG@10` or `MRR@100`; R, N and lower case are understood too."""
        name, at, number = text.strip().partition("@")
        if name.lower() not in _SHORT or not at or not number.isdecimal() or int(number) < 1:
            raise ConfigError(f"Unknown measure {text!r}. Expected Recall@k, NDCG@k or MRR@k, as in NDCG@10.")
        return cls(_SHORT[name.lower()], int(number))

    def __str__(self) -> str:
        return f"{self.name}@{self.k}"

    def of(self, judged: Judged) -> Float[np.ndarray, "query"]:
        """Value of every query."""
        return _KINDS[self.name](judged, k=self.k)


PAPER = tuple(Measure(name, k) for name, k in (("Recall", 5), ("Recall", 10), ("Recall", 100), ("NDCG", 10)))
PAPER += (Measure("NDCG", 100),)
"""The paper's columns of retrieval."""
NEXT = tuple(Measure(name, k) for k in (5, 10, 20) for name in ("Recall", "NDCG"))
"""Of recommendation: the paper shows the two at 10."""


def relative_improvement(score: float, base: float) -> float:
    """100 (a - b) / b, as the paper's table has it.

    >>> round(relative_improvement(9.28, 7.50), 2)
    23.73
    """
    return 100.0 * (score - base) / base
