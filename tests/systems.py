"""A tiny comparison of systems: sixty items, a budget of seconds, everything in this process."""

from pathlib import Path

from restd.experiments import SystemComparison, compare_systems, plan_systems
from restd.systems import Budget

BUDGET = Budget(
    "test",
    "Seconds.",
    {
        "index": {"encoder": "tfidf-svd"},
        "quantizer": {"codes": 8, "dim": 8, "epochs": 2, "levels": 2},
        "train": {"updates": 4, "batch": 16, "micro": 16, "lr": 3e-3, "indexing": "none", "warm_up": 0.1},
        "compact": {"width": 16, "blocks": 1, "heads": 2},
        "distill": {"weight": 1.0, "cap": "none"},
    },
)


def comparison(
    data: Path,
    out: Path,
    *names: str,
    objectives=("base", "restd"),
    seeds=(1,),
    budget=BUDGET,
    split="valid",
    **changed,
):
    plans = plan_systems(names, budget, objectives=objectives, seeds=seeds)
    return SystemComparison(data=data, out=out, budget=budget, plans=plans, split=split, **changed)


def compared(*args, everything=(), isolate=False, notify=lambda sentence: None, **options):
    return compare_systems(comparison(*args, **options), everything=everything, isolate=isolate, notify=notify)


def scores(summary):
    """Everything but what was timed."""
    rows = {name: {key: value for key, value in row.items() if key != "costs"} for name, row in summary["rows"].items()}
    return {**{key: value for key, value in summary.items() if key != "encoding"}, "rows": rows}
