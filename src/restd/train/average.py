"""An exponential moving average of the weights of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

_WARM_UP = 10


@dataclass(frozen=True, slots=True, eq=False)
class WeightAverage:
    """The moving average beside the weights; training itself never reads it.

    >>> layer = nn.Linear(1, 1)
    >>> average = WeightAverage.of(layer, decay=0.5)
    >>> before = layer.weight.item()
    >>> _ = layer.weight.data.add_(1.0)
    >>> average.follow(update=100)
    >>> with average.in_place():
    ...     print(round(layer.weight.item() - before, 3))
    0.5
    >>> round(layer.weight.item() - before, 3)
    1.0
    """

    decay: float
    weights: list[Tensor]
    """Trained parameters, which the module owns; under FSDP the shards of this process."""
    averages: list[Tensor]

    @classmethod
    def of(cls, module: nn.Module, *, decay: float) -> "WeightAverage":
        """Start from the weights as they are."""
        weights = [parameter.detach() for parameter in module.parameters() if parameter.requires_grad]
        return cls(decay, weights, [weight.clone() for weight in weights])

    @torch.no_grad()
    def follow(self, *, update: int) -> None:
        """Move towards the weights after an update, counted from 1.

        The first weights are random. So the average begins as one over the last few updates, and the decay rises to
        its full value.
        """
        decay = min(self.decay, (1 + update) / (_WARM_UP + update))
        get_ema_multi_avg_fn(decay)(self.averages, self.weights, None)

    @torch.no_grad()
    def restart(self) -> None:
        """Make the average equal to the weights as they are now."""
        for average, weight in zip(self.averages, self.weights, strict=True):
            average.copy_(weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the module use the average; its own weights are back afterwards, bit for bit."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange average and weights."""
        for average, weight in zip(self.averages, self.weights, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
