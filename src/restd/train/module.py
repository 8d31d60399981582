"""What is trained: a backbone and its objectives, as one module, so that DDP and FSDP see it whole."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.distill import HorizonHeads
from restd.encode import Inputs
from restd.models import Backbone, Memory, Output


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A micro-batch on its device."""

    inputs: Inputs
    sids: Int64[Tensor, "row level"]
    rows: Int64[Tensor, "row"]
    """The items' rows in the index."""
    queries: Int64[Tensor, "row"]
    """Numbers of the texts: rows of one query have the same."""

    def to(self, device: torch.device | str) -> "Batch":
        """Move to a device."""
        return Batch(self.inputs.to(device), self.sids.to(device), self.rows.to(device), self.queries.to(device))


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """Results of the backbone's forward pass."""

    output: Output
    sid_loss: Float[Tensor, ""]
    backbone: Backbone
    memory: Memory | None = None
    """What the encoder made of the batch; None for an objective that is called on states alone."""


@runtime_checkable
class GenerationLoss(Protocol):
    """A generation loss in place of the backbone's own."""

    def __call__(self, batch: Batch, output: Output, backbone: Backbone, *, validating: bool) -> Float[Tensor, ""]:
        """Mean over rows and positions."""
        ...


@runtime_checkable
class Objective(Protocol):
    """A loss beside the generation loss; objectives add up."""

    def __call__(self, batch: Batch, forward: Forward, *, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be added, and parts for the log."""
        ...


class TrainingModule(nn.Module):
    """A backbone and its objectives.

    Args:
        backbone: the model that is trained.
        objectives: losses beside its generation loss, by name.
        generation: its generation loss; unset, the backbone's own.
        idle_heads: horizon heads that no objective uses and nothing trains; they only take their memory.
    """

    def __init__(
        self,
        backbone: Backbone,
        objectives: dict[str, nn.Module],
        *,
        generation: GenerationLoss | None = None,
        idle_heads: HorizonHeads | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.objectives = nn.ModuleDict(objectives)
        self.generation = generation
        if idle_heads is not None:
            self.idle = idle_heads.requires_grad_(False)

    def forward(
        self, batch: Batch, step: int, *, only_sid: bool = False
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """The training loss of a micro-batch, and its parts; for validation, the generation loss alone.

        The backbone comes first, so that random numbers an objective draws cannot change its dropout.
        """
        memory = self.backbone.encode(batch.inputs)
        output = self.backbone.states(memory, batch.sids)
        if self.generation is None:
            sid_loss = self.backbone.sid_loss(output, batch.sids)
        else:
            sid_loss = self.generation(batch, output, self.backbone, validating=only_sid)
        loss, parts = sid_loss, {"sid_loss": sid_loss.detach()}
        result = Forward(output, sid_loss, self.backbone, memory)
        for objective in () if only_sid else self.objectives.values():
            extra_loss, extra_parts = objective(batch, result, step=step)
            loss = loss + extra_loss
            parts.update(extra_parts)
        return loss, {"loss": loss.detach(), **parts}
