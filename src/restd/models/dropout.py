"""Dropout whose randomness is cheap: drawn by torch, a processor spends much of training a small T5 on it."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_STEPS = 2**16


class Dropout:
    """Dropout for one pass through a model, seeded by the next number of torch's own generator.

    On a processor four numbers of 16 bits are cut from each word that SFC64 draws, and compared with the rate, which is
    right to 2⁻¹⁷. Elsewhere it is torch's own.

    Args:
        rate: share of values to drop; 0 for none, as in evaluation.

    >>> _ = torch.manual_seed(0)
    >>> kept = Dropout(0.25)(torch.ones(1000, 100))
    >>> sorted({round(float(value), 3) for value in kept.unique()}), round(float((kept > 0).float().mean()), 2)
    ([0.0, 1.333], 0.75)
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._bits: np.random.SFC64 | None = None

    def __call__(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Drop some, and scale up the others."""
        if not self.rate:
            return values
        return values * self._mask(values) if values.device.type == "cpu" else functional.dropout(values, self.rate)

    def add(self, total: Float[Tensor, "*shape"], values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """`total` and what is kept of `values`."""
        if not self.rate or values.device.type != "cpu":
            return total + self(values)
        return torch.addcmul(total, values, self._mask(values))

    @torch.compiler.disable()  # numbers of 16 bits without a sign are numpy's alone
    def _mask(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """0 for what is dropped, and the scale of the rest."""
        if self._bits is None:
            self._bits = np.random.SFC64(int(torch.randint(2**62, ())))
        count = math.prod(values.shape)
        drawn = self._bits.random_raw(-(-count // 4)).view(np.uint16)[:count]
        mask = (drawn >= round(self.rate * _STEPS)).astype(np.float32)
        mask *= 1 / (1 - self.rate)
        return torch.from_numpy(mask).view(values.shape).to(values.dtype)
