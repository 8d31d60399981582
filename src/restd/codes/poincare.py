"""The Poincaré ball of curvature -1: residuals by Möbius subtraction, distances that grow towards the boundary.

Everything is float32 and stays finite: points are kept inside radius 1 - 1e-3, differences are subtracted rather than
made of products of large numbers, and squared distances have a gradient at zero.
"""

import torch
from jaxtyping import Float, Float32
from torch import Tensor

RADIUS = 1 - 1e-3
"""Largest length of a point; beyond it float32 cannot tell distances apart."""
_TINY = 1e-12
_SMALL = 1e-3


def inside(points: Float[Tensor, "*shape dim"]) -> Float32[Tensor, "*shape dim"]:
    """Draw points that lie beyond `RADIUS` back to it.

    >>> inside(torch.tensor([[3.0, 4.0], [0.1, 0.2]]))
    tensor([[0.5994, 0.7992],
            [0.1000, 0.2000]])
    """
    points = points.float()
    return points * (RADIUS / _lengths(points)).clamp_max(1.0)


def exp_map(vectors: Float[Tensor, "*shape dim"]) -> Float32[Tensor, "*shape dim"]:
    """exp_0(v) = tanh(‖v‖) v / ‖v‖: a vector at the origin as a point of the ball, at distance 2‖v‖."""
    vectors = vectors.float()
    lengths = _lengths(vectors)
    return inside(vectors * (lengths.tanh() / lengths))


def log_map(points: Float[Tensor, "*shape dim"]) -> Float32[Tensor, "*shape dim"]:
    """log_0(x) = artanh(‖x‖) x / ‖x‖: the inverse of `exp_map`.

    >>> vectors = torch.tensor([[0.3, -0.4], [0.0, 0.0]])
    >>> torch.allclose(log_map(exp_map(vectors)), vectors)
    True
    """
    points = inside(points)
    lengths = _lengths(points)
    return points * (lengths.clamp_max(RADIUS).atanh() / lengths)


def mobius_subtract(
    points: Float[Tensor, "*#shape dim"], codewords: Float[Tensor, "*#shape dim"]
) -> Float32[Tensor, "*shape dim"]:
    """X ⊖ c = x ⊕ (-c): what a codeword leaves of a point. Its distance from the origin is that of x and c.

    The numerator of the definition, (1 - 2x·c + ‖c‖²) x - (1 - ‖x‖²) c, is written as the equal (1 - ‖x‖²)(x - c) +
    ‖x - c‖² x: it is exactly zero where x = c, and near it nothing cancels.

    >>> mobius_subtract(torch.tensor([0.3, 0.9]), torch.tensor([0.3, 0.9]))
    tensor([0., 0.])
    """
    points, codewords = points.float(), codewords.float()
    gap = points - codewords
    square = gap.square().sum(-1, keepdim=True)
    ours, theirs = (1 - part.square().sum(-1, keepdim=True) for part in (points, codewords))
    # 1 - 2x·c + ‖x‖²‖c‖², as a sum of what cannot be negative
    denominator = square + ours * theirs
    return inside((ours * gap + square * points) / denominator.clamp_min(_TINY))


def coadd(
    residuals: Float[Tensor, "*#shape dim"], codewords: Float[Tensor, "*#shape dim"]
) -> Float32[Tensor, "*shape dim"]:
    """R ⊞ c = (γ_r² r + γ_c² c) / (γ_r² + γ_c² - 1): the point of which c left r, so that (x ⊖ c) ⊞ c = x.

    >>> point, codeword = torch.tensor([0.5, 0.1]), torch.tensor([-0.3, 0.6])
    >>> torch.allclose(coadd(mobius_subtract(point, codeword), codeword), point, atol=1e-6)
    True
    """
    residuals, codewords = residuals.float(), codewords.float()
    ours, theirs = (1 - part.square().sum(-1, keepdim=True) for part in (residuals, codewords))
    # both Lorentz factors multiplied by ours · theirs, so that neither is large
    return inside((theirs * residuals + ours * codewords) / (ours + theirs - ours * theirs).clamp_min(_TINY))


def squared_distances(
    points: Float[Tensor, "*batch point dim"], codewords: Float[Tensor, "*#batch code dim"]
) -> Float32[Tensor, "*batch point code"]:
    """d(x, c)² with d = arcosh(1 + 2‖x - c‖² / ((1 - ‖x‖²)(1 - ‖c‖²))), of every point and codeword.

    >>> round(squared_distances(torch.tensor([[0.0]]), torch.tensor([[0.5]])).sqrt().item(), 4)  # ln 3
    1.0986
    """
    points, codewords = points.float(), codewords.float()
    # differences, not products: near the boundary a product's rounding would be divided by almost nothing
    gaps = torch.cdist(points, codewords, compute_mode="donot_use_mm_for_euclid_dist").square()
    ours, theirs = (1 - part.square().sum(-1) for part in (points, codewords))
    return _squared_arcosh(gaps / (ours[..., :, None] * theirs[..., None, :]).clamp_min(_TINY))


def squared_distance(
    points: Float[Tensor, "*#shape dim"], others: Float[Tensor, "*#shape dim"]
) -> Float32[Tensor, "*shape"]:
    """d(x, y)² of pairs."""
    points, others = points.float(), others.float()
    gaps = (points - others).square().sum(-1)
    ours, theirs = (1 - part.square().sum(-1) for part in (points, others))
    return _squared_arcosh(gaps / (ours * theirs).clamp_min(_TINY))


def squared_norms(points: Float[Tensor, "*shape dim"]) -> Float32[Tensor, "*shape"]:
    """d(0, x)²."""
    squares = points.float().square().sum(-1)
    return _squared_arcosh(squares / (1 - squares).clamp_min(_TINY))


def _lengths(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1, keepdim=True).clamp_min(_TINY**2).sqrt()


def _squared_arcosh(ratio: Tensor) -> Tensor:
    """arcosh(1 + 2v)² = 4 arsinh(√v)², by its series near zero, where the root has no gradient."""
    small = ratio < _SMALL
    safe = torch.where(small, 1.0, ratio)
    series = ratio * (1 - ratio * (1 / 3 - ratio * (8 / 45)))
    return 4 * torch.where(small, series, safe.sqrt().asinh().square())
