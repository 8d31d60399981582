"""RQ-VAE: an autoencoder whose bottleneck is residual-quantised, trained end to end."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float16, Int
from torch import Tensor, nn
from torch.nn import functional

from restd.codes import PAPER_ENTROPY, PAPER_TEMPERATURE, Codebooks
from restd.errors import ConfigError
from restd.progress import progress
from restd.quantize.kmeans_fit import fit_level
from restd.quantize.quantizer import Stage, refuse_identical, to_latents, unit_length
from restd.quantize.rqvae import KIND, RqVaeConfig
from restd.quantize.settings import level_sizes
from restd.quantize.sinkhorn import sinkhorn

logger = logging.getLogger(__name__)

_ROWS = 16_384
_INIT_ITERATIONS = 10
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


class _Autoencoder(nn.Module):
    def __init__(self, widths: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = _mlp(widths, generator)
        self.decoder = _mlp(widths[::-1], generator)


@dataclass(frozen=True, slots=True, eq=False)
class RqVaeQuantizer:
    """A trained autoencoder and its codebooks."""

    codebooks: Codebooks
    network: _Autoencoder
    mean: Float[np.ndarray, "input"]
    scale: float
    widths: tuple[int, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values of the state."""
        return {"kind": KIND, "widths": list(self.widths), "scale": self.scale}

    def prepared(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "item input"]:
        """Scale embeddings to length one."""
        return unit_length(vectors)

    def latents(self, vectors: Float[np.ndarray, "item input"]) -> Float16[np.ndarray, "item dim"]:
        """Output of the encoder, rounded to float16."""
        standard = (self.prepared(vectors) - self.mean) / self.scale
        return to_latents(_apply(self.network.encoder, standard))

    def reconstruct(self, latents: Float[np.ndarray, "item dim"]) -> Float[np.ndarray, "item input"]:
        """Output of the decoder."""
        return _apply(self.network.decoder, latents.astype(np.float32)) * self.scale + self.mean

    def tensors(self) -> dict[str, np.ndarray]:
        """Weights of both halves and the mean of the input."""
        weights = {name: value.detach().numpy() for name, value in self.network.state_dict().items()}
        return {"mean": self.mean, **weights}

    def stage(self) -> Stage:
        """The encoder's layers, the standardisation of its input folded into the first."""
        layers = [layer for layer in self.network.encoder if isinstance(layer, nn.Linear)]
        first, *weights = (layer.weight.detach().numpy() for layer in layers)
        bias, *biases = (layer.bias.detach().numpy() for layer in layers)
        first = first / np.float32(self.scale)
        return Stage(True, (first, *weights), (bias - first @ self.mean, *biases))


def restore_rqvae(
    settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray], codebooks: Codebooks
) -> RqVaeQuantizer:
    """Restore from the quantiser's settings, its tensors and codebooks."""
    widths = tuple(settings["widths"])
    network = _Autoencoder(widths, torch.Generator())
    network.load_state_dict(
        {name: torch.from_numpy(np.array(value)) for name, value in arrays.items() if name != "mean"}
    )
    return RqVaeQuantizer(codebooks, network.requires_grad_(False), arrays["mean"], settings["scale"], widths)


def _apply(network: nn.Module, values: Float[np.ndarray, "item before"]) -> Float[np.ndarray, "item after"]:
    with torch.no_grad():
        parts = torch.from_numpy(np.ascontiguousarray(values, np.float32)).split(_ROWS)
        return torch.cat([network(part) for part in parts]).numpy()


@dataclass(slots=True, eq=False)
class _Training:
    """What changes while an RQ-VAE is trained."""

    network: _Autoencoder
    books: list[nn.Parameter]
    usage: list[Int[Tensor, "_"]]
    config: RqVaeConfig

    def step(self, batch: Float[Tensor, "item input"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Loss of one batch, and its reconstruction error alone.

        L = MSE(x̂, x) + mean over levels of [MSE(sg r, c) + commitment · MSE(r, sg c)], straight-through at every level.

        A level hands on r - (r + sg(c - r)), whose gradient is zero: beyond level 1 the commitment term is a number
        that moves nothing, and the encoder is drawn to the codewords of level 1 alone. The authors' release computes
        the same, so it stays: with a gradient at every level the latents of the paper would be others.
        """
        residual = self.network.encoder(batch)
        quantised = torch.zeros_like(residual)
        terms = []
        for level, book in enumerate(self.books):
            codes = self._codes(residual.detach(), level)
            self.usage[level] += torch.bincount(codes, minlength=len(book))
            codewords = functional.embedding(codes, book)
            terms.append(
                functional.mse_loss(codewords, residual.detach())
                + self.config.commitment * functional.mse_loss(residual, codewords.detach())
            )
            through = residual + (codewords - residual).detach()
            quantised = quantised + through
            residual = residual - through
        error = functional.mse_loss(self.network.decoder(quantised), batch)
        return error + torch.stack(terms).mean(), error.detach()

    def _codes(self, residual: Float[Tensor, "item dim"], level: int) -> Int[Tensor, "item"]:
        book = self.books[level].detach()
        distances = torch.cdist(residual, book).square()
        if self.config.sinkhorn_last and level == len(self.books) - 1:
            return sinkhorn(distances).argmax(dim=1)
        return distances.argmin(dim=1)

    @torch.no_grad()
    def start_at_centroids(self, data: Float[Tensor, "item input"]) -> None:
        residual = torch.cat([self.network.encoder(part) for part in data.split(_ROWS)]).numpy()
        for level, book in enumerate(self.books):
            centroids = fit_level(
                residual,
                len(book),
                iterations=_INIT_ITERATIONS,
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
        latents = torch.cat([self.network.encoder(part) for part in data[:_UNIT_ROWS].split(_ROWS)])
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

    def perplexities(self) -> list[float]:
        shares = [counts / counts.sum() for counts in self.usage]
        return [float(torch.exp(torch.special.entr(share).sum())) for share in shares]


def fit_rqvae(vectors: Float[np.ndarray, "item input"], config: RqVaeConfig, *, items: int) -> RqVaeQuantizer:
    """Train an RQ-VAE on a sample of a catalogue of `items` items.

    A level whose perplexity falls below a tenth of its codes has collapsed: that is logged as a warning, with the
    setting to change, as soon as it shows.
    """
    prepared = unit_length(vectors)
    refuse_identical(prepared)
    sizes = level_sizes(config.codes, levels=config.levels, items=min(items, len(vectors)))
    generator = torch.Generator().manual_seed(config.seed)
    mean = prepared.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = float((prepared - mean).std())
    data = torch.from_numpy((prepared - mean) / scale)
    widths = (data.shape[1], *config.hidden, config.dim)
    training = _Training(
        network=_Autoencoder(widths, generator),
        books=[nn.Parameter(torch.randn(size, config.dim, generator=generator)) for size in sizes],
        usage=[torch.zeros(size, dtype=torch.int64) for size in sizes],
        config=config,
    )
    if config.kmeans_init:
        training.start_at_centroids(data)
    _train(training, data, generator)
    training.set_unit(data)
    codebooks = Codebooks.of([book.detach().numpy() for book in training.books])
    return RqVaeQuantizer(codebooks, training.network.requires_grad_(False), mean, scale, widths)


def _train(training: _Training, data: Float[Tensor, "item input"], generator: torch.Generator) -> None:
    config = training.config
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
                loss, error = training.step(data[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                errors.append(float(error))
            usage = training.perplexities()
            if not np.isfinite(errors).all():
                raise ConfigError(
                    f"The RQ-VAE's loss is NaN or infinite in epoch {epoch + 1}. Lower learning_rate "
                    f"({config.learning_rate})."
                )
            warned = warned or _warn_of_collapse(usage, training.books, epoch=epoch, epochs=config.epochs)
            last = epoch == config.epochs - 1
            if config.reset_dead and not last:  # a codeword moved after the last step would never be trained
                training.reset_dead_codes(data[order[: config.batch]], generator)
            advance(1, error=float(np.mean(errors)), usage="/".join(f"{value:.0f}" for value in usage))


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
