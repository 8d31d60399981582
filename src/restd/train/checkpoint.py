"""Models, horizon heads and checkpoints on disk: artefacts, written whole or not at all."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from restd.artifacts import create, open_artifact
from restd.artifacts.manifest import MANIFEST
from restd.artifacts.store import Writer
from restd.distill.heads import KIND as HEADS_KIND
from restd.distill.heads import SCHEMA as HEADS_SCHEMA
from restd.errors import ArtifactError
from restd.models import Backbone
from restd.models.store import KIND as MODEL_KIND
from restd.models.store import SCHEMA as MODEL_SCHEMA
from restd.train.average import WeightAverage

KIND = "checkpoint"
SCHEMA = 1
_HEADS = "objectives.trajectory.distiller.heads."
_OPTIMIZER = "optimizer."
_MODEL = "model."
_AVERAGE = "average."
_SCALER = "scaler"
# gathered in the first process's main memory, whatever DDP or FSDP did to it; the other processes get nothing
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_LOAD = StateDictOptions(full_state_dict=True, strict=False)


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Progress of a run."""

    update: int = 0
    best: float | None = None
    """Best validation so far; higher is better."""
    best_update: int = 0
    stale: int = 0
    """Validations since the best one."""


def write_model(
    folder: Path,
    backbone: Backbone,
    state: Mapping[str, Tensor],
    *,
    ids: pa.StringArray,
    settings: Mapping[str, Any],
    parents: Mapping[str, str],
) -> None:
    """Write a model as an artefact: the backbone only, no heads, no teacher."""
    described = {**settings, "backbone": backbone.describe()}
    with create(folder, kind=MODEL_KIND, schema=MODEL_SCHEMA, settings=described, parents=parents) as writer:
        backbone.write(writer, state, ids)


def write_heads(
    folder: Path, module: nn.Module, *, layout: Mapping[str, Any], identity: str, update: int, write: bool
) -> None:
    """Write the horizon heads of a training module beside its model, for searches that use them."""
    state: dict[str, Any] = get_model_state_dict(module, options=_WHOLE)
    heads = {name.removeprefix(_HEADS): value for name, value in state.items() if name.startswith(_HEADS)}
    if not write:
        return
    temperatures = cast(Any, module.get_submodule("objectives.trajectory.distiller")).temperatures
    tensors = {**heads, "temperatures": temperatures}
    settings = {"layout": dict(layout), "identity": identity, "update": update}
    with create(folder, kind=HEADS_KIND, schema=HEADS_SCHEMA, settings=settings) as writer:
        writer.tensors("heads", {name: value.detach().cpu().numpy() for name, value in tensors.items()})


def backbone_state(module: nn.Module) -> dict[str, Tensor]:
    """Weights of the backbone inside a training module, gathered in the first process from wherever they are."""
    state: dict[str, Any] = get_model_state_dict(module, options=_WHOLE)
    return {name.removeprefix("backbone."): value for name, value in state.items() if name.startswith("backbone.")}


def write_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    *,
    identity: str,
    write: bool,
    scaler: GradScaler | None = None,
    average: WeightAverage | None = None,
    extra: Callable[[Writer], None] | None = None,
) -> None:
    """Write weights, their average, optimiser, loss scaler and progress, and whatever `extra` adds.

    Every process must call it, the one with `write` writes.
    """
    weights: dict[str, Any] = get_model_state_dict(module, options=_WHOLE)
    tensors = {f"{_MODEL}{name}": value for name, value in weights.items()}
    if average is not None:
        with average.in_place():
            averaged: dict[str, Any] = get_model_state_dict(module, options=_WHOLE)
            # copies: the entries may be the very tensors that are exchanged
            tensors |= {f"{_AVERAGE}{name}": value.clone() for name, value in averaged.items()}
    moments: Any = get_optimizer_state_dict(module, optimizer, options=_WHOLE)
    for name, values in moments.get("state", {}).items():
        tensors.update({f"{_OPTIMIZER}{name}.{key}": value for key, value in values.items()})
    if write:
        scale = {} if scaler is None else {_SCALER: scaler.state_dict()}
        settings = {"identity": identity, **asdict(state), **scale}
        with create(folder, kind=KIND, schema=SCHEMA, settings=settings) as writer:
            writer.tensors("training", {name: value.detach().cpu().numpy() for name, value in tensors.items()})
            if extra is not None:
                extra(writer)


def read_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    identity: str,
    scaler: GradScaler | None = None,
    average: WeightAverage | None = None,
) -> TrainerState | None:
    """Restore a run from its last checkpoint; None where there is none."""
    if not (folder / MANIFEST).is_file():
        return None
    artifact = open_artifact(folder, kind=KIND, schema=SCHEMA)
    settings = dict(artifact.manifest.settings)
    if settings.pop("identity") != identity:
        raise ArtifactError(
            f"{folder} belongs to a run with other settings, data or index; choose another --out, or delete it to "
            "start again."
        )
    scale = settings.pop(_SCALER, None)
    if scaler is not None and scale is not None:
        scaler.load_state_dict(scale)
    tensors = {name: torch.from_numpy(value) for name, value in artifact.tensors("training").items()}
    whole = StateDictOptions(full_state_dict=True)
    if average is not None:
        set_model_state_dict(module, _named(_AVERAGE, tensors), options=whole)
        average.restart()
    set_model_state_dict(module, _named(_MODEL, tensors), options=whole)
    moments: dict[str, Any] = {}
    for name, value in tensors.items():
        if name.startswith(_OPTIMIZER):
            parameter, _, key = name.removeprefix(_OPTIMIZER).rpartition(".")
            moments.setdefault(parameter, {})[key] = value
    groups = get_optimizer_state_dict(module, optimizer, options=_LOAD)["param_groups"]
    set_optimizer_state_dict(module, optimizer, {"state": moments, "param_groups": groups}, options=_LOAD)
    return TrainerState(**settings)


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
