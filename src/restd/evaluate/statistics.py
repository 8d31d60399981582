"""Statistics of differences between rankers, query by query.

Resampling queries tells how a difference would vary with other queries, conditional on the models that were fitted;
the spread over seeds tells how it varies with training. Neither says the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

CONDITIONAL = "conditional on the fitted models: queries are resampled, seeds are not"
_RESAMPLES = 9_999


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where 95 % of its resamples fall."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better a ranker is than another on the same queries."""

    mean: float
    low: float
    high: float
    """Ends of the 95 % interval of a paired bootstrap over queries."""
    p: float
    """Of a paired permutation test, two-sided: the signs of the differences are drawn at random."""
    adjusted: float | None = None
    """p after Holm's correction for all comparisons of a table; None where there was no table."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def bootstrap_mean(values: Float[np.ndarray, "query"], *, seed: int = 0, resamples: int = _RESAMPLES) -> Interval:
    """Percentile interval of a mean over queries.

    >>> interval = bootstrap_mean(np.array([1.0, 2.0, 3.0]))
    >>> interval.mean, 1.0 <= interval.low <= interval.high <= 3.0
    (2.0, True)
    """
    mean = float(values.mean())
    if len(values) < 2 or np.ptp(values) == 0:
        return Interval(mean, mean, mean)
    result = stats.bootstrap(
        (values,), np.mean, n_resamples=resamples, method="percentile", rng=np.random.default_rng(seed), batch=1_000
    )
    return Interval(mean, float(result.confidence_interval.low), float(result.confidence_interval.high))


def paired_difference(
    ours: Float[np.ndarray, "query"], theirs: Float[np.ndarray, "query"], *, seed: int = 0, resamples: int = _RESAMPLES
) -> Difference:
    """Bootstrap interval and permutation test of the mean difference, `ours` minus `theirs`, query by query.

    Values are averaged over seeds first; the result is conditional on the fitted models.
    """
    gaps = ours - theirs
    interval = bootstrap_mean(gaps, seed=seed, resamples=resamples)
    return Difference(interval.mean, interval.low, interval.high, sign_flip_p(gaps, seed=seed, resamples=resamples))


def sign_flip_p(gaps: Float[np.ndarray, "query"], *, seed: int = 0, resamples: int = _RESAMPLES) -> float:
    """P of the mean under random signs, two-sided; exact where few queries differ.

    >>> sign_flip_p(np.array([1.0, 1.0, 1.0]))
    0.25
    """
    moved = gaps[gaps != 0]  # a difference of nothing has no sign to flip
    if len(moved) < 2:  # one alone is as far from zero with either sign
        return 1.0
    result = stats.permutation_test(
        (moved,),
        lambda sample, axis: np.mean(sample, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,  # all of them where there are no more
        alternative="two-sided",
        rng=np.random.default_rng(seed),
        batch=1_000,
    )
    return float(result.pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the chance of any false alarm among all comparisons stays below the level.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(ps, kind="stable")
    adjusted = np.empty(len(ps))
    largest = 0.0
    for place, number in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[number]))
        adjusted[number] = largest
    return adjusted.tolist()


def holm_grid(grid: Mapping[str, Mapping[str, Difference]]) -> dict[str, dict[str, Difference]]:
    """Correct a table of comparisons, row by row and column by column, as one family."""
    adjusted = iter(holm([difference.p for columns in grid.values() for difference in columns.values()]))
    return {
        row: {column: replace(difference, adjusted=next(adjusted)) for column, difference in columns.items()}
        for row, columns in grid.items()
    }


@dataclass(frozen=True, slots=True)
class Spread:
    """Seeds of one condition: their mean and sample standard deviation (n - 1); none for a single seed."""

    mean: float
    deviation: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise one value per seed.

        >>> Spread.of([1.0, 2.0, 3.0])
        Spread(mean=2.0, deviation=1.0, seeds=3)
        """
        array = np.asarray(values, np.float64)
        return cls(float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None, len(array))

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.2f}"


def regression_hc3(
    design: Float[np.ndarray, "row term"], outcome: Float[np.ndarray, "row"]
) -> tuple[Float[np.ndarray, "term"], Float[np.ndarray, "term"]]:
    """Least squares with HC3 standard errors: (XᵀX)⁻¹ Xᵀ diag(e_i² / (1 - h_ii)²) X (XᵀX)⁻¹."""
    inverse = np.linalg.pinv(design.T @ design)
    beta = inverse @ design.T @ outcome
    leverage = np.einsum("rt,ts,rs->r", design, inverse, design)
    scaled = (outcome - design @ beta) / np.maximum(1 - leverage, 1e-12)
    covariance = inverse @ (design.T * scaled**2) @ design @ inverse
    return beta, np.sqrt(np.diag(covariance))
