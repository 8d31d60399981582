"""`study.json`: the settings of a study, kept beside its cells, so that analyses and later runs find them."""

import json
import os
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from restd.artifacts import write_atomically
from restd.errors import ArtifactError, DataError
from restd.experiments.comparison import Comparison

STUDY_FILE, SYSTEMS_FILE = "study.json", "systems.json"
_PATHS = ("index", "data", "init")
_FIXED = (*_PATHS, "model", "config", "rates", "probe_epochs")
"""Settings that decide how cells are trained: they cannot change within a study."""


def save_study(comparison: Comparison) -> None:
    """Write the settings of a study, with paths relative to its folder."""
    folder = comparison.out.resolve()
    settings = TypeAdapter(Comparison).dump_python(comparison, mode="json")
    for name in _PATHS:
        path = getattr(comparison, name)
        settings[name] = None if path is None else os.path.relpath(path.resolve(), folder)
    settings["out"] = "."
    del settings["device"]
    write_atomically(comparison.out / STUDY_FILE, [json.dumps(settings, indent=2).encode() + b"\n"])


def load_study(folder: Path) -> Comparison:
    """Read what `save_study` wrote."""
    path = folder / STUDY_FILE
    if not path.is_file() and (folder / SYSTEMS_FILE).is_file():
        raise DataError(
            f"{folder} is a study of systems, and analyses are of one system's objectives: name one of its folders, "
            f"{folder / 'systems' / 'NAME'}."
        )
    if not path.is_file():
        raise DataError(f"{folder} is not a study: it has no {STUDY_FILE}. Make one with restd compare --out {folder}.")
    settings = json.loads(path.read_text(encoding="utf-8"))
    for name in _PATHS:
        settings[name] = None if settings[name] is None else (folder.resolve() / settings[name]).resolve()
    decoding = settings["decoding"]
    if "router" in decoding:  # written before `SearchOptions`
        settings["router"], decoding["beam"] = decoding.pop("router"), decoding.pop("width")
    return TypeAdapter(Comparison).validate_python({**settings, "out": folder})


def continue_study(comparison: Comparison) -> Comparison:
    """Add the objectives, seeds and baselines that the study has already; other training settings are refused."""
    if not (comparison.out / STUDY_FILE).is_file():
        save_study(comparison)
        return comparison
    saved = load_study(comparison.out)
    for name in _FIXED:
        before, now = (getattr(settings, name) for settings in (saved, comparison))
        if name in _PATHS:
            before, now = (None if path is None else path.resolve() for path in (before, now))
        if before != now:
            raise ArtifactError(
                f"{comparison.out} contains a study with other settings ({name}); choose another --out, or delete it."
            )
    return replace(
        comparison,
        objectives=tuple(dict.fromkeys([*saved.objectives, *comparison.objectives])),
        seeds=tuple(dict.fromkeys([*saved.seeds, *comparison.seeds])),
        baselines=tuple(dict.fromkeys([*saved.baselines, *comparison.baselines])),
        baseline_settings=saved.baseline_settings | comparison.baseline_settings,
    )
