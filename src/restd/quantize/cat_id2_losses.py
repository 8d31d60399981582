"""CAT-ID²'s losses: items of a category together, codes used evenly, reconstructed items apart."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from restd.quantize.cat_id2 import KIND, CatId2Config
from restd.quantize.loss_parts import LossPart, Step
from restd.quantize.rqvae_fit import RqVaeQuantizer, Standard, fit_rqvae
from restd.quantize.signals import Signals

_TINY = 1e-12
_SPREAD = 0.5
"""Temperature of the dispersion, in squared distances of unit vectors."""


@dataclass(frozen=True, slots=True, eq=False)
class CategoryContrast:
    """Supervised contrast of preferences for codes, level 1 by the first depth of the categories, and so on."""

    name: ClassVar[str] = "categories"
    categories: Int64[Tensor, "fitted depth"]
    weight: float
    temperature: float

    def __call__(self, step: Step) -> Float[Tensor, ""]:
        """The loss of one batch, weighted."""
        labels = self.categories[step.rows]
        loss = step.walk.latents.new_zeros(())
        for level in range(min(len(step.books), labels.shape[1])):
            # square roots of shares are unit vectors, and their products say how much two distributions overlap
            points = step.soft_codes(level).clamp_min(_TINY).sqrt()
            same = labels[:, None, level] == labels[None, :, level]
            loss = loss + supervised_contrast(points, same, temperature=self.temperature)
        return self.weight * loss


@dataclass(frozen=True, slots=True, eq=False)
class CodeBalance:
    """Σ over levels of KL(mean preference of the batch ‖ uniform)."""

    name: ClassVar[str] = "balance"
    weight: float

    def __call__(self, step: Step) -> Float[Tensor, ""]:
        """The loss of one batch, weighted."""
        loss = step.walk.latents.new_zeros(())
        for level, book in enumerate(step.books):
            mean = step.soft_codes(level).mean(dim=0)
            loss = loss + np.log(len(book)) - torch.special.entr(mean.clamp_min(1e-12)).sum()
        return self.weight * loss


@dataclass(frozen=True, slots=True, eq=False)
class Dispersion:
    """log mean over pairs of exp(-‖x̂_i - x̂_j‖² / τ) for reconstructions of length one."""

    name: ClassVar[str] = "dispersion"
    weight: float

    def __call__(self, step: Step) -> Float[Tensor, ""]:
        """The loss of one batch, weighted."""
        count = len(step.reconstructions)
        if count < 2:
            return step.reconstructions.new_zeros(())
        points = functional.normalize(step.reconstructions, dim=1)
        scores = (2 * points @ points.T - 2) / _SPREAD
        others = ~torch.eye(count, dtype=torch.bool)
        return self.weight * (scores[others].logsumexp(dim=0) - np.log(count * (count - 1)))


def supervised_contrast(
    points: Float[Tensor, "item dim"], same: Bool[Tensor, "item item"], *, temperature: float
) -> Float[Tensor, ""]:
    """Mean, over items and their positives, of -log softmax of cosines; items without a positive do not count.

    >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> near = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    >>> supervised_contrast(points, near, temperature=0.1) < supervised_contrast(points, ~near, temperature=0.1)
    tensor(True)
    """
    points = functional.normalize(points, dim=1)
    itself = torch.eye(len(points), dtype=torch.bool)
    logs = (points @ points.T / temperature).masked_fill(itself, -torch.inf).log_softmax(dim=1)
    positive = same & ~itself
    counts = positive.sum(dim=1)
    per_item = torch.where(positive, logs, 0.0).sum(dim=1) / counts.clamp_min(1)
    return -per_item.sum() / (counts > 0).sum().clamp_min(1)


def fit_cat_id2(
    vectors: Float[np.ndarray, "item input"], config: CatId2Config, *, items: int, signals: Signals
) -> RqVaeQuantizer:
    """Train an RQ-VAE with CAT-ID²'s losses on the categories among the signals."""
    return fit_rqvae(vectors, config, items=items, kind=KIND, parts=partial(_parts, config=config, signals=signals))


def _parts(
    vectors: Float[np.ndarray, "item input"], standard: Standard, *, config: CatId2Config, signals: Signals
) -> tuple[LossPart, ...]:
    assert signals.categories is not None
    categories = torch.from_numpy(signals.categories.of_item)
    contrast = CategoryContrast(categories, config.category, config.temperature)
    parts: tuple[LossPart, ...] = (contrast, CodeBalance(config.balance), Dispersion(config.dispersion))
    weights = (config.category, config.balance, config.dispersion)
    return tuple(part for part, weight in zip(parts, weights, strict=True) if weight)
