"""Sweeps: one setting of ResTD at a time, everything else as the study has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from restd.evaluate import Evaluation, beam_negatives, ranked_validation
from restd.experiments.evaluations import evaluate_model
from restd.experiments.study import Study
from restd.progress import Notify
from restd.train import DistillSettings, train_retriever
from restd.train.objectives import AuxiliaryConfig

FOLDER = "sweeps"


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting and the values to try."""

    symbol: str
    """The paper's symbol for it."""
    description: str
    values: Mapping[str, Mapping[str, Any]]
    """By the label of each value: the settings of [distill] it stands for."""


@dataclass(frozen=True, slots=True, eq=False)
class SweepCells:
    """Evaluations of a sweep, and the study's own cells they are compared with."""

    study: Study
    axes: Mapping[str, Axis]
    seeds: tuple[int, ...]
    cells: Mapping[tuple[str, str], tuple[Evaluation, ...]]
    """By axis and label of the value: one evaluation per seed."""
    base: tuple[Evaluation, ...]
    """The study's `base` cells, one per seed."""


def _numbers(name: str, values: Sequence[float]) -> dict[str, dict[str, float]]:
    return {f"{value:g}": {name: value} for value in values}


CORRECTION = {
    "floor": Axis(
        "ε_floor",
        "collision-aware correction",
        {
            "raw teacher": {"correct": False},
            **{f"{value:g}": {"correct": True, "floor": value} for value in (0.0, 0.05, 0.1, 0.2)},
        },
    )
}


def sensitivity(weight: float) -> dict[str, Axis]:
    """The paper's grid around a study's own λ: 0.25, 0.5, 1, 1.5 and 2 times λ.

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


def run_sweep(
    study: Study,
    axes: Mapping[str, Axis],
    *,
    objective: str = "restd",
    seeds: Sequence[int] | None = None,
    notify: Notify,
) -> SweepCells:
    """Train and evaluate an objective at every value of every axis.

    Args:
        study: a finished comparison.
        axes: settings and their values, by name.
        objective: what is trained.
        seeds: seeds of the sweep; by default the study's.
        notify: receives one sentence at a time about the progress.
    """
    seeds = tuple(seeds or study.comparison.seeds)
    base = tuple(study.cell("base", seed) for seed in seeds)  # before training: a missing cell is an error
    cells: dict[tuple[str, str], tuple[Evaluation, ...]] = {}
    for axis_name, axis in axes.items():
        for value, changes in axis.values.items():
            settings = changed_settings(study.comparison.config.distill, changes)
            name = f"{objective}-{axis_name}={value}".replace(" ", "-")
            cells[axis_name, value] = tuple(_cell(study, settings, objective, seed, name, notify) for seed in seeds)
    return SweepCells(study, axes, seeds, cells, base)


def changed_settings(settings: DistillSettings, changes: Mapping[str, Any]) -> DistillSettings:
    """The study's settings with some changed.

    A factor multiplies the study's own. The paper's λ is no change where the study leaves λ unset.
    """
    values = dict(changes)
    if "factor" in values:
        values["factor"] *= settings.factor
    if settings.weight is None and values.get("weight") == AuxiliaryConfig().weight:
        del values["weight"]
    return replace(settings, **values)


def _cell(study: Study, settings: DistillSettings, objective: str, seed: int, name: str, notify: Notify) -> Evaluation:
    """One cell: the study's own where the settings are the study's."""
    comparison = study.comparison
    if settings == comparison.config.distill and objective in comparison.objectives and seed in comparison.seeds:
        return study.cell(objective, seed)
    changed = replace(comparison, config=replace(comparison.config, distill=settings))
    notify(f"{name}, seed {seed}")
    job = replace(changed.job(objective, seed), out=comparison.out / FOLDER / f"{name}-{seed}")
    model = train_retriever(job, notify=notify, validate=ranked_validation(job), refresh=beam_negatives(job)).folder
    cell = f"{FOLDER}-{name}-{seed}"
    return evaluate_model(changed, cell, model, study.tests, study.snapshot, seeds=(seed,), notify=notify)
