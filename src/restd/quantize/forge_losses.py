"""FORGE's contrast: latents of items that answer the same query, against those of other items of the batch."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from restd.quantize.forge import KIND, ForgeConfig
from restd.quantize.loss_parts import LossPart, Step, contrast
from restd.quantize.relevance import SharedQueries
from restd.quantize.rqvae_fit import RqVaeQuantizer, Standard, fit_rqvae
from restd.quantize.signals import Signals


@dataclass(frozen=True, slots=True, eq=False)
class ItemContrast:
    """InfoNCE between each item of the batch and one that answers a query with it."""

    name: ClassVar[str] = "items"
    shared: SharedQueries
    weight: float
    temperature: float
    generator: torch.Generator

    def __call__(self, step: Step) -> Float[Tensor, ""]:
        """The loss of one batch, weighted."""
        place, partner = self.shared.partners(step.rows, self.generator)
        if len(place) < 2:
            return step.walk.latents.new_zeros(())
        excluded = self.shared.shared(step.rows[place], partner).fill_diagonal_(False)
        theirs = step.follow(step.data[partner]).latents
        loss = contrast(step.walk.latents[place], theirs, excluded, temperature=self.temperature)
        return self.weight * loss


def fit_forge(
    vectors: Float[np.ndarray, "item input"], config: ForgeConfig, *, items: int, signals: Signals
) -> RqVaeQuantizer:
    """Train an RQ-VAE with FORGE's contrast on the training queries among the signals."""
    return fit_rqvae(vectors, config, items=items, kind=KIND, parts=partial(_parts, config=config, signals=signals))


def _parts(
    vectors: Float[np.ndarray, "item input"], standard: Standard, *, config: ForgeConfig, signals: Signals
) -> tuple[LossPart, ...]:
    if not config.contrast:
        return ()
    assert signals.queries is not None
    shared = SharedQueries.of(signals.queries, items=len(vectors))
    generator = torch.Generator().manual_seed(config.seed + 1)
    return (ItemContrast(shared, config.contrast, config.temperature, generator),)
