"""What is known of a run beside its model: the quality of its index, and evaluations with their protocol cards."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from restd.artifacts import read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.errors import ArtifactError
from restd.evaluate.evaluation import KIND
from restd.index import measure_quality
from restd.index.sid_index import FOLDER as INDEX
from restd.snapshot import Snapshot

logger = logging.getLogger(__name__)
_QUALITY, _SUMMARY = "quality.json", "summary.json"
_FOLDERS = 200
"""Folders beside the run that are looked at."""


def quality_report(snapshot: Snapshot, home: Path | None) -> tuple[dict[str, Any], str]:
    """The quality of what is searched, and whether it is from `quality.json` or was `measured` now.

    Args:
        snapshot: what is searched.
        home: folder of the index. Its report is taken where the snapshot still has the items that it was built with.
    """
    if home is not None and snapshot.embeddings is not None:
        outside = home.parent if home.name == INDEX and (home / MANIFEST).is_file() else home
        stored = _read_json(outside / _QUALITY)
        if stored is not None:
            return stored, _QUALITY
    return measure_quality(snapshot.index).to_dict(), "measured"


def find_evaluations(run: Path, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Evaluations in a run's folder and beside it: name, folder, protocol card, averages.

    Those of other snapshots are there too and say so: their figures hold for other items.
    """
    evaluations = []
    for folder in _folders(run.resolve()):
        try:
            manifest = read_manifest(folder)
        except ArtifactError as error:  # it has no figures to show, and the others have
            logger.warning("Evaluations beside the model, without %s: %s", folder, error)
            continue
        if manifest.kind != KIND:
            continue
        settings = manifest.settings
        made_for = settings["card"].get("snapshot", settings["card"].get("index"))
        evaluations.append(
            {
                "name": settings["name"],
                "folder": str(folder.relative_to(run.resolve().parent)),
                "card": settings["card"],
                "summary": settings["summary"],
                "same_snapshot": made_for == snapshot.hash,
            }
        )
    return evaluations


def find_summary(run: Path) -> dict[str, Any] | None:
    """Figures that `restd quickstart` wrote beside its model; None where it wrote none."""
    summary = _read_json(run.resolve().parent / _SUMMARY)
    return summary if summary is not None and "rankers" in summary else None


def _read_json(path: Path) -> dict[str, Any] | None:
    """What a report says; None where there is none, and with a warning where it cannot be read."""
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        logger.warning("%s cannot be read: %s", path, error)
        return None
    return values if isinstance(values, dict) else None


def _folders(run: Path) -> Iterator[Path]:
    """Where `restd evaluate --out` and its like may have written: in the run, in its parent, one folder deeper."""
    for base in (run, run.parent):
        inside = sorted(path for path in base.iterdir() if path.is_dir() and not path.name.startswith("."))
        for folder in inside[:_FOLDERS]:
            for candidate in (folder, folder / "evaluation"):
                if (candidate / MANIFEST).is_file() and not (base != run and candidate == run / "evaluation"):
                    yield candidate
