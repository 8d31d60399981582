"""`run.json`, the record of a training run: its settings, and where its index and items are."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from restd.artifacts import write_atomically
from restd.artifacts.manifest import recorded_versions

RUN = "run.json"
_INDEX, _ITEMS = "index", "items"


def write_run_record(
    out: Path,
    *,
    sources: Mapping[str, Path],
    identity: str,
    settings: Mapping[str, Any],
    parents: Mapping[str, str],
    machine: Mapping[str, Any],
) -> None:
    """Write `run.json` into the folder of a run.

    Args:
        out: folder of the run.
        sources: where `index` and `catalog` are; stored relative to the folder, so that all may move together.
        identity: hash of all that decides the result.
        settings: of the run, as plain values.
        parents: hashes of what the run is made from.
        machine: what it runs on.
    """
    folder = out.resolve()
    record = {
        "identity": identity,
        "places": {name: os.path.relpath(path.resolve(), folder) for name, path in sources.items()},
        "told": settings,
        "parents": parents,
        "versions": recorded_versions(),
        "machine": machine,
    }
    write_atomically(out / RUN, [json.dumps(record, indent=2).encode() + b"\n"])


def run_sources(model: Path) -> dict[str, Path]:
    """Where the `index` and the `catalog` of a model are, as far as they exist.

    Args:
        model: a folder that `Retriever.save` wrote, which contains both, or one of a training run, whose record says
            where they were.
    """
    if (model / _INDEX).is_dir() and (model / _ITEMS).is_dir():
        return {"index": model / _INDEX, "catalog": model / _ITEMS}
    for record in (model / RUN, model.parent / RUN):
        if record.is_file():
            stored = json.loads(record.read_text(encoding="utf-8")).get("places", {})
            paths = {name: (record.parent / path).resolve() for name, path in stored.items()}
            return {name: path for name, path in paths.items() if path.exists()}
    return {}
