"""Tables and figures of a sweep: scores at every value of a setting, and differences from the base."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from restd.analyses.labels import BASE, label
from restd.analyses.result import AnalysisResult, Figure, Table, best_of_columns
from restd.config import plain
from restd.evaluate import Evaluation, Spread, paired_difference
from restd.experiments.sweeps import Axis, SweepCells


def sweep_result(sweep: SweepCells, *, name: str, title: str) -> AnalysisResult:
    """One table and one figure per axis."""
    comparison = sweep.study.comparison
    measures, base = [str(measure) for measure in comparison.measures], label(BASE, comparison.task)
    tables, figures, entries_by_axis = [], [], {}
    for axis_name, axis in sweep.axes.items():
        entries = [
            {
                "value": value,
                "settings": dict(changes),
                **_scores(sweep.cells[axis_name, value], sweep.base, measures),
            }
            for value, changes in axis.values.items()
        ]
        entries_by_axis[axis_name] = entries
        tables.append(_table(axis_name, axis, entries, measures, base))
        figures.append(_figure(axis_name, axis, entries, measures, base))
    seeds = sweep.seeds
    says = (
        f"One setting at a time, {len(seeds)} seed{'s' if len(seeds) > 1 else ''} ({', '.join(map(str, seeds))}), "
        f"{len(sweep.study.tests):,} {comparison.split} queries; differences are from the study's {base}."
    )
    return AnalysisResult(name, title, says, tuple(tables), tuple(figures), entries_by_axis)


def _scores(cells: Sequence[Evaluation], base: Sequence[Evaluation], measures: Sequence[str]) -> dict[str, Any]:
    """Mean and deviation over seeds, and the difference from the base, by measure."""
    scores: dict[str, Any] = {}
    for measure in measures:
        ours, theirs = (np.mean([cell.values["sid"][measure] for cell in side], axis=0) for side in (cells, base))
        scores[measure] = {
            **plain(Spread.of([cell.mean(measure) for cell in cells])),
            "against_base": paired_difference(ours, theirs).to_dict(),
        }
    return scores


def _table(name: str, axis: Axis, entries: list[dict[str, Any]], measures: Sequence[str], base: str) -> Table:
    rows = tuple(
        (
            entry["value"],
            *(
                f"{Spread(*(entry[measure][part] for part in ('mean', 'deviation', 'seeds')))} "
                f"({entry[measure]['against_base']['mean']:+.2f})"
                for measure in measures
            ),
        )
        for entry in entries
    )
    best = best_of_columns([[entry[measure]["mean"] for measure in measures] for entry in entries])
    notes = (f"In parentheses: points over {base}.",)
    return Table(name, f"{axis.symbol}: {axis.description}", (axis.symbol, *measures), rows, notes, best)


def _figure(name: str, axis: Axis, entries: list[dict[str, Any]], measures: Sequence[str], base: str) -> Figure:
    shown = [measure for measure in ("NDCG@10", "Recall@100") if measure in measures] or measures[:2]
    series = {
        measure: [{"label": entry["value"], **entry[measure]["against_base"]} for entry in entries] for measure in shown
    }
    data = {"series": series, "xlabel": f"points over {base} (95 % interval over queries)", "ylabel": axis.symbol}
    return Figure(name, f"{axis.symbol}: {axis.description}", "intervals", data)
