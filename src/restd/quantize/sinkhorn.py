"""Entropic optimal transport to a uniform marginal: assignments that use every code alike."""

import numpy as np
import torch
from jaxtyping import Float, Int, Int16
from torch import Tensor

from restd.codes import Codebooks, Space, spaces

EPSILON = 0.003
ITERATIONS = 50
_TINY = 1e-290
_COOLING = (0.3, 0.1, 0.03, 0.01, 0.003)
_ROUNDS_EACH = 12
_ROWS = 16_384


def sinkhorn(
    distances: Float[Tensor, "*group item code"], *, epsilon: float = EPSILON, iterations: int = ITERATIONS
) -> Float[Tensor, "*group item code"]:
    """Transport plan from items to codes, every code receiving the same mass; rows sum to one. Groups are independent.

    Distances are scaled to a span of 2 first, so that `epsilon` means the same on any data, and the iteration runs in
    double precision on two scaling vectors: at epsilon 0.003 single precision would underflow.

    >>> plan = sinkhorn(torch.tensor([[0.0, 1.0], [0.1, 1.0]]))
    >>> plan.argmax(1).tolist()
    [0, 1]
    """
    low, high = distances.amin(dim=(-2, -1), keepdim=True), distances.amax(dim=(-2, -1), keepdim=True)
    scaled = (distances - distances.amin(dim=-1, keepdim=True)).double() / ((high - low).double().clamp_min(1e-12) / 2)
    kernel = (-scaled / epsilon).exp()
    mass_per_code = distances.shape[-2] / distances.shape[-1]
    per_item = torch.ones_like(kernel[..., :1])
    per_code = torch.ones_like(kernel[..., :1, :])
    for _ in range(iterations):
        per_code = mass_per_code / (kernel.mT @ per_item).mT.clamp_min(_TINY)
        per_item = 1.0 / (kernel @ per_code.mT).clamp_min(_TINY)
    return (per_item * kernel * per_code).to(distances.dtype)


def balanced_level(
    residuals: Float[np.ndarray, "item dim"], codewords: Float[np.ndarray, "code dim"], *, space: Space = "euclidean"
) -> Int[np.ndarray, "item"]:
    """Codes of one level, each used about equally often: the nearest after every code was given its price.

    Prices are the dual of the transport problem. They are found with a temperature that falls step by step, since at a
    low one from the start they would hardly move between clusters that lie far apart.
    """
    distances = spaces.squared_distances(torch.from_numpy(residuals), torch.from_numpy(codewords), space)
    scaled = distances / distances.max().clamp_min(1e-12)
    share = float(np.log(len(residuals) / len(codewords)))
    price = torch.zeros(len(codewords))
    for temperature in _COOLING:
        for _ in range(_ROUNDS_EACH):
            cost = -temperature * torch.logsumexp((price - scaled) / temperature, dim=1, keepdim=True)
            price = -temperature * (torch.logsumexp((cost - scaled) / temperature, dim=0) - share)
    return (scaled - price).argmin(dim=1).numpy()


def assign_balanced(latents: np.ndarray, codebooks: Codebooks, *, seed: int) -> Int16[np.ndarray, "item level"]:
    """Residual codes in which every code of a level is used about equally often.

    Items are balanced in random parts of 16,384, so that memory stays bounded and a sorted catalogue does no harm.
    """
    order = np.random.default_rng(seed).permutation(len(latents))
    codes = np.empty((len(latents), codebooks.levels), np.int16)
    parts = max(1, round(len(latents) / _ROWS))
    for rows in np.array_split(order, parts):
        residual = latents[rows].astype(np.float32)
        for level in range(codebooks.levels):
            codewords = codebooks.level(level).numpy()
            codes[rows, level] = balanced_level(residual, codewords, space=codebooks.space)
            if codebooks.space == "euclidean":
                residual -= codewords[codes[rows, level]]
            else:
                chosen = torch.from_numpy(codewords[codes[rows, level]])
                residual = spaces.left_over(torch.from_numpy(residual), chosen, codebooks.space).numpy()
    return codes
