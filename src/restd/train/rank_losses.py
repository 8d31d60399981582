"""Ranking losses of Semantic IDs, as functions of scores: LTRGR's margins, RIPOR's prefixes, DDRO's preference."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from restd.train.rank_settings import RankSettings


@dataclass(frozen=True, slots=True, eq=False)
class Contrast:
    """Pairs, each with the negatives that it is compared with in an update."""

    positive: Float[Tensor, "pair level"]
    """The model's score of every code of the positive."""
    negatives: Float[Tensor, "pair negative level"]
    positive_score: Float[Tensor, "pair"] | None
    """Of a teacher, or the log-probability of a reference; None where the loss needs neither."""
    scores: Float[Tensor, "pair negative"] | None
    """Likewise of the negatives."""


def margin_losses(
    positive: Float[Tensor, "pair"],
    best: Float[Tensor, "pair"],
    drawn: Float[Tensor, "pair"],
    *,
    margin: float,
    drawn_margin: float,
) -> Float[Tensor, "pair"]:
    """LTRGR: ½[s⁻ - s⁺ + m]₊ for the best-ranked negative, and ½[s⁻ - s⁺ + m′]₊ for a drawn one.

    >>> one = torch.ones(1)
    >>> margin_losses(-4 * one, -3 * one, -8 * one, margin=1.0, drawn_margin=2.0)
    tensor([1.])
    """
    return 0.5 * ((best - positive + margin).relu() + (drawn - positive + drawn_margin).relu())


def prefix_shares(levels: int) -> list[float]:
    """α_i, the share of the teacher's margin that a prefix of i codes should reach: 1 - 2⁻ⁱ, and 1 for the whole.

    RIPOR has lengths of 4, 8, 16 and 32 codes with shares of 1 - 2/i and 1: these numbers, by the length's number.

    >>> prefix_shares(4)
    [0.5, 0.75, 0.875, 1.0]
    """
    return [1 - 0.5**length for length in range(1, levels)] + [1.0]


def prefix_lengths(progress: float, *, levels: int, curriculum: float) -> int:
    """Longest prefix that counts so far: one more after each equal part of the curriculum.

    >>> [prefix_lengths(progress, levels=4, curriculum=0.5) for progress in (0.01, 0.13, 0.3, 0.5, 1.0)]
    [1, 2, 3, 4, 4]
    """
    return levels if progress >= curriculum else min(levels, math.ceil(levels * progress / curriculum))


def prefix_losses(
    positive: Float[Tensor, "pair level"],
    negatives: Float[Tensor, "pair negative level"],
    margins: Float[Tensor, "pair negative"],
    *,
    longest: int,
) -> Float[Tensor, "pair"]:
    """RIPOR: (S_i⁺ - S_i⁻ - α_i T)², averaged over negatives and prefixes of up to `longest` codes.

    A prefix that both have in common has S_i⁺ = S_i⁻ whatever the model does, and only adds a constant.

    Args:
        positive: score of every code of the positives; S_i is the sum over the first i.
        negatives: the same of the negatives.
        margins: T, by how much a teacher prefers the positive.
        longest: codes of the longest prefix that counts.
    """
    ahead = (positive[:, None] - negatives).cumsum(dim=-1)[..., :longest]
    shares = ahead.new_tensor(prefix_shares(positive.shape[1])[:longest])
    return (ahead - margins[..., None] * shares).square().mean(dim=(1, 2))


def preference_losses(
    positive: Float[Tensor, "pair"],
    negatives: Float[Tensor, "pair negative"],
    reference_positive: Float[Tensor, "pair"],
    reference_negatives: Float[Tensor, "pair negative"],
    *,
    beta: float,
) -> Float[Tensor, "pair"]:
    """DDRO: -log σ(β[(log π⁺ - log π_ref⁺) - (log π⁻ - log π_ref⁻)]), averaged over negatives.

    >>> same, zero = torch.zeros(1, 1), torch.zeros(1)
    >>> preference_losses(zero, same, zero, same, beta=0.1).exp()
    tensor([2.])
    """
    gain = (positive - reference_positive)[:, None] - (negatives - reference_negatives)
    return torch.nn.functional.softplus(-beta * gain).mean(dim=1)


def ltrgr_losses(contrast: Contrast, settings: RankSettings, progress: float) -> Float[Tensor, "pair"]:
    """The margin losses; the first negative is the best-ranked one."""
    best, drawn = contrast.negatives.sum(dim=-1).unbind(dim=1)
    positive = contrast.positive.sum(dim=-1)
    return margin_losses(positive, best, drawn, margin=settings.margin, drawn_margin=settings.sampled_margin)


def ripor_losses(contrast: Contrast, settings: RankSettings, progress: float) -> Float[Tensor, "pair"]:
    """The prefix losses against a teacher's margins."""
    assert contrast.positive_score is not None
    assert contrast.scores is not None
    margins = settings.nats * (contrast.positive_score[:, None] - contrast.scores)
    longest = prefix_lengths(progress, levels=contrast.positive.shape[1], curriculum=settings.curriculum)
    return prefix_losses(contrast.positive, contrast.negatives, margins, longest=longest)


def ddro_losses(contrast: Contrast, settings: RankSettings, progress: float) -> Float[Tensor, "pair"]:
    """The preference losses against a reference's log-probabilities."""
    assert contrast.positive_score is not None
    assert contrast.scores is not None
    positive, negatives = contrast.positive.sum(dim=-1), contrast.negatives.sum(dim=-1)
    return preference_losses(positive, negatives, contrast.positive_score, contrast.scores, beta=settings.beta)
