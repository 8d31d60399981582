"""Seconds of a training update of Base-FT, RBD and ResTD with the study's own model, measured in turn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from restd.errors import ConfigError
from restd.experiments.study import Study
from restd.progress import Notify
from restd.timing import interleaved
from restd.train import make_loop
from restd.train.loop import Loop

OBJECTIVES = ("base", "rbd", "restd")
_UPDATES, WARM_UP = 15, 3


@dataclass(frozen=True, slots=True, eq=False)
class UpdateCost:
    """What updates of each objective took."""

    seconds: Mapping[str, Float[np.ndarray, "update"]]
    """By objective; the first updates of each are left out."""
    parameters: Mapping[str, int]
    """Trained parameters, by objective."""
    updates: int
    """Updates of each objective, with those left out."""
    batch: int
    """Pairs in an update."""


def measure_updates(study: Study, *, updates: int = _UPDATES, notify: Notify) -> UpdateCost:
    """Time whole updates of each objective, in turn; the first three of each are not counted, as in the paper."""
    if updates <= WARM_UP:
        raise ConfigError(f"Expected more than {WARM_UP} updates (the first {WARM_UP} do not count), got {updates}.")
    comparison = study.comparison
    loops: dict[str, Loop] = {}
    for objective in OBJECTIVES:
        notify(f"Preparing {objective}")
        job = comparison.job(objective, comparison.seeds[0])
        train = replace(job.config.train, idle_heads=True)  # the paper's Base-FT has heads too
        loops[objective] = make_loop(replace(job, config=replace(job.config, train=train)), notify=notify)
        loops[objective].module.train()
    sides = {objective: _updates(loop) for objective, loop in loops.items()}
    seconds = interleaved(sides, updates - WARM_UP, warm_up=WARM_UP)
    parameters = {
        objective: sum(parameter.numel() for parameter in loop.training_module.parameters() if parameter.requires_grad)
        for objective, loop in loops.items()
    }
    return UpdateCost(seconds, parameters, updates, comparison.config.train.batch)


def _updates(loop: Loop) -> Callable[[int], Any]:
    batches = loop.plan.epoch(0)
    return lambda number: loop.update(batches[number % len(batches)], number)
