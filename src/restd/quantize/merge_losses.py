"""MERGE's losses: queries near their items, and items of a query together.

Coarse levels learn that items answer the same query, deep levels which of them answer it equally well.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from restd.quantize.loss_parts import LossPart, Step, contrast
from restd.quantize.merge import KIND, MergeConfig
from restd.quantize.relevance import SharedQueries
from restd.quantize.rqvae_fit import RqVaeQuantizer, Standard, fit_rqvae
from restd.quantize.signals import Signals

_BEST = 4.0
_RELEVANCE = (1.0, 0.75, 0.25, 0.0)
"""Share of the contrast by relevance at each of four levels; the rest is the contrast by grade."""
_TRIPLETS = 4
"""One triplet for so many items of a batch."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryAlignment:
    """1 - mean of cos(item, query) / (4 - grade), for one query of each item of the batch."""

    name: ClassVar[str] = "queries"
    shared: SharedQueries
    queries: Float[Tensor, "query input"]
    weight: float
    generator: torch.Generator

    def __call__(self, step: Step) -> Float[Tensor, ""]:
        """The loss of one batch, weighted."""
        place, query, grade = self.shared.answered(step.rows, self.generator)
        if not len(place):
            return step.walk.latents.new_zeros(())
        latents = step.follow(self.queries[query]).latents
        cosines = functional.cosine_similarity(step.walk.latents[place], latents, dim=1)
        return self.weight * (1 - (cosines / (_BEST - grade)).mean())


@dataclass(frozen=True, slots=True, eq=False)
class LevelContrast:
    """Residuals that enter each level: items of a query together, and those of the same grade closest."""

    name: ClassVar[str] = "levels"
    shared: SharedQueries
    weight: float
    temperature: float
    margin: float
    generator: torch.Generator

    def __call__(self, step: Step) -> Float[Tensor, ""]:
        """The loss of one batch, weighted."""
        place, partner = self.shared.partners(step.rows, self.generator)
        triplets = self.shared.triplets(max(1, len(step.rows) // _TRIPLETS), self.generator)
        loss = step.walk.latents.new_zeros(())
        mix = relevance_shares(len(step.books))
        if len(place) > 1:
            anchors = step.rows[place]
            excluded = self.shared.shared(anchors, partner).fill_diagonal_(False)
            residuals = step.follow(step.data[partner]).residuals
            for share, ours, theirs in zip(mix, step.walk.residuals, residuals, strict=True):
                if share:
                    outer = contrast(ours[place], theirs, excluded, temperature=self.temperature)
                    loss = loss + share * outer
        if len(triplets.anchor):
            three = [step.follow(step.data[rows]).residuals for rows in triplets]
            for share, anchor, alike, worse in zip(mix, *three, strict=True):
                if share < 1:
                    inner = functional.triplet_margin_loss(anchor, alike, worse, margin=self.margin)
                    loss = loss + (1 - share) * inner
        return self.weight * loss


def relevance_shares(levels: int) -> tuple[float, ...]:
    """Share of the contrast by relevance at each level: the released four, interpolated for other numbers.

    >>> relevance_shares(4), relevance_shares(3)
    ((1.0, 0.75, 0.25, 0.0), (1.0, 0.5, 0.0))
    """
    places = np.linspace(0, len(_RELEVANCE) - 1, levels)
    return tuple(float(share) for share in np.interp(places, np.arange(len(_RELEVANCE)), _RELEVANCE))


def fit_merge(
    vectors: Float[np.ndarray, "item input"], config: MergeConfig, *, items: int, signals: Signals
) -> RqVaeQuantizer:
    """Train an RQ-VAE with MERGE's losses on the training queries among the signals."""
    return fit_rqvae(vectors, config, items=items, kind=KIND, parts=partial(_parts, config=config, signals=signals))


def _parts(
    vectors: Float[np.ndarray, "item input"],
    standard: Standard,
    *,
    config: MergeConfig,
    signals: Signals,
) -> tuple[LossPart, ...]:
    pairs = signals.queries
    assert pairs is not None
    shared = SharedQueries.of(pairs, items=len(vectors))
    parts: list[LossPart] = []
    if config.alignment:
        own = shared.best_mean(vectors) if config.query == "items" else pairs.vectors
        queries = torch.from_numpy(standard(np.asarray(own, np.float32)))
        generator = torch.Generator().manual_seed(config.seed + 1)
        parts.append(QueryAlignment(shared, queries, config.alignment, generator))
    if config.level_weight:
        generator = torch.Generator().manual_seed(config.seed + 2)
        parts.append(LevelContrast(shared, config.level_weight, config.temperature, config.margin, generator))
    return tuple(parts)
