"""The cost of distillation: time of an update beside one without it, as in the paper's protocol."""

from typing import Any

import numpy as np

from restd.analyses.labels import BASE, label
from restd.analyses.result import AnalysisResult, Figure, Table
from restd.data import Task
from restd.evaluate import Spread
from restd.experiments.update_cost import WARM_UP, UpdateCost


def overhead_result(cost: UpdateCost, task: Task = "search") -> AnalysisResult:
    """Table and figure of measured updates."""
    base, base_seconds = label(BASE, task), np.median(cost.seconds[BASE])
    numbers: dict[str, Any] = {}
    for objective, seconds in cost.seconds.items():
        spread = Spread.of(seconds.tolist())
        numbers[objective] = {
            "seconds": spread.mean,
            "deviation": spread.deviation,
            "ratio": float(np.median(seconds) / base_seconds),
            "pairs_per_second": cost.batch / spread.mean,
            "parameters": cost.parameters[objective],
        }
    rows = tuple(
        (
            label(objective, task),
            f"{1e3 * entry['seconds']:.0f} ± {1e3 * (entry['deviation'] or 0):.0f}",
            f"{entry['ratio']:.3f}",
            f"{entry['pairs_per_second']:.0f}",
            f"{entry['parameters']:,}",
        )
        for objective, entry in numbers.items()
    )
    columns = ("Objective", "ms per update", "ratio of medians", "pairs/s", "trained parameters")
    notes = ("The paper, on its hardware and T5-base: 1.000, 1.059, 1.119. restd bench overhead also measures memory.",)
    table = Table("overhead", "Cost of an update", columns, rows, notes)
    data = {
        "labels": [label(objective, task) for objective in numbers],
        "series": {f"over {base}": [entry["ratio"] for entry in numbers.values()]},
        "ylabel": f"time × {base}",
    }
    figure = Figure("overhead", f"Time of an update over {base}", "bars", data)
    says = (
        f"{cost.updates} updates of {cost.batch} pairs per objective, the first {WARM_UP} not counted, "
        "objectives in turn on one machine."
    )
    return AnalysisResult("overhead", "Training overhead", says, (table,), (figure,), numbers)
