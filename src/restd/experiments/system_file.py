"""`systems.json`: the settings of a comparison of systems, kept so that a later command continues it or adds to it."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from restd.artifacts import hash_file, write_atomically
from restd.data import EVIDENCE
from restd.data.dataset import find_table, items_hash
from restd.errors import ArtifactError
from restd.experiments.study_file import SYSTEMS_FILE
from restd.experiments.system_comparison import SystemComparison, SystemPlan


def continue_systems(comparison: SystemComparison) -> SystemComparison:
    """Add the systems, objectives and seeds that the folder has already; another budget or other data are refused."""
    path = comparison.out / SYSTEMS_FILE
    if not path.is_file():
        return comparison
    saved = json.loads(path.read_text(encoding="utf-8"))
    now = _settings(comparison)
    for name, what in (("budget", "another budget"), ("sources", "other data"), ("encoder", "another encoder")):
        if saved[name] != now[name]:
            raise ArtifactError(
                f"{comparison.out} contains a study with {what}; choose another --out, or delete it. A study is one "
                "table, so all its systems share data and budget."
            )
    before = TypeAdapter(dict[str, SystemPlan]).validate_python(saved["plans"])
    plans = dict(before)
    for name, plan in comparison.plans.items():
        plans[name] = plans[name].joined(plan) if name in plans else plan
    return replace(comparison, plans=plans)


def save_systems(comparison: SystemComparison) -> None:
    """Write the settings of a study, with paths relative to its folder."""
    text = json.dumps(_settings(comparison), indent=2, ensure_ascii=False)
    write_atomically(comparison.out / SYSTEMS_FILE, [text.encode() + b"\n"])


def sources(data: Path) -> dict[str, str | None]:
    """Hashes of the tables that a study is of."""
    return {"items": items_hash(data), "judgments": hash_file(find_table(data, EVIDENCE["search"]))}


def _settings(comparison: SystemComparison) -> dict[str, Any]:
    settings = {
        "data": os.path.relpath(comparison.data.resolve(), comparison.out.resolve()),
        "sources": sources(comparison.data),
        "budget": {"name": comparison.budget.name, "sections": comparison.budget.sections},
        "encoder": list(comparison.encoder),
        "plans": {name: asdict(plan) for name, plan in comparison.plans.items()},
        "split": comparison.split,
        "measures": list(map(str, comparison.measures)),
        "graded": comparison.graded,
        "decoding": comparison.decoding.card(task="search", routes=True),
        "left_out": dict(comparison.left_out),
    }
    return json.loads(json.dumps(settings))  # as it is read back
