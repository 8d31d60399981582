"""The space that codes quantise: what a codeword leaves of a point, and how far a point is from every codeword.

Codebooks name their space. Everything that walks along codes or compares points with codewords asks here, so that no
part of the library takes a ball for a flat space.
"""

from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from restd.codes import poincare
from restd.errors import ConfigError

Space = Literal["euclidean", "poincare"]
"""`euclidean`: differences and straight distances. `poincare`: the ball of `restd.codes.poincare`."""
SPACES: tuple[Space, ...] = ("euclidean", "poincare")
EUCLIDEAN: Space = "euclidean"


def left_over(
    points: Float[Tensor, "*#shape dim"], codewords: Float[Tensor, "*#shape dim"], space: Space
) -> Float[Tensor, "*shape dim"]:
    """The residual after a code: x - c, or x ⊖ c in the ball."""
    return points - codewords if space == EUCLIDEAN else poincare.mobius_subtract(points, codewords)


def squared_distances(
    points: Float[Tensor, "*batch point dim"], codewords: Float[Tensor, "*#batch code dim"], space: Space
) -> Float[Tensor, "*batch point code"]:
    """Squared distance of every point from every codeword.

    >>> squared_distances(torch.tensor([[0.0]]), torch.tensor([[0.5], [0.2]]), "euclidean").sqrt()
    tensor([[0.5000, 0.2000]])
    """
    if space == EUCLIDEAN:
        return torch.cdist(points, codewords).square()
    return poincare.squared_distances(points, codewords)


def squared_norms(points: Float[Tensor, "*shape dim"], space: Space) -> Float[Tensor, "*shape"]:
    """Squared distance of each point from the origin: the error of what is left after the last code."""
    return points.square().sum(-1) if space == EUCLIDEAN else poincare.squared_norms(points)


def squared_distance(
    points: Float[Tensor, "*#shape dim"], others: Float[Tensor, "*#shape dim"], space: Space
) -> Float[Tensor, "*shape"]:
    """Squared distance of pairs of points."""
    if space == EUCLIDEAN:
        return (points - others).square().sum(-1)
    return poincare.squared_distance(points, others)


def into_space(vectors: Float[Tensor, "*shape dim"], space: Space) -> Float[Tensor, "*shape dim"]:
    """Vectors that a network made, as points: unchanged, or through the exponential map at the origin."""
    return vectors if space == EUCLIDEAN else poincare.exp_map(vectors)


def refuse_outside(points: Float[Tensor, "*shape dim"], space: Space, *, what: str) -> None:
    """Refuse points that the space does not have: those of the ball are shorter than one."""
    if space == EUCLIDEAN:
        return
    longest = float(points.float().square().sum(-1).max().sqrt()) if points.numel() else 0.0
    if not longest < 1:
        raise ConfigError(
            f"{what} of the Poincaré ball must be shorter than 1, but one has length {longest:.4g}. Map vectors into "
            "the ball first (restd.codes.poincare.exp_map), or use codebooks of the space euclidean."
        )


def ball_trajectory(
    latents: Float[Tensor, "row dim"], codewords: Float[Tensor, "row level dim"]
) -> Float32[Tensor, "row step dim"]:
    """r_0 = x, r_t = r_{t-1} ⊖ c_t along given codewords, in the ball."""
    steps = [poincare.inside(latents)]
    for codeword in codewords.unbind(dim=1):
        steps.append(poincare.mobius_subtract(steps[-1], codeword))
    return torch.stack(steps, dim=1)


def ball_sum(codewords: Float[Tensor, "row level dim"]) -> Float32[Tensor, "row dim"]:
    """The point of which these codewords leave nothing: c_L, then ⊞ c_{L-1}, …, ⊞ c_1."""
    *before, point = codewords.float().unbind(dim=1)
    for codeword in reversed(before):
        point = poincare.coadd(point, codeword)
    return point
