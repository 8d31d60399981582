"""Queries whose positives disagree: how far their teachers are apart, and whether gains go with it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats

from restd.analyses.labels import label
from restd.analyses.result import AnalysisResult, Figure, Table
from restd.analyses.teachers import Teachers, jensen_shannon, study_teachers
from restd.errors import DataError
from restd.evaluate import TestSet, regression_hc3
from restd.experiments.study import Study

_STRATA = ("low", "middle", "high")
_UNIT = 0.1
_LEAST = 6


@dataclass(frozen=True, slots=True, eq=False)
class Disagreement:
    """Queries with at least two positives, and how much the level-1 teachers of these differ."""

    queries: np.ndarray
    """Numbers of the queries."""
    divergence: Float[np.ndarray, "query"]
    """J_q: mean Jensen–Shannon divergence over pairs of positives, in nats."""
    positives: np.ndarray


def measure_disagreement(tests: TestSet, teachers: Teachers) -> Disagreement:
    """J_q of every query that has two positives or more."""
    chosen, divergences, counts = [], [], []
    for query in range(len(tests)):
        rows = tests.rows[tests.positives(query)]
        if len(rows) < 2:
            continue
        distributions = teachers.corrected(torch.from_numpy(rows))[:, 0]
        one, other = torch.triu_indices(len(rows), len(rows), offset=1)
        chosen.append(query)
        divergences.append(float(jensen_shannon(distributions[one], distributions[other]).mean()))
        counts.append(len(rows))
    if len(chosen) < _LEAST:
        raise DataError(
            f"Expected at least {_LEAST} queries with two positives or more, got {len(chosen)}. Use more test queries."
        )
    return Disagreement(np.array(chosen), np.array(divergences), np.array(counts))


def disagreement(study: Study, *, ours: str = "restd") -> AnalysisResult:
    """Gains by disagreement: three strata, Spearman's ρ, and a regression adjusted for positives and starting score."""
    measured = measure_disagreement(study.tests, study_teachers(study))
    strata = _strata(measured)
    rivals = [name for name in ("base", "rbd") if name in study.comparison.objectives and name != ours]
    if not rivals:
        raise DataError(f"There is nothing to compare {ours} with. Add base or rbd to the study.")
    measures = [str(measure) for measure in study.comparison.measures]
    start = study.start
    groups, regressions = [], []
    for rival in rivals:
        gains = {
            name: (study.mean_of_seeds(ours, name) - study.mean_of_seeds(rival, name))[measured.queries]
            for name in measures
        }
        for number, name in enumerate(_STRATA):
            inside = strata == number
            groups.append(
                {
                    "against": rival,
                    "stratum": name,
                    "queries": int(inside.sum()),
                    "divergence": float(measured.divergence[inside].mean()),
                    "positives": float(measured.positives[inside].mean()),
                    **{measure: float(gains[measure][inside].mean()) for measure in measures},
                }
            )
        for measure in [name for name in ("Recall@100", "NDCG@10") if name in measures]:
            before = start.values["sid"][measure] if start is not None else study.mean_of_seeds(rival, measure)
            regressions.append(_regression(rival, measure, gains[measure], measured, before[measured.queries]))
    numbers = {
        "mean": float(measured.divergence.mean()),
        "queries": len(measured.queries),
        "strata": groups,
        "regressions": regressions,
        "adjusted_for": "the score before continuation" if start is not None else "the rival's own score",
    }
    return AnalysisResult(
        "disagreement",
        "Disagreement among a query's positives",
        f"{len(measured.queries):,} queries have two positives or more; the level-1 teachers of a query's positives "
        f"are {numbers['mean']:.3f} nats apart on average (at most ln 2 = 0.693).",
        (_strata_table(groups, measures), _regression_table(regressions, numbers["adjusted_for"])),
        (_figure(groups, measures),),
        numbers,
    )


def _strata(measured: Disagreement) -> np.ndarray:
    """Thirds by J_q whose sizes differ by at most one, ties by query."""
    order = np.lexsort((measured.queries, measured.divergence))
    strata = np.empty(len(order), np.int64)
    for number, part in enumerate(np.array_split(order, len(_STRATA))):
        strata[part] = number
    return strata


def _regression(
    rival: str, measure: str, gain: np.ndarray, measured: Disagreement, before: np.ndarray
) -> dict[str, Any]:
    """Δ_q = α + β J_q / 0.1 + γ ln(1 + m_q) + η s_q + e, with HC3 errors."""
    columns = [np.ones(len(gain)), measured.divergence / _UNIT, np.log1p(measured.positives), before]
    beta, error = regression_hc3(np.stack(columns, axis=1), gain)
    freedom = max(len(gain) - len(columns), 1)
    reach = float(stats.t.ppf(0.975, freedom)) * error[1]
    if np.ptp(gain) == 0 or np.ptp(measured.divergence) == 0:
        spearman, p = 0.0, 1.0
    else:
        correlation: Any = stats.spearmanr(measured.divergence, gain)
        spearman, p = float(correlation.statistic), float(correlation.pvalue)
    return {
        "against": rival,
        "measure": measure,
        "beta": float(beta[1]),
        "low": float(beta[1] - reach),
        "high": float(beta[1] + reach),
        "spearman": spearman,
        "spearman_p": p,
    }


def _strata_table(groups: list[dict[str, Any]], measures: list[str]) -> Table:
    rows = tuple(
        (
            f"over {label(entry['against'])}, {entry['stratum']}",
            f"{entry['queries']:,}",
            f"{entry['divergence']:.3f}",
            f"{entry['positives']:.1f}",
            *(f"{entry[measure]:+.2f}" for measure in measures),
        )
        for entry in groups
    )
    columns = ("Stratum", "queries", "mean J", "positives", *(f"Δ {measure}" for measure in measures))
    return Table("strata", "Mean gains by teacher disagreement (points)", columns, rows)


def _regression_table(regressions: list[dict[str, Any]], adjusted: str) -> Table:
    rows = tuple(
        (
            f"{entry['measure']} over {label(entry['against'])}",
            f"{entry['beta']:+.3f}",
            f"[{entry['low']:+.3f}, {entry['high']:+.3f}]",
            f"{entry['spearman']:+.3f}",
            f"{entry['spearman_p']:.3f}",
        )
        for entry in regressions
    )
    note = f"β: points of gain for each 0.1 nats of J, adjusted for the number of positives and {adjusted}; HC3 errors."
    columns = ("Gain", "β", "95 % interval", "Spearman ρ", "p")
    return Table("regression", "Association of gains with disagreement", columns, rows, (note,))


def _figure(groups: list[dict[str, Any]], measures: list[str]) -> Figure:
    shown = "NDCG@10" if "NDCG@10" in measures else measures[0]
    series: dict[str, list[float]] = {}
    for entry in groups:
        series.setdefault(f"over {label(entry['against'])}", []).append(entry[shown])
    data = {"labels": list(_STRATA), "series": series, "ylabel": f"Δ {shown} (points)", "xlabel": "disagreement"}
    return Figure("strata", f"Mean gain in {shown} by teacher disagreement", "bars", data)
