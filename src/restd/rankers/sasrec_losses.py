"""What SASRec learns from: a softmax over all items, or sampled negatives."""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

_CELLS = 1 << 22
"""Logits held at a time: places times items."""


class _FullSoftmax(torch.autograd.Function):
    """Mean cross-entropy of states against all items; logits live for a few places at a time, gradients are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "place width"],
        items: Float[Tensor, "item width"],
        wanted: Int64[Tensor, "place"],
    ) -> Float[Tensor, ""]:
        total, to_states, to_items = states.new_zeros(()), torch.empty_like(states), torch.zeros_like(items)
        size = max(_CELLS // len(items), 1)
        for start in range(0, len(states), size):
            part, target = states[start : start + size], wanted[start : start + size, None]
            logits = part @ items.T
            logits -= logits.amax(dim=1, keepdim=True)
            total -= logits.gather(1, target).sum()
            mass = logits.exp_().sum(dim=1, keepdim=True)
            total += mass.log().sum()
            logits /= mass
            logits.scatter_add_(1, target, logits.new_full(target.shape, -1.0))
            to_states[start : start + size] = logits @ items
            to_items.addmm_(logits.T, part)
        ctx.save_for_backward(to_states / len(states), to_items / len(states))
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        to_states, to_items = ctx.saved_tensors
        return gradients[0] * to_states, gradients[0] * to_items, None


def full_softmax(
    states: Float[Tensor, "place width"], items: Float[Tensor, "item width"], wanted: Int64[Tensor, "place"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the wanted items among all, without ever holding the logits of all places."""
    loss = _FullSoftmax.apply(states, items, wanted)
    assert isinstance(loss, Tensor)
    return loss


def sampled_binary(
    states: Float[Tensor, "place width"],
    items: Float[Tensor, "item width"],
    wanted: Int64[Tensor, "place"],
    negatives: Int64[Tensor, "place negative"],
) -> Float[Tensor, ""]:
    """Binary cross-entropy of the wanted item and of the negatives, summed per place and averaged over places."""
    positive = (states * items[wanted]).sum(dim=-1)
    negative = (states[:, None] * items[negatives]).sum(dim=-1)
    parts = torch.nn.functional.softplus(-positive) + torch.nn.functional.softplus(negative).sum(dim=-1)
    return parts.mean()
