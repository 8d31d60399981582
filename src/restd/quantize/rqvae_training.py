"""Training of an RQ-VAE: the autoencoder, one step with the losses that are added, and the loop around it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn
from torch.nn import functional

from restd.codes import PAPER_ENTROPY, PAPER_TEMPERATURE
from restd.errors import ConfigError
from restd.progress import progress
from restd.quantize.kmeans_fit import fit_level
from restd.quantize.loss_parts import LossPart, Step, Walk
from restd.quantize.rqvae import RqVaeConfig
from restd.quantize.sinkhorn import sinkhorn

logger = logging.getLogger(__name__)

ROWS = 16_384
"""Rows that go through a network at once."""
INIT_ITERATIONS = 10
"""Rounds of the k-means that codebooks start from."""
_COLLAPSED = 0.1
_UNIT_ROWS = 8_192
_BISECTIONS = 40
_EXTREME = 10.0


def _mlp(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        linear = nn.utils.skip_init(nn.Linear, before, after)  # the usual one would draw from the global generator
        weight, bias = linear.parameters()
        nn.init.xavier_normal_(weight, generator=generator)
        nn.init.zeros_(bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # none after the last


class Autoencoder(nn.Module):
    """Two MLPs that mirror each other, with weights from a generator of their own."""

    def __init__(self, widths: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = _mlp(widths, generator)
        self.decoder = _mlp(widths[::-1], generator)


@dataclass(slots=True, eq=False)
class Training:
    """What changes while an RQ-VAE is trained."""

    network: Autoencoder
    books: list[nn.Parameter]
    usage: list[Int[Tensor, "_"]]
    config: RqVaeConfig
    parts: tuple[LossPart, ...] = ()
    added: dict[str, float] = field(default_factory=dict)
    """Losses of the parts in the last batch."""

    def step(
        self,
        batch: Float[Tensor, "item input"],
        *,
        rows: Int64[Tensor, "item"] | None = None,
        data: Float[Tensor, "fitted input"] | None = None,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Loss of one batch, and its reconstruction error alone.

        L = MSE(x̂, x) + mean over levels of [MSE(sg r, c) + commitment · MSE(r, sg c)], straight-through at every level.

        A level hands on r - (r + sg(c - r)), whose gradient is zero: beyond level 1 the commitment term is a number
        that moves nothing, and the encoder is drawn to the codewords of level 1 alone. The authors' release computes
        the same, so it stays: with a gradient at every level the latents of the paper would be others. Loss parts see
        residuals of their own, whose gradient reaches the encoder from every level; `rows` and `data` are for them.
        """
        residual = latents = self.network.encoder(batch)
        quantised = torch.zeros_like(residual)
        terms, chosen = [], []
        for level, book in enumerate(self.books):
            codes = self._codes(residual.detach(), level)
            chosen.append(codes)
            self.usage[level] += torch.bincount(codes, minlength=len(book))
            codewords = functional.embedding(codes, book)
            terms.append(
                functional.mse_loss(codewords, residual.detach())
                + self.config.commitment * functional.mse_loss(residual, codewords.detach())
            )
            through = residual + (codewords - residual).detach()
            quantised = quantised + through
            residual = residual - through
        reconstructions = self.network.decoder(quantised)
        error = functional.mse_loss(reconstructions, batch)
        loss = error + torch.stack(terms).mean()
        if self.parts:
            assert rows is not None
            assert data is not None
            step = Step(rows, self._walk(latents, chosen), self.books, reconstructions, self.follow, data)
            for part in self.parts:
                own = part(step)
                loss = loss + own
                self.added[part.name] = float(own.detach())
        return loss, error.detach()

    def follow(self, vectors: Float[Tensor, "other input"]) -> Walk:
        """The walk of any vectors through the levels, each at its nearest codes."""
        latents = self.network.encoder(vectors)
        residual, chosen = latents.detach(), []
        for book in self.books:
            chosen.append(torch.cdist(residual, book.detach()).argmin(dim=1))
            residual = residual - book.detach()[chosen[-1]]
        return self._walk(latents, chosen)

    def _walk(self, latents: Float[Tensor, "item dim"], chosen: list[Int64[Tensor, "item"]]) -> Walk:
        residuals = [latents]
        for codes, book in zip(chosen[:-1], self.books, strict=False):
            residuals.append(residuals[-1] - book.detach()[codes])
        return Walk(latents, tuple(residuals), tuple(chosen))

    def settle(self) -> None:
        """After an update; here nothing is left to do."""

    def _codes(self, residual: Float[Tensor, "item dim"], level: int) -> Int[Tensor, "item"]:
        book = self.books[level].detach()
        distances = torch.cdist(residual, book).square()
        if self.config.sinkhorn_last and level == len(self.books) - 1:
            return sinkhorn(distances).argmax(dim=1)
        return distances.argmin(dim=1)

    @torch.no_grad()
    def start_at_centroids(self, data: Float[Tensor, "item input"]) -> None:
        """Put codewords at the centroids of the first latents, level by level."""
        residual = torch.cat([self.network.encoder(part) for part in data.split(ROWS)]).numpy()
        for level, book in enumerate(self.books):
            centroids = fit_level(
                residual,
                len(book),
                iterations=INIT_ITERATIONS,
                restarts=self.config.kmeans_restarts,
                seed=self.config.seed + level,
            )
            book.copy_(torch.from_numpy(centroids))
            codes = torch.cdist(torch.from_numpy(residual), book).argmin(dim=1).numpy()
            residual = residual - centroids[codes]

    @torch.no_grad()
    def reset_dead_codes(self, batch: Float[Tensor, "item input"], generator: torch.Generator) -> int:
        """Move unused codewords onto random residuals of a batch; returns how many were moved."""
        residual = self.network.encoder(batch)
        moved = 0
        for level, book in enumerate(self.books):
            dead = (self.usage[level] == 0).nonzero()[:, 0]
            rows = torch.randint(len(residual), (len(dead),), generator=generator)
            book[dead] = residual[rows]
            moved += len(dead)
            residual = residual - book[torch.cdist(residual, book).argmin(dim=1)]
        return moved

    @torch.no_grad()
    def set_unit(self, data: Float[Tensor, "item input"]) -> None:
        """Fix the unit of the latent space, which training leaves arbitrary; reconstructions do not change.

        The scale is chosen so that the paper's temperature of 0.2 gives level-1 teachers the entropy the paper shows.
        Without it, teachers at that temperature would be one-hot or uniform by accident of the input's scale.
        """
        latents = torch.cat([self.network.encoder(part) for part in data[:_UNIT_ROWS].split(ROWS)])
        book = self.books[0]
        distances = torch.cdist(latents, book).square() / PAPER_TEMPERATURE
        target = PAPER_ENTROPY * np.log(len(book))
        low, high = -12.0, 12.0
        for _ in range(_BISECTIONS):  # entropy falls as the space grows: bisect the exponent
            middle = (low + high) / 2
            entropy = torch.special.entr((-distances * 4.0**middle).softmax(dim=1)).sum(dim=1).mean()
            low, high = (middle, high) if entropy > target else (low, middle)
        factor = 2.0**low
        if len(book) == 1 or abs(low) > _EXTREME:  # that entropy cannot be had: lengths of about one will do
            factor = 1.0 / float(latents.square().sum(1).mean().sqrt().clamp_min(1e-6))
        last, first = self.network.encoder[-1], self.network.decoder[0]
        for tensor in (*last.parameters(), *self.books):
            tensor *= factor
        next(first.parameters()).div_(factor)  # its weight; its bias is not in latent units


@runtime_checkable
class Trainable(Protocol):
    """What the loop trains: an autoencoder with codebooks in some space."""

    network: Autoencoder
    books: list[nn.Parameter]
    usage: list[Int[Tensor, "_"]]
    added: dict[str, float]

    def step(
        self, batch: Tensor, *, rows: Int64[Tensor, "item"] | None = None, data: Tensor | None = None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Loss of one batch, and its reconstruction error alone."""
        ...

    def settle(self) -> None:
        """What must be done after each update."""
        ...

    def reset_dead_codes(self, batch: Tensor, generator: torch.Generator) -> int:
        """Move unused codewords onto random residuals of a batch; returns how many were moved."""
        ...


def train(
    training: Trainable, data: Float[Tensor, "item input"], config: RqVaeConfig, generator: torch.Generator
) -> None:
    """All epochs: order, updates, dead codes, and a warning where a level collapses."""
    groups = [
        {"params": list(training.network.parameters()), "weight_decay": config.weight_decay},
        {"params": training.books, "weight_decay": 0.0},  # decay would draw codewords to the origin
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate)
    warned = False
    with progress("Training RQ-VAE", total=config.epochs) as advance:
        for epoch in range(config.epochs):
            for counts in training.usage:
                counts.zero_()
            order = torch.randperm(len(data), generator=generator)
            errors = []
            for rows in order.split(config.batch):
                loss, error = training.step(data[rows], rows=rows, data=data)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                training.settle()
                errors.append(float(error))
            usage = perplexities(training.usage)
            if not np.isfinite(errors).all():
                raise ConfigError(
                    f"The RQ-VAE's loss is NaN or infinite in epoch {epoch + 1}. Lower learning_rate "
                    f"({config.learning_rate})."
                )
            warned = warned or _warn_of_collapse(usage, training.books, epoch=epoch, epochs=config.epochs)
            last = epoch == config.epochs - 1
            if config.reset_dead and not last:  # a codeword moved after the last step would never be trained
                training.reset_dead_codes(data[order[: config.batch]], generator)
            even = "/".join(f"{value:.0f}" for value in usage)
            advance(1, error=float(np.mean(errors)), usage=even, **training.added)


def perplexities(usage: list[Int[Tensor, "_"]]) -> list[float]:
    """How many equally used codes would be as varied, level by level."""
    shares = [counts / counts.sum() for counts in usage]
    return [float(torch.exp(torch.special.entr(share).sum())) for share in shares]


def _warn_of_collapse(usage: list[float], books: list[nn.Parameter], *, epoch: int, epochs: int) -> bool:
    if epoch + 1 < min(5, epochs):  # the first epochs of a healthy run can look alike
        return False
    for level, (perplexity, book) in enumerate(zip(usage, books, strict=True)):
        if len(book) > 1 and perplexity < max(1.5, _COLLAPSED * len(book)):
            logger.warning(
                "Level %d has collapsed in epoch %d: its %d codes are used like %.1f. Lower learning_rate, keep "
                "kmeans_init and reset_dead on, or use fewer codes.",
                level + 1,
                epoch + 1,
                len(book),
                perplexity,
            )
            return True
    return False
