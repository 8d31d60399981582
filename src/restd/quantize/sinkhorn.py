"""Entropic optimal transport to a uniform marginal: assignments that use every code alike."""

import numpy as np
import torch
from jaxtyping import Float, Int, Int16
from torch import Tensor

from restd.quantize.codebooks import Codebooks

EPSILON = 0.003
ITERATIONS = 50
_ROWS = 16_384


def sinkhorn(
    distances: Float[Tensor, "item code"], *, epsilon: float = EPSILON, iterations: int = ITERATIONS
) -> Float[Tensor, "item code"]:
    """Transport plan from items to codes, every code receiving the same mass; rows sum to one.

    Distances are centred and scaled to [-1, 1] first, so that `epsilon` means the same on any data. The iteration
    works on logarithms: at epsilon 0.003 the plain form underflows.

    >>> plan = sinkhorn(torch.tensor([[0.0, 1.0], [0.1, 1.0]]))
    >>> plan.argmax(1).tolist()
    [0, 1]
    """
    low, high = distances.min(), distances.max()
    span = (high - low).clamp_min(1e-12) / 2
    log_plan = -((distances - (high + low) / 2) / span).double() / epsilon
    mass_per_code = float(np.log(distances.shape[0] / distances.shape[1]))
    for _ in range(iterations):
        log_plan = log_plan - torch.logsumexp(log_plan, dim=0, keepdim=True) + mass_per_code
        log_plan = log_plan - torch.logsumexp(log_plan, dim=1, keepdim=True)
    return log_plan.exp().to(distances.dtype)


def balanced_level(
    residuals: Float[np.ndarray, "item dim"],
    codewords: Float[np.ndarray, "code dim"],
    *,
    epsilon: float = EPSILON,
    iterations: int = ITERATIONS,
) -> Int[np.ndarray, "item"]:
    """Codes of one level under a balanced transport plan."""
    distances = torch.cdist(torch.from_numpy(residuals), torch.from_numpy(codewords)).square()
    return sinkhorn(distances, epsilon=epsilon, iterations=iterations).argmax(dim=1).numpy()


def assign_balanced(
    latents: np.ndarray, codebooks: Codebooks, *, seed: int, epsilon: float = 0.05
) -> Int16[np.ndarray, "item level"]:
    """Residual codes in which every code of a level is used about equally often.

    Items are balanced in random parts of 16,384, so that memory stays bounded and a sorted catalogue does no harm. A
    softer plan than that of collision repair is wanted here: whole levels are balanced, and neighbours should stay
    neighbours.
    """
    order = np.random.default_rng(seed).permutation(len(latents))
    codes = np.empty((len(latents), codebooks.levels), np.int16)
    parts = max(1, round(len(latents) / _ROWS))
    for rows in np.array_split(order, parts):
        residual = latents[rows].astype(np.float32)
        for level in range(codebooks.levels):
            codewords = codebooks.level(level)
            chosen = balanced_level(residual, codewords, epsilon=epsilon)
            codes[rows, level] = chosen
            residual -= codewords[chosen]
    return codes
