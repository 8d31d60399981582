"""Losses that are added to an RQ-VAE's own: what they may look at, and what they give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """Items on their way through the levels.

    Args:
        latents: output of the encoder.
        residuals: what enters each level: the latents less the codewords before it. Codewords are constants here, so
            that a loss on residuals of any level reaches the encoder.
        codes: chosen at each level.
    """

    latents: Float[Tensor, "item dim"]
    residuals: tuple[Float[Tensor, "item dim"], ...]
    codes: tuple[Int64[Tensor, "item"], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One batch, as loss parts see it.

    Args:
        rows: of the fitted items that are in the batch.
        walk: of these items.
        books: codewords of each level, which a loss may move.
        reconstructions: output of the decoder.
        follow: the walk of any vectors through the network as it is, with gradients.
        data: standardised vectors of all fitted items.
    """

    rows: Int64[Tensor, "item"]
    walk: Walk
    books: Sequence[Float[Tensor, "_ dim"]]
    reconstructions: Float[Tensor, "item input"]
    follow: Callable[[Float[Tensor, "other input"]], Walk]
    data: Float[Tensor, "fitted input"]

    def soft_codes(self, level: int) -> Float[Tensor, "item code"]:
        """p(j) = softmax_j(-‖r - c_j‖²): which codes of a level each item prefers, and how much."""
        return (-torch.cdist(self.walk.residuals[level], self.books[level]).square()).softmax(dim=1)


@runtime_checkable
class LossPart(Protocol):
    """A loss that is added. It has a generator of its own, so that it changes nothing else by being there."""

    name: ClassVar[str]

    def __call__(self, step: Step) -> Float[Tensor, ""]:
        """The loss of one batch, weighted."""
        ...


def contrast(
    anchors: Float[Tensor, "pair dim"],
    positives: Float[Tensor, "pair dim"],
    excluded: Tensor,
    *,
    temperature: float,
) -> Float[Tensor, ""]:
    """InfoNCE over cosines: each anchor against its own positive and the positives of others.

    Args:
        anchors: one side of each pair.
        positives: the other side.
        excluded: [pair, pair], True where another's positive is one of the anchor's own, and so no negative.
        temperature: of the softmax.
    """
    ours, theirs = (torch.nn.functional.normalize(part, dim=1) for part in (anchors, positives))
    scores = (ours @ theirs.T / temperature).masked_fill(excluded, -torch.inf)
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))
