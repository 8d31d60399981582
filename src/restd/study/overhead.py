"""What distillation costs an update of the study's own model: the paper's protocol, turn by turn."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from restd.evaluate import Spread
from restd.study.comparison import Tell
from restd.study.finding import Figure, Finding, Table
from restd.study.matched import label
from restd.study.opened import Study
from restd.train import make_loop
from restd.train.loop import Loop

_ARMS = ("base", "rbd", "restd")
_UPDATES, _DISCARDED = 15, 3


def overhead(study: Study, *, updates: int = _UPDATES, tell: Tell) -> Finding:
    """Time whole updates of Base-FT, RBD and ResTD, interleaved; the first three of each are not counted."""
    seed = study.comparison.seeds[0]
    loops = {}
    for name in _ARMS:
        tell(f"Preparing {label(name)}")
        job = study.comparison.job(name, seed)
        train = replace(job.config.train, idle_heads=True)  # the paper's Base-FT holds its heads too
        loops[name] = make_loop(replace(job, config=replace(job.config, train=train)), tell=tell)
    seconds: dict[str, list[float]] = {name: [] for name in _ARMS}
    rows = {name: loop.plan.epoch(0) for name, loop in loops.items()}
    for loop in loops.values():
        loop.module.train()
    for number in range(updates):
        for place in range(len(_ARMS)):
            name = _ARMS[(number + place) % len(_ARMS)]  # nobody always comes first
            _wait()
            begin = time.perf_counter()
            loops[name].update(rows[name][number % len(rows[name])], number)
            _wait()
            if number >= _DISCARDED:
                seconds[name].append(time.perf_counter() - begin)
    return _told(study, seconds, loops, updates)


def _wait() -> None:
    """Let an accelerator finish, so that no update pays for another."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _told(study: Study, seconds: dict[str, list[float]], loops: dict[str, Loop], updates: int) -> Finding:
    batch = study.comparison.config.train.batch
    numbers: dict[str, Any] = {}
    for name in _ARMS:
        spread = Spread.of(seconds[name])
        numbers[name] = {
            "seconds": spread.mean,
            "deviation": spread.deviation,
            "ratio": float(np.median(seconds[name]) / np.median(seconds["base"])),
            "pairs_per_second": batch / spread.mean,
            "parameters": sum(held.numel() for held in loops[name].trainee.parameters() if held.requires_grad),
        }
    table_rows = tuple(
        (
            label(name, study.comparison.task),
            f"{1e3 * held['seconds']:.0f} ± {1e3 * (held['deviation'] or 0):.0f}",
            f"{held['ratio']:.3f}",
            f"{held['pairs_per_second']:.0f}",
            f"{held['parameters']:,}",
        )
        for name, held in numbers.items()
    )
    columns = ("Objective", "ms an update", "ratio of medians", "pairs/s", "trained parameters")
    notes = ("The paper, on its hardware and T5-base: 1.000, 1.059, 1.119. restd bench overhead measures memory too.",)
    table = Table("overhead", "Cost of an update", columns, table_rows, notes)
    base = label("base", study.comparison.task)
    data = {
        "labels": [label(name, study.comparison.task) for name in _ARMS],
        "series": {f"over {base}": [numbers[name]["ratio"] for name in _ARMS]},
        "ylabel": f"time × {base}",
    }
    figure = Figure("overhead", f"Time of an update over {base}", "bars", data)
    says = f"{updates} updates of {batch} pairs an arm, the first {_DISCARDED} discarded, arms in turn on one machine."
    return Finding("overhead", "Training overhead", says, (table,), (figure,), numbers)
