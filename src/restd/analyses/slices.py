"""For whom a ranker works: queries by how well training knows their answers, and by how much they tell."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from restd.analyses.labels import label
from restd.analyses.result import AnalysisResult, Figure, Table, best_of_columns
from restd.data import History, Task
from restd.evaluate import TestSet, bootstrap_mean
from restd.experiments.study import Study

_PARTS = 4
_WORDS: Mapping[Task, Mapping[str, str]] = {
    "search": {"answers": "Training pairs of the positives (mean)", "length": "Words of the query"},
    "recommend": {"answers": "Training events of the next item", "length": "Items of the history"},
}


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Queries divided by a number that each has."""

    of: Int64[np.ndarray, "query"]
    """Number of each query's slice."""
    names: tuple[str, ...]
    """The range of each slice."""


def sliced(values: Float[np.ndarray, "query"], *, parts: int = _PARTS) -> Slices:
    """Queries in up to `parts` slices of similar size by a number; those whose number is zero are a slice of their own.

    Equal numbers stay together, so where many are alike there are fewer slices.

    >>> slices = sliced(np.array([0.0, 1, 2, 2, 3, 9, 0, 4, 5]), parts=2)
    >>> slices.names, slices.of.tolist()
    (('0', '1–2', '3–9'), [0, 1, 1, 1, 2, 2, 0, 2, 2])
    """
    above = np.sort(values[values > 0])
    last = [above[len(above) * part // parts - 1] for part in range(1, parts) if len(above) * part // parts]
    bounds = np.unique([0.0, *last])
    _, of = np.unique(np.searchsorted(bounds, values, side="left"), return_inverse=True)
    names = []
    for number in range(of.max(initial=-1) + 1):
        inside = values[of == number]
        low, high = _number(inside.min()), _number(inside.max())
        names.append(low if low == high else f"{low}–{high}")
    return Slices(of, tuple(names))


def _number(value: float) -> str:
    """A number as it is shown on an axis.

    >>> _number(3.0), _number(2.345), _number(12500.0)
    ('3', '2.35', '12,500')
    """
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.3g}"


def make_slices(tests: TestSet) -> dict[str, Slices]:
    """Slices by training pairs of a query's positives (`answers`) and by words or items of the query (`length`)."""
    known = np.add.reduceat(tests.trained, tests.first[:-1]) / np.diff(tests.first)
    long = [len(query.items) if isinstance(query, History) else len(query.split()) for query in tests.texts]
    return {"answers": sliced(known), "length": sliced(np.array(long, np.float64))}


def slices(study: Study, *, ours: str = "restd", theirs: str = "base") -> AnalysisResult:
    """Scores of both objectives and of the baselines, and the gain, slice by slice."""
    task = study.tests.task
    measures = [str(measure) for measure in study.comparison.measures]
    shown = "NDCG@10" if "NDCG@10" in measures else measures[0]
    rankers = {name: evaluation.values["sid"] for name, evaluation in study.baselines.items()}
    for name in dict.fromkeys((theirs, ours)):
        rankers[name] = {measure: study.mean_of_seeds(name, measure) for measure in measures}
    tables, figures, numbers = [], [], {}
    for name, partition in make_slices(study.tests).items():
        entries = [
            {
                "slice": text,
                "queries": int((partition.of == number).sum()),
                "scores": {
                    ranker: {measure: float(values[measure][partition.of == number].mean()) for measure in measures}
                    for ranker, values in rankers.items()
                },
                "gain": asdict(bootstrap_mean((rankers[ours][shown] - rankers[theirs][shown])[partition.of == number])),
            }
            for number, text in enumerate(partition.names)
        ]
        numbers[name] = entries
        tables.append(_table(name, entries, shown, task, ours, theirs))
        figures.append(_figure(name, entries, shown, task))
    unit = "histories" if task == "recommend" else "queries"
    return AnalysisResult(
        "slices",
        "For whom",
        f"{len(study.tests):,} {unit} in slices of similar size, by how often training names their answers and by "
        f"their length. Answers that training never names are a slice of their own. {shown} of each, mean over seeds "
        f"{', '.join(map(str, study.comparison.seeds))}.",
        tuple(tables),
        tuple(figures),
        {"measure": shown, **numbers},
    )


def _table(name: str, entries: list[dict[str, Any]], shown: str, task: Task, ours: str, theirs: str) -> Table:
    rankers = list(entries[0]["scores"])
    scores = [[entry["scores"][ranker][shown] for ranker in rankers] for entry in entries]
    rows = tuple(
        (
            entry["slice"],
            f"{entry['queries']:,}",
            *(f"{score:.2f}" for score in slice_scores),
            "{mean:+.2f} [{low:+.2f}, {high:+.2f}]".format(**entry["gain"]),
        )
        for entry, slice_scores in zip(entries, scores, strict=True)
    )
    # the best of a row: what stands in columns there stands in rows here
    best = tuple((row - 1, column + 2) for column, row in best_of_columns(list(zip(*scores, strict=True))))
    heads = (label(ranker, task) for ranker in rankers)
    unit = "users" if task == "recommend" else "queries"
    columns = (_WORDS[task][name], unit, *heads, f"{label(ours, task)} − {label(theirs, task)}")
    notes = (
        f"{shown}, mean over seeds; differences in points with 95 % bootstrap intervals for each slice. They are "
        "not corrected for the number of slices, so they describe and do not test.",
    )
    return Table(name, f"{shown} by {_lower(_WORDS[task][name])}", columns, rows, notes, best)


def _figure(name: str, entries: list[dict[str, Any]], shown: str, task: Task) -> Figure:
    series = {
        label(ranker, task): [entry["scores"][ranker][shown] for entry in entries] for ranker in entries[0]["scores"]
    }
    labels = [entry["slice"] for entry in entries]
    words = _WORDS[task][name]
    data = {"labels": labels, "series": series, "ylabel": f"{shown} (%)", "xlabel": _lower(words), "sparse": True}
    return Figure(f"slices-{name}", f"{shown} by {_lower(words)}", "bars", data)


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
