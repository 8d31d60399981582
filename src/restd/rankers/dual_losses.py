"""Losses of dual encoders: contrast with the items of a batch, and divergence between two views of the same queries."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional


def score(
    queries: Float[Tensor, "row dim"],
    items: Float[Tensor, "candidate dim"],
    mask: Bool[Tensor, "row candidate"],
    *,
    temperature: float,
) -> Float[Tensor, "row candidate"]:
    """Inner products divided by a temperature; -∞ for candidates that are no negative of a query."""
    return (queries @ items.T / temperature).masked_fill(mask, -torch.inf)


def contrast(scores: Float[Tensor, "row candidate"]) -> Float[Tensor, ""]:
    """Negative log-likelihood of each row's own item, which stands in its own column.

    >>> round(float(contrast(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))), 4)
    0.1269
    """
    return functional.cross_entropy(scores, torch.arange(len(scores)))


def divergence(teacher: Float[Tensor, "row candidate"], student: Float[Tensor, "row candidate"]) -> Float[Tensor, ""]:
    """Mean of KL(teacher ‖ student) over rows; the teacher learns nothing from it.

    Both have -∞ in the same places.

    >>> scores = torch.tensor([[1.0, 0.0, -torch.inf]])
    >>> round(float(divergence(scores, scores)), 4)
    0.0
    """
    target = teacher.detach().log_softmax(dim=-1)
    gap = target - student.log_softmax(dim=-1)
    return (target.exp() * gap.masked_fill(torch.isneginf(target), 0.0)).sum(dim=-1).mean()
