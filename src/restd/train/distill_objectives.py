"""Losses beside the generation loss, as modules that the training module calls."""

from torch import Tensor, nn

from restd.distill import DistillLog, OutputDistiller, ResidualDistiller
from restd.train.module import Batch, Forward


class TrajectoryObjective(nn.Module):
    """The trajectory loss of horizon heads."""

    def __init__(self, distiller: ResidualDistiller) -> None:
        super().__init__()
        self.distiller = distiller

    def forward(self, batch: Batch, forward: Forward, *, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be added, and its parts."""
        levels = self.distiller.teacher.geometry.levels  # a disambiguation code has no teacher
        states = forward.output.states[:, :levels]
        loss = self.distiller(states, batch.rows, sid_loss=forward.sid_loss, step=step, queries=batch.queries)
        return loss, _logged(self.distiller.last)


class OutputObjective(nn.Module):
    """A divergence of the retriever's own logits from the teacher."""

    def __init__(self, distiller: OutputDistiller, *, prefix: str = "") -> None:
        super().__init__()
        self.distiller = distiller
        self.prefix = prefix

    def forward(self, batch: Batch, forward: Forward, *, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be added, and its parts."""
        levels, codes = self.distiller.teacher.geometry.codebooks.mask.shape
        logits = forward.backbone.logits(forward.output.states[:, :levels])[:, :, :codes]
        loss = self.distiller(logits, batch.rows, sid_loss=forward.sid_loss, step=step, queries=batch.queries)
        return loss, _logged(self.distiller.last, prefix=self.prefix)


class ExtraObjective(nn.Module):
    """The losses that a backbone brings itself (`Backbone.extra_loss`)."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, batch: Batch, forward: Forward, *, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be added, and its parts."""
        return self.loss(forward.output, batch.rows, batch.queries)


def _logged(log: DistillLog | None, *, prefix: str = "") -> dict[str, Tensor]:
    """Values of a distiller for the log of an update; a prefix tells two distillers apart."""
    assert log is not None
    uncapped = log.divergence.new_tensor(log.requested_weight)
    parts = {"kl": log.divergence, "weight": log.weight, "capped": (log.weight < uncapped).float()}
    return {f"{prefix}{name}": value for name, value in parts.items()}
