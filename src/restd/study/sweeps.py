"""Sweeps: one setting of ResTD at a time, everything else as the study has it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from restd.config import plain
from restd.evaluate import Evaluation, Spread, paired_difference, ranked_validation
from restd.study import matched
from restd.study.comparison import Comparison, Tell, judge_model
from restd.study.finding import Figure, Finding, Table, best_of_columns
from restd.study.opened import Study
from restd.train import DistillSettings, train_retriever
from restd.train.objectives import AuxiliaryConfig

FOLDER = "sweeps"


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting, the values it takes, and what the paper calls it."""

    symbol: str
    says: str
    values: tuple[tuple[str, dict[str, Any]], ...]
    """Each value's label, and the settings of [distill] it stands for."""


def _numbers(name: str, values: Sequence[float]) -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple((f"{value:g}", {name: value}) for value in values)


CORRECTION = {
    "floor": Axis(
        "ε_floor",
        "collision-aware correction",
        (
            ("raw teacher", {"correct": False}),
            *((f"{value:g}", {"correct": True, "floor": value}) for value in (0.0, 0.05, 0.1, 0.2)),
        ),
    )
}


def sensitivity(weight: float) -> dict[str, Axis]:
    """The paper's grid around a study's own λ: a quarter, half, one, one and a half and twice of it.

    τ is given as a factor, which for the paper's 0.2 makes 0.05 to 0.5; its λ of 0.1 makes 0.025 to 0.2.
    """
    weights = tuple(weight * factor for factor in (0.25, 0.5, 1.0, 1.5, 2.0))
    return {
        "lambda": Axis("λ_max", "weight of the trajectory loss", _numbers("weight", weights)),
        "tau": Axis(
            "τ / τ_default",
            "temperatures of teacher and student, as multiples of the study's own",
            _numbers("factor", (0.25, 0.5, 1.0, 1.5, 2.5)),
        ),
        "rho": Axis("ρ", "discount of later levels", _numbers("discount", (0.3, 0.5, 0.7, 0.9, 1.0))),
    }


def sweep(
    study: Study,
    axes: dict[str, Axis],
    *,
    name: str,
    title: str,
    objective: str = "restd",
    seeds: Sequence[int] | None = None,
    tell: Tell,
) -> Finding:
    """Train and judge the objective at every value of every axis, against the study's own Base-FT cells."""
    chosen = tuple(seeds or study.comparison.seeds)
    for seed in chosen:
        study.cell("base", seed)  # says what is missing before anything is trained
    tables, figures, numbers = [], [], {}
    for axis_name, axis in axes.items():
        entries = []
        for label, settings in axis.values:
            held = _changed(study.comparison.config.distill, settings)
            cells = [_cell(study, held, objective, seed, f"{axis_name}={label}", tell) for seed in chosen]
            entries.append({"value": label, "settings": settings, **_entry(study, cells, chosen)})
        numbers[axis_name] = entries
        tables.append(_table(study, axis_name, axis, entries))
        figures.append(_figure(axis_name, axis, entries, _base(study)))
    says = (
        f"One setting at a time, {len(chosen)} seed{'s' if len(chosen) > 1 else ''} ({', '.join(map(str, chosen))}), "
        f"{len(study.tests):,} {study.comparison.split} queries; differences are from the study's {_base(study)}."
    )
    return Finding(name, title, says, tuple(tables), tuple(figures), numbers)


def _changed(own: DistillSettings, settings: dict[str, Any]) -> DistillSettings:
    """The study's settings with some changed; a factor is of the study's own, and the paper's λ is no change."""
    values = dict(settings)
    if "factor" in values:
        values["factor"] *= own.factor
    if own.weight is None and values.get("weight") == AuxiliaryConfig().weight:
        del values["weight"]
    return replace(own, **values)


def _cell(study: Study, settings: DistillSettings, objective: str, seed: int, label: str, tell: Tell) -> Evaluation:
    own = study.comparison
    if settings == own.config.distill and objective in own.objectives and seed in own.seeds:
        return study.cell(objective, seed)
    changed: Comparison = replace(own, config=replace(own.config, distill=settings))
    label = label.replace(" ", "-")
    folder = own.out / FOLDER / f"{objective}-{label}-{seed}"
    tell(f"{objective}, {label}, seed {seed}")
    job = replace(changed.job(objective, seed), out=folder)
    trained = train_retriever(job, tell=tell, validate=ranked_validation(job))
    return judge_model(
        changed, f"{FOLDER}-{objective}-{label}-{seed}", trained.folder, study.tests, study.index, seeds=(seed,)
    )


def _entry(study: Study, cells: list[Evaluation], seeds: tuple[int, ...]) -> dict[str, Any]:
    measures = [str(measure) for measure in study.comparison.measures]
    found: dict[str, Any] = {}
    for measure in measures:
        base = np.mean([study.cell("base", seed).values["sid"][measure] for seed in seeds], axis=0)
        ours = np.mean([cell.values["sid"][measure] for cell in cells], axis=0)
        found[measure] = {
            **plain(Spread.of([cell.mean(measure) for cell in cells])),
            "against_base": paired_difference(ours, base).to_dict(),
        }
    return found


def _table(study: Study, name: str, axis: Axis, entries: list[dict[str, Any]]) -> Table:
    measures = [str(measure) for measure in study.comparison.measures]
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
    notes = (f"In parentheses: points over {_base(study)}.",)
    return Table(name, f"{axis.symbol}: {axis.says}", (axis.symbol, *measures), rows, notes, best)


def _base(study: Study) -> str:
    return matched.label(matched.BASE, study.comparison.task)


def _figure(name: str, axis: Axis, entries: list[dict[str, Any]], base: str) -> Figure:
    names = [name for name in entries[0] if "@" in name]
    shown = [name for name in ("NDCG@10", "Recall@100") if name in names] or names[:2]
    series = {
        measure: [{"label": entry["value"], **entry[measure]["against_base"]} for entry in entries] for measure in shown
    }
    data = {"series": series, "xlabel": f"points over {base} (95 % interval over queries)", "ylabel": axis.symbol}
    return Figure(name, f"{axis.symbol}: {axis.says}", "intervals", data)
