"""Trained models on disk: describing, writing and opening them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from restd.artifacts import Artifact, open_artifact, read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.data import Task
from restd.errors import ArtifactError
from restd.index import SidIndex
from restd.models.contract import Backbone
from restd.models.registry import kind_of

KIND = "model"
SCHEMA = 1
FOLDER = "model"
"""Where `restd train --out DIR` puts the model itself."""


def read_backbone(artifact: Artifact, description: Mapping[str, Any]) -> Backbone:
    """Build a backbone again from what `Backbone.describe` and `Backbone.write` left in an artefact."""
    return kind_of(description).read(artifact, description)


def model_folder(folder: Path) -> Path:
    """Where the model itself is: this folder, or inside the one `restd train --out` made."""
    inside = folder / FOLDER
    return inside if not (folder / MANIFEST).is_file() and (inside / MANIFEST).is_file() else folder


def read_description(folder: Path) -> Mapping[str, Any]:
    """How a trained model's manifest describes its backbone, without loading any weights."""
    return read_manifest(model_folder(folder)).settings["backbone"]


def task_of(folder: Path) -> Task:
    """What a trained model answers: texts (`search`) or histories (`recommend`)."""
    return kind_of(read_description(folder)).task


def open_model(folder: Path, *, device: torch.device | str | None = None) -> tuple[Backbone, Artifact]:
    """Open a trained model: its own folder, or the one `restd train --out` made.

    Args:
        folder: where the model is.
        device: where it will run; the CPU by default.
    """
    artifact = open_artifact(model_folder(folder), kind=KIND, schema=SCHEMA)
    backbone = read_backbone(artifact, artifact.manifest.settings["backbone"])
    return backbone if device is None else backbone.to(device), artifact


def index_generation(artifact: Artifact) -> int:
    """Generation of the index that a model was trained on; items of later ones are new to it.

    Models written before this was recorded count as trained on generation 0: their indexes were written before
    generations were recorded too, so all items of these have generation 0, and what is added from now on is new.
    """
    return artifact.manifest.settings.get("index_generation", 0)


def refuse_other_layout(artifact: Artifact, index: SidIndex) -> None:
    """Refuse a model that was trained with other codebooks or levels; items may have come and gone."""
    own, other = artifact.manifest.settings["layout"], index.layout()
    if own == other:
        return
    if own["sizes"] != other["sizes"]:
        differs = f"levels of {own['sizes']} codes, but the index has {other['sizes']}"
    elif own["codebooks"] == other["codebooks"]:
        differs = "other identifiers of the same shape"
    else:
        differs = f"codebooks {str(own['codebooks'])[:8]}, but the index has {str(other['codebooks'])[:8]}"
    raise ArtifactError(
        f"{artifact.folder} was trained for {differs}; point to the index it was trained with, or train a model for "
        "this one."
    )
