"""`comparison.json` of systems: every number as plain values, from which tables, figures and pages are made."""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from restd.artifacts import write_atomically
from restd.config import plain
from restd.evaluate import CONDITIONAL, Evaluation, Spread, bootstrap_mean, holm_grid, paired_difference
from restd.experiments.costs import Cost
from restd.experiments.run import FinishedComparison
from restd.experiments.study_file import save_study
from restd.experiments.summary import COMPARISON_FILE, summarise
from restd.experiments.system_comparison import BASE, SystemComparison, cell_label, row_name
from restd.experiments.system_run import (
    ENCODE,
    JUDGE,
    MAKE,
    TRAIN,
    FinishedSystems,
    run_systems,
    shared_rules,
)
from restd.progress import Notify

logger = logging.getLogger(__name__)
KIND = "systems"
LEVEL = "item"
"""Systems are compared by item: their Semantic IDs are not the same."""
AGAINST = ("base", "best")
"""What a row of ours is compared with: the system it is laid over, and the best of all others in a measure."""


def compare_systems(
    comparison: SystemComparison,
    *,
    everything: Iterable[str] = (),
    workers: int = 1,
    isolate: bool = True,
    notify: Notify = logger.info,
) -> dict[str, Any]:
    """Run what is not finished of a comparison of systems, write `comparison.json` and return its contents.

    The folder of every system whose objective is the generation loss is a study of its own too, which
    `restd analyze` takes.

    Args:
        comparison: what to compare.
        everything: systems that may be left out where the data lacks something they need.
        workers: number of stages at a time.
        isolate: give every stage a process of its own, so that its memory can be measured.
        notify: receives one sentence at a time about the progress.
    """
    finished = run_systems(comparison, everything=everything, workers=workers, isolate=isolate, notify=notify)
    summary = summarise_systems(finished)
    _write(comparison, summary)
    _write_studies(finished)
    return summary


def summarise_systems(finished: FinishedSystems) -> dict[str, Any]:
    """Means over seeds, differences query by query, costs, and what all systems share."""
    comparison = finished.comparison
    measures = [str(measure) for measure in comparison.measures]
    rows = _rows(finished, measures)
    _add_differences(finished, rows, measures)
    first = next(iter(finished.cells.values()))
    return {
        "kind": KIND,
        "task": "search",
        "mode": "systems",
        "level": LEVEL,
        "measures": measures,
        "seeds": sorted({seed for _, objective, seed in finished.cells if objective}),
        "settings": {"budget": {"name": comparison.budget.name, **plain_sections(comparison)}},
        "card": {
            **shared_rules(first),
            "level": "by item: Semantic IDs differ from system to system",
            "decoding": comparison.decoding.card(task="search", routes=True),
            "versions": dict(first.card.versions),
        },
        "statistics": CONDITIONAL,
        "rows": rows,
        "systems": _systems(finished),
        "left_out": dict(comparison.left_out),
        "failed": dict(finished.failed),
        "encoding": _shown(finished.cost(ENCODE, "items")),
    }


def plain_sections(comparison: SystemComparison) -> dict[str, Any]:
    """Settings of the budget, with its summary."""
    return {"summary": comparison.budget.summary, **{name: dict(v) for name, v in comparison.budget.sections.items()}}


def _rows(finished: FinishedSystems, measures: list[str]) -> dict[str, Any]:
    comparison, rows = finished.comparison, {}
    for system, objective in dict.fromkeys((system, objective) for system, objective, _ in finished.cells):
        cells = _seeds(finished, system, objective)
        spec = comparison.resolved[system].spec
        evaluations = list(cells.values())
        rows[row_name(system, objective)] = {
            "system": system,
            "objective": objective,
            "ours": spec.ours or objective not in ("", spec.objective),
            "seeds": {str(seed): each.summary() for seed, each in cells.items()} if objective else {},
            **{
                measure: {
                    **plain(Spread.of([each.mean(measure, level=LEVEL) for each in evaluations])),
                    "interval": plain(bootstrap_mean(_mean_of_seeds(finished, system, objective, measure))),
                    "by_sid": float(np.mean([each.mean(measure) for each in evaluations])),
                }
                for measure in measures
            },
            "costs": _row_costs(finished, system, objective),
        }
    return rows


def _seeds(finished: FinishedSystems, system: str, objective: str) -> dict[int, Evaluation]:
    return {cell[2]: each for cell, each in finished.cells.items() if cell[:2] == (system, objective)}


def _mean_of_seeds(finished: FinishedSystems, system: str, objective: str, measure: str) -> Float[np.ndarray, "query"]:
    """Every query's value, averaged over seeds."""
    return np.mean([each.values[LEVEL][measure] for each in _seeds(finished, system, objective).values()], axis=0)


def _add_differences(finished: FinishedSystems, rows: dict[str, Any], measures: list[str]) -> None:
    """Compare every row of ours with what it is laid over and with the best of the others, as one family of tests."""
    others = [name for name, row in rows.items() if not row["ours"]]
    grid: dict[str, dict[str, Any]] = {}
    opponents: dict[str, str] = {}
    for name, row in rows.items():
        if not row["ours"]:
            continue
        for measure in measures:
            best = max(others, key=lambda other: rows[other][measure]["mean"], default=None)
            base = row_name(row["system"], finished.comparison.resolved[row["system"]].spec.objective)
            for against, opponent in zip(AGAINST, (base if base != name else None, best), strict=True):
                if opponent is None:
                    continue
                ours, theirs = (
                    _mean_of_seeds(finished, rows[each]["system"], rows[each]["objective"], measure)
                    for each in (name, opponent)
                )
                grid.setdefault(name, {})[f"{against} {measure}"] = paired_difference(ours, theirs)
                opponents[f"{name} {against} {measure}"] = opponent
    for name, by_measure in holm_grid(grid).items():
        for key, difference in by_measure.items():
            against, _, measure = key.partition(" ")
            rows[name].setdefault(f"against_{against}", {})[measure] = {
                "row": opponents[f"{name} {key}"],
                **difference.to_dict(),
            }


def _systems(finished: FinishedSystems) -> dict[str, Any]:
    """What each system is, and its own part of the protocol: index, Semantic IDs, decoding."""
    comparison, systems = finished.comparison, {}
    for name in dict.fromkeys(system for system, _, _ in finished.cells):
        resolved = comparison.resolved[name]
        card = next(each.card for cell, each in finished.cells.items() if cell[0] == name)
        own: dict[str, Any] = {
            "label": resolved.spec.label,
            "summary": resolved.spec.summary,
            "source": resolved.spec.source,
            "seeds": list(comparison.plans[name].seeds),
            "restd": resolved.refusal or "yes",
            "card": {"snapshot": card.snapshot, "catalogue": dict(card.catalogue), "decoding": dict(card.decoding)},
        }
        if resolved.index is not None and resolved.model is not None and resolved.config is not None:
            index = resolved.index
            own |= {
                "index": comparison.index_folder(name).name,
                "quantizer": {"name": index.quantizer, **plain(index.section(index.quantizer))},
                "policy": index.policy,
                "align": index.align.enabled,
                "model": resolved.model.used,
                "objective": resolved.spec.objective,
            }
        systems[name] = own
    return systems


def _row_costs(finished: FinishedSystems, system: str, objective: str) -> dict[str, Any]:
    """Cost of indexing, of training (mean over seeds) and of a query; a ranker that is not trained is made instead."""
    comparison = finished.comparison
    spec, study = comparison.resolved[system].spec, comparison.study(system)
    if not spec.generates:
        making = finished.cost(TRAIN, study.out.name)
        stage = "training" if "queries" in spec.needs else "indexing"
        return {stage: _shown(making), "query": _query(finished.cost(JUDGE, study.out.name))}
    labels = [cell_label(system, objective, seed) for seed in comparison.plans[system].seeds]
    return {
        "indexing": _shown(finished.cost(MAKE, comparison.index_folder(system).name)),
        "training": _mean_cost([finished.cost(TRAIN, label) for label in labels]),
        "query": _query(finished.cost(JUDGE, labels[0])),
    }


def _shown(cost: Cost | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    return {
        "seconds": cost.seconds,
        "cpu": cost.cpu,
        "peak": cost.peak,
        "whole": cost.whole,
        "own_process": cost.own_process,
        "machine": dict(cost.machine),
    }


def _mean_cost(costs: list[Cost | None]) -> dict[str, Any] | None:
    measured = [cost for cost in costs if cost is not None]
    if not measured:
        return None
    return {
        **(_shown(measured[0]) or {}),
        "seconds": float(np.mean([cost.seconds for cost in measured])),
        "cpu": float(np.mean([cost.cpu for cost in measured])),
        "peak": max(cost.peak for cost in measured),
        "whole": all(cost.whole for cost in measured),
    }


def _query(cost: Cost | None) -> dict[str, Any] | None:
    """Median time of a single query, and memory of the process until all were timed."""
    if cost is None or "query_ms" not in cost.figures:
        return None
    return {
        "milliseconds": cost.figures["query_ms"],
        "queries": cost.figures["queries"],
        "peak": cost.figures["query_peak"],
        "own_process": cost.own_process,
        "machine": dict(cost.machine),
    }


def _write(comparison: SystemComparison, summary: Mapping[str, Any]) -> None:
    text = json.dumps(summary, indent=2, ensure_ascii=False)
    write_atomically(comparison.out / COMPARISON_FILE, [text.encode() + b"\n"])


def _write_studies(finished: FinishedSystems) -> None:
    """Let every system that others are laid over be a study of objectives, for `restd analyze` and `restd report`."""
    comparison = finished.comparison
    for name in dict.fromkeys(system for system, objective, _ in finished.cells if objective == BASE):
        study = comparison.study(name)
        cells = {cell[1:]: each for cell, each in finished.cells.items() if cell[0] == name}
        save_study(study)
        text = json.dumps(summarise(FinishedComparison(study, cells, {})), indent=2, ensure_ascii=False)
        write_atomically(study.out / COMPARISON_FILE, [text.encode() + b"\n"])
