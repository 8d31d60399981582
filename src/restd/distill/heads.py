"""Horizon heads: from a decoder state to a point in the codebook space, one projection an offset."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from restd.errors import ConfigError

_SPREAD = 0.02


class HorizonHeads(nn.Module):
    """`Linear(d, d) → GELU → LayerNorm → Linear(d, D)` for each of H offsets, stacked so that all run in one product.

    Weights are drawn from a generator of their own: allocating heads consumes none of the model's randomness.

    >>> heads = HorizonHeads(768, 32, horizon=4)
    >>> sum(parameter.numel() for parameter in heads.parameters()) // 4
    616736
    """

    def __init__(self, width: int, dim: int, *, horizon: int, seed: int = 0) -> None:
        super().__init__()
        if min(width, dim, horizon) < 1:
            raise ConfigError(
                f"Heads from {width} to {dim} for {horizon} offsets were asked for; wanted at least 1 of each."
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

    def forward(
        self, states: Float[Tensor, "row level width"], horizon: int | None = None
    ) -> Float[Tensor, "horizon row level dim"]:
        """Project every state by the first `horizon` heads (all of them by default)."""
        rows, levels, width = states.shape
        used = slice(horizon or self.horizon)
        flat = states.reshape(1, rows * levels, width).expand(horizon or self.horizon, -1, -1)
        hidden = functional.gelu(torch.baddbmm(self.inner_bias[used], flat, self.inner[used]))
        normal = functional.layer_norm(hidden, (width,)) * self.scale[used] + self.shift[used]
        projected = torch.baddbmm(self.outer_bias[used], normal, self.outer[used])
        return projected.view(-1, rows, levels, projected.shape[-1])
