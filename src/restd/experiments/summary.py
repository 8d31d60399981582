"""`comparison.json`: every number of a comparison as plain values, from which tables and figures are made."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from restd.artifacts import hash_json, read_manifest, write_atomically
from restd.config import plain
from restd.errors import DataError
from restd.evaluate import CONDITIONAL, Difference, Spread, holm_grid, paired_difference
from restd.experiments.comparison import Comparison, cell_name
from restd.experiments.evaluations import FITTED, NO_HEADS, WEIGHTS
from restd.experiments.learning_rates import read_rates
from restd.experiments.run import FinishedComparison, run_comparison
from restd.models.store import model_folder
from restd.progress import Notify
from restd.train import RunConfig

logger = logging.getLogger(__name__)
COMPARISON_FILE = "comparison.json"
BASE = "base"


def compare(comparison: Comparison, *, workers: int = 1, notify: Notify = logger.info) -> dict[str, Any]:
    """Run what is not finished of a comparison, write `comparison.json` and return its contents.

    Args:
        comparison: what to compare.
        workers: how many cells are trained at a time, each in its own process.
        notify: receives one sentence at a time about the progress.
    """
    summary = summarise(run_comparison(comparison, workers=workers, notify=notify))
    text = json.dumps(summary, indent=2, ensure_ascii=False)
    write_atomically(comparison.out / COMPARISON_FILE, [text.encode() + b"\n"])
    return summary


def read_comparison(folder: Path) -> dict[str, Any]:
    """Read what `compare` wrote to a folder."""
    path = folder / COMPARISON_FILE
    if not path.is_file():
        raise DataError(f"{folder} has no {COMPARISON_FILE}; make it with restd compare --out {folder}.")
    return json.loads(path.read_text(encoding="utf-8"))


def comparison_identity(summary: Mapping[str, Any]) -> str:
    """Hash of what analyses of a comparison depend on: rules, settings and seeds, but not the list of objectives."""
    rules = {name: value for name, value in summary["card"].items() if name != "versions"}
    parts = {"settings": summary["settings"], "seeds": summary["seeds"], "mode": summary["mode"]}
    return hash_json({"rules": rules, **parts})


def summarise(finished: FinishedComparison) -> dict[str, Any]:
    """Means over seeds, differences from `base` query by query with their significance, settings and protocol."""
    comparison = finished.comparison
    measures = [str(measure) for measure in comparison.measures]
    conditions: dict[str, Any] = {}
    for objective in comparison.objectives:
        evaluations = {seed: finished.cells[objective, seed] for seed in comparison.seeds}
        conditions[objective] = {
            "seeds": {
                str(seed): {kind: evaluation.summary()[kind] for kind in ("sid", "item", "groups")}
                for seed, evaluation in evaluations.items()
            },
            **{
                measure: plain(Spread.of([evaluation.mean(measure) for evaluation in evaluations.values()]))
                for measure in measures
            },
            **_category_recall(comparison, objective),
        }
    differences = holm_grid(
        {
            objective: {measure: _difference(finished, objective, measure) for measure in measures}
            for objective in comparison.objectives
            if objective != BASE
        }
    )
    for objective, by_measure in differences.items():
        conditions[objective]["against_base"] = {
            measure: difference.to_dict() for measure, difference in by_measure.items()
        }
    return {
        "kind": "comparison",
        "task": comparison.task,
        "mode": "continuation" if comparison.init is not None else "joint",
        "measures": measures,
        "seeds": list(comparison.seeds),
        "settings": {
            "model": comparison.model.used if comparison.init is None else {},
            **_shared_settings(comparison.config),
        },
        "card": _shared_card(finished),
        **_parts_of_searches(finished),
        "statistics": CONDITIONAL,
        **({"rates": read_rates(comparison.out)} if comparison.rates else {}),
        "conditions": conditions,
        "beside": {
            name: {**evaluation.summary()["sid"], "decoding": dict(evaluation.card.decoding)}
            for name, evaluation in finished.references.items()
        },
    }


def _shared_card(finished: FinishedComparison) -> dict[str, Any]:
    """The rules of all cells, without the weights that each has fitted; heads as of those cells that have them."""
    comparison = finished.comparison
    card = next(iter(finished.cells.values())).card.to_dict()
    decoding = {name: value for name, value in card["decoding"].items() if name not in (WEIGHTS, FITTED)}
    if comparison.decoding.heads is not None:
        decoding["heads"] = plain(comparison.decoding.heads)
    return {**card, "decoding": decoding, "seeds": list(comparison.seeds)}


def _parts_of_searches(finished: FinishedComparison) -> dict[str, Any]:
    """Objectives that are searched without heads where others use them, and the fitted weights of hybrid searches."""
    decodings = {cell_name(*cell): evaluation.card.decoding for cell, evaluation in finished.cells.items()}
    without = {
        objective: None
        for (objective, _), evaluation in finished.cells.items()
        if evaluation.card.decoding.get("heads") == NO_HEADS
    }
    fusions = {
        name: {entry: decoding[entry] for entry in (WEIGHTS, FITTED)}
        for name, decoding in decodings.items()
        if WEIGHTS in decoding
    }
    return {**({"without_heads": list(without)} if without else {}), **({"fusions": fusions} if fusions else {})}


def _category_recall(comparison: Comparison, objective: str) -> dict[str, Any]:
    """For models that search a few categories: how many of the validation queries' positives these contain."""
    summaries = [
        read_manifest(model_folder(comparison.run(objective, seed))).settings["summary"] for seed in comparison.seeds
    ]
    names = [name for name in summaries[0] if name.startswith("category_recall")]
    return {name: plain(Spread.of([summary[name] for summary in summaries])) for name in names}


def _shared_settings(config: RunConfig) -> dict[str, Any]:
    """Settings that all cells share."""
    settings = plain(config)
    settings.pop("objective")
    settings["train"].pop("seed")
    return settings


def _difference(finished: FinishedComparison, objective: str, measure: str) -> Difference:
    """Difference from `base`; each query is averaged over seeds first."""
    ours, theirs = (
        np.mean([finished.cells[name, seed].values["sid"][measure] for seed in finished.comparison.seeds], axis=0)
        for name in (objective, BASE)
    )
    return paired_difference(ours, theirs)
