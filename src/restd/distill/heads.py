"""Horizon heads: from a decoder state to a point in the codebook space, one projection per offset."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from restd.errors import ConfigError

KIND = "horizon-heads"
SCHEMA = 1
FOLDER = "heads"
"""Kind, schema and folder of the heads that a finished run saves: beside the model, never in it."""
_SPREAD = 0.02


class HorizonHeads(nn.Module):
    """`Linear(d, d) → GELU → LayerNorm → Linear(d, D)` for each of H offsets, their weights stacked.

    Weights are drawn from a generator of their own: allocating heads consumes none of the model's randomness. Biases,
    scales and shifts are stacked like the weights, so their number of dimensions does not tell them apart: `undecayed`
    names the parameters that an optimiser should not decay.

    >>> heads = HorizonHeads(768, 32, horizon=4)
    >>> sum(parameter.numel() for parameter in heads.parameters()) // 4
    616736
    """

    undecayed: ClassVar[tuple[str, ...]] = ("inner_bias", "scale", "shift", "outer_bias")

    def __init__(self, width: int, dim: int, *, horizon: int, seed: int = 0) -> None:
        super().__init__()
        if min(width, dim, horizon) < 1:
            raise ConfigError(
                f"Heads need a width, a dimension and a horizon of at least 1; got {width}, {dim} and {horizon}."
            )
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.Parameter(_SPREAD * torch.randn(horizon, width, width, generator=generator))
        self.inner_bias = nn.Parameter(torch.zeros(horizon, 1, width))
        self.scale = nn.Parameter(torch.ones(horizon, 1, width))
        self.shift = nn.Parameter(torch.zeros(horizon, 1, width))
        self.outer = nn.Parameter(_SPREAD * torch.randn(horizon, width, dim, generator=generator))
        self.outer_bias = nn.Parameter(torch.zeros(horizon, 1, dim))

    @property
    def horizon(self) -> int:
        """Number of heads."""
        return self.inner.shape[0]

    @property
    def width(self) -> int:
        """Width of the states they read."""
        return self.inner.shape[1]

    def ahead(self, state: Float[Tensor, "row width"]) -> Float[Tensor, "horizon row dim"]:
        """Project one state by every head: where the residuals of its own level and of later ones should be."""
        hidden = functional.gelu(torch.einsum("rw,hwv->hrv", state, self.inner) + self.inner_bias)
        normal = functional.layer_norm(hidden, (self.width,)) * self.scale + self.shift
        return torch.baddbmm(self.outer_bias, normal, self.outer)

    def forward(
        self, states: Float[Tensor, "row level width"], horizon: int | None = None
    ) -> Float[Tensor, "cell row dim"]:
        """Project states by the first `horizon` heads (all of them by default), cell by cell as `cells` lists them.

        One product per offset, over the states that have a level so far ahead. The norm's scale and shift are folded
        into the last layer: they cost a product of weights instead of a pass over all states.
        """
        rows, levels, width = states.shape
        used = range(min(horizon or self.horizon, levels))
        by_level = states.transpose(0, 1).contiguous()  # so that the states of an offset lie together
        # unbound, not indexed: the gradients are then stacked once instead of added up in full-sized zeros
        inner = [
            torch.addmm(bias, by_level[: levels - offset].view(-1, width), weight)
            for offset, bias, weight in zip(used, self.inner_bias.unbind(), self.inner.unbind(), strict=False)
        ]
        hidden = functional.layer_norm(functional.gelu(torch.cat(inner)), (width,))
        outer = self.scale.transpose(1, 2) * self.outer
        outer_bias = torch.baddbmm(self.outer_bias, self.shift, self.outer)
        parts = hidden.split([len(part) for part in inner])
        projected = [
            torch.addmm(bias, part, weight)
            for part, bias, weight in zip(parts, outer_bias.unbind(), outer.unbind(), strict=False)
        ]
        return torch.cat(projected).view(-1, rows, outer.shape[-1])
