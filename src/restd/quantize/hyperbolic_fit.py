"""RQ-VAE in the Poincaré ball: codewords are points of the ball, residuals are Möbius differences.

The encoder's output is a vector at the origin, which the exponential map makes a point; the decoder reads the vector of
the point that the codewords make. AdamW moves codewords as if the ball were flat, and what leaves it is drawn back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float16, Int, Int64
from torch import Tensor, nn
from torch.nn import functional

from restd.codes import Codebooks, as_tensor, nearest, poincare
from restd.codes.spaces import ball_sum
from restd.quantize.hyperbolic import KIND, HyperbolicConfig, pyramid
from restd.quantize.kmeans_fit import fit_level
from restd.quantize.quantizer import to_latents
from restd.quantize.rqvae_fit import RqVaeQuantizer, Standard, fit_rqvae, restore_rqvae
from restd.quantize.rqvae_training import INIT_ITERATIONS, ROWS, Autoencoder, train
from restd.quantize.sinkhorn import sinkhorn

_LENGTH = 1.0
"""Mean square length that the encoder's output starts with."""
_LONGEST = 1.5
"""Bound on the length of vectors at the origin: points stay within radius tanh 1.5 = 0.905."""


@dataclass(frozen=True, slots=True, eq=False)
class HyperbolicQuantizer:
    """A trained autoencoder whose bottleneck is the Poincaré ball, and its codebooks."""

    network: RqVaeQuantizer
    """The autoencoder, which knows nothing of the ball."""

    @property
    def codebooks(self) -> Codebooks:
        """Codewords of every level, points of the ball."""
        return self.network.codebooks

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values of the state."""
        return self.network.settings

    def prepared(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "item input"]:
        """Scale embeddings to length one."""
        return self.network.prepared(vectors)

    def latents(self, vectors: Float[np.ndarray, "item input"]) -> Float16[np.ndarray, "item dim"]:
        """Output of the encoder as points of the ball, rounded to float16."""
        return to_latents(poincare.exp_map(bounded(torch.from_numpy(self.network.encoded(vectors)))).numpy())

    def reconstruct(self, latents: Float[np.ndarray, "item dim"]) -> Float[np.ndarray, "item input"]:
        """Output of the decoder for points of the ball."""
        return self.network.reconstruct(poincare.log_map(as_tensor(latents).float()).numpy())

    def tensors(self) -> dict[str, np.ndarray]:
        """Weights of both halves and the mean of the input."""
        return self.network.tensors()


def bounded(vectors: Float[Tensor, "item dim"]) -> Float[Tensor, "item dim"]:
    """Vectors shortened smoothly below 1.5: left free, an encoder runs to the boundary, where codewords cannot follow.

    >>> round(float(bounded(torch.tensor([[30.0, 40.0]])).norm()), 4)
    1.5
    """
    lengths = vectors.square().sum(-1, keepdim=True).clamp_min(1e-24).sqrt()
    return vectors * (_LONGEST * (lengths / _LONGEST).tanh() / lengths)


def restore_hyperbolic(
    settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray], codebooks: Codebooks
) -> HyperbolicQuantizer | RqVaeQuantizer:
    """Restore from the quantiser's settings, its tensors and codebooks."""
    network = restore_rqvae(settings, arrays, codebooks)
    return network if codebooks.space == "euclidean" else HyperbolicQuantizer(network)


@dataclass(slots=True, eq=False)
class BallTraining:
    """What changes while an RQ-VAE of the ball is trained."""

    network: Autoencoder
    books: list[nn.Parameter]
    usage: list[Int[Tensor, "_"]]
    config: HyperbolicConfig
    added: dict[str, float] = field(default_factory=dict)

    def step(
        self,
        batch: Float[Tensor, "item input"],
        *,
        rows: Int64[Tensor, "item"] | None = None,
        data: Float[Tensor, "fitted input"] | None = None,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Loss of one batch, and its reconstruction error alone.

        L = MSE(x̂, x) + mean over levels of [d²(sg r, c) + commitment · d²(r, sg c)] / dim. As in the flat space, the
        commitment reaches the encoder through level 1 alone: residuals of later levels are constants.
        """
        vectors = bounded(self.network.encoder(batch))
        residual = poincare.exp_map(vectors)
        dim = vectors.shape[1]
        terms, chosen = [], []
        for level, book in enumerate(self.books):
            codes = self._codes(residual.detach(), level)
            self.usage[level] += torch.bincount(codes, minlength=len(book))
            codewords = functional.embedding(codes, book)
            to_codeword = poincare.squared_distance(residual.detach(), codewords)
            to_residual = poincare.squared_distance(residual, codewords.detach())
            terms.append((to_codeword + self.config.commitment * to_residual).mean() / dim)
            chosen.append(codewords.detach())
            residual = poincare.mobius_subtract(residual.detach(), codewords.detach())
        point = poincare.log_map(ball_sum(torch.stack(chosen, dim=1)))
        through = vectors + (point - vectors).detach()
        error = functional.mse_loss(self.network.decoder(through), batch)
        return error + torch.stack(terms).mean(), error.detach()

    def _codes(self, residual: Float[Tensor, "item dim"], level: int) -> Int64[Tensor, "item"]:
        book = self.books[level].detach()
        if self.config.sinkhorn_last and level == len(self.books) - 1:
            return sinkhorn(poincare.squared_distances(residual, book)).argmax(dim=1)
        return nearest(residual, book, space="poincare")

    @torch.no_grad()
    def settle(self) -> None:
        """Draw codewords that left the ball back into it."""
        for book in self.books:
            book.copy_(poincare.inside(book))

    @torch.no_grad()
    def set_length(self, data: Float[Tensor, "item input"]) -> None:
        """Scale the encoder so that its first outputs are neither all at the origin nor all at the boundary."""
        vectors = torch.cat([self.network.encoder(part) for part in data.split(ROWS)])
        factor = _LENGTH / float(vectors.square().sum(1).mean().sqrt().clamp_min(1e-6))
        for tensor in self.network.encoder[-1].parameters():
            tensor *= factor
        next(self.network.decoder[0].parameters()).div_(factor)

    @torch.no_grad()
    def start(self, data: Float[Tensor, "item input"], generator: torch.Generator) -> None:
        """Put codewords at centroids of the first residuals, taken in the tangent space, or at random."""
        if not self.config.kmeans_init:
            for book in self.books:
                book.copy_(poincare.exp_map(torch.randn(book.shape, generator=generator) / book.shape[1] ** 0.5))
            return
        residual = poincare.exp_map(bounded(torch.cat([self.network.encoder(part) for part in data.split(ROWS)])))
        for level, book in enumerate(self.books):
            centroids = fit_level(
                poincare.log_map(residual).numpy(),
                len(book),
                iterations=INIT_ITERATIONS,
                restarts=self.config.kmeans_restarts,
                seed=self.config.seed + level,
            )
            book.copy_(poincare.exp_map(torch.from_numpy(centroids)))
            residual = poincare.mobius_subtract(residual, book[nearest(residual, book, space="poincare")])

    @torch.no_grad()
    def reset_dead_codes(self, batch: Float[Tensor, "item input"], generator: torch.Generator) -> int:
        """Move unused codewords onto random residuals of a batch; returns how many were moved."""
        residual = poincare.exp_map(bounded(self.network.encoder(batch)))
        moved = 0
        for level, book in enumerate(self.books):
            dead = (self.usage[level] == 0).nonzero()[:, 0]
            rows = torch.randint(len(residual), (len(dead),), generator=generator)
            book[dead] = residual[rows]
            moved += len(dead)
            residual = poincare.mobius_subtract(residual, book[nearest(residual, book, space="poincare")])
        return moved


def fit_hyperbolic(
    vectors: Float[np.ndarray, "item input"], config: HyperbolicConfig, *, items: int
) -> HyperbolicQuantizer | RqVaeQuantizer:
    """Train an RQ-VAE in the ball, or with the space `euclidean` a plain one of the same shape."""
    sizes = pyramid(config.codes, levels=config.levels, items=min(items, len(vectors)))
    if config.space == "euclidean":
        return fit_rqvae(vectors, replace(config, codes=sizes), items=items, kind=KIND)
    standard = Standard.of(vectors)
    data = torch.from_numpy(standard(vectors))
    generator = torch.Generator().manual_seed(config.seed)
    widths = (data.shape[1], *config.hidden, config.dim)
    training = BallTraining(
        network=Autoencoder(widths, generator),
        books=[nn.Parameter(torch.zeros(size, config.dim)) for size in sizes],
        usage=[torch.zeros(size, dtype=torch.int64) for size in sizes],
        config=config,
    )
    training.set_length(data)
    training.start(data, generator)
    train(training, data, config, generator)
    codebooks = Codebooks.of([book.detach().numpy() for book in training.books], space="poincare")
    network = training.network.requires_grad_(False)
    return HyperbolicQuantizer(RqVaeQuantizer(codebooks, network, standard.mean, standard.scale, widths, KIND))
