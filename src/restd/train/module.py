"""What is trained: a backbone and the objectives that supervise it, one module so that DDP and FSDP see it whole."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.distill import HorizonHeads
from restd.encode import Inputs
from restd.models import AnyBackbone, Output


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A micro-batch on its device."""

    inputs: Inputs
    sids: Int64[Tensor, "row level"]
    rows: Int64[Tensor, "row"]
    """The items' rows in the index."""
    queries: Int64[Tensor, "row"]
    """Numbers of the texts, which tell queries apart."""

    def to(self, device: torch.device | str) -> "Batch":
        """Move to a device."""
        return Batch(self.inputs.to(device), self.sids.to(device), self.rows.to(device), self.queries.to(device))


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """What the backbone made of a batch."""

    output: Output
    sid_loss: Float[Tensor, ""]
    backbone: AnyBackbone


@runtime_checkable
class Objective(Protocol):
    """A loss beside the generation loss; objectives add up."""

    def __call__(self, batch: Batch, found: Forward, *, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be added, and parts for the log."""
        ...


class Trainee(nn.Module):
    """A backbone, its objectives, and heads that are there only to be there."""

    def __init__(
        self, backbone: AnyBackbone, objectives: dict[str, nn.Module], *, idle: HorizonHeads | None = None
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.objectives = nn.ModuleDict(objectives)
        if idle is not None:
            self.idle = idle.requires_grad_(False)

    def forward(
        self, batch: Batch, step: int, *, only_sid: bool = False
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """The training loss of a micro-batch, and its parts; for validation, the generation loss alone.

        The backbone goes first, so that whatever an objective draws cannot change its dropout.
        """
        memory = self.backbone.encode(batch.inputs)
        output = self.backbone.states(memory, batch.sids)
        sid_loss = self.backbone.sid_loss(output, batch.sids)
        loss, parts = sid_loss, {"sid_loss": sid_loss.detach()}
        found = Forward(output, sid_loss, self.backbone)
        for objective in () if only_sid else self.objectives.values():
            added, said = objective(batch, found, step=step)
            loss = loss + added
            parts.update(said)
        return loss, {"loss": loss.detach(), **parts}
