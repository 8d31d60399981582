"""RQ-VAE: an autoencoder whose bottleneck is residual-quantised, trained end to end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float16
from torch import nn

from restd.codes import Codebooks
from restd.quantize.loss_parts import LossPart
from restd.quantize.quantizer import Stage, refuse_identical, to_latents, unit_length
from restd.quantize.rqvae import KIND, RqVaeConfig
from restd.quantize.rqvae_training import ROWS, Autoencoder, Training, train
from restd.quantize.settings import level_sizes


@dataclass(frozen=True, slots=True, eq=False)
class RqVaeQuantizer:
    """A trained autoencoder and its codebooks."""

    codebooks: Codebooks
    network: Autoencoder
    mean: Float[np.ndarray, "input"]
    scale: float
    widths: tuple[int, ...]
    kind: str = KIND
    """Name in `QUANTIZERS`: that of the variant whose losses it was trained with."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values of the state."""
        return {"kind": self.kind, "widths": list(self.widths), "scale": self.scale}

    def prepared(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "item input"]:
        """Scale embeddings to length one."""
        return unit_length(vectors)

    def latents(self, vectors: Float[np.ndarray, "item input"]) -> Float16[np.ndarray, "item dim"]:
        """Output of the encoder, rounded to float16."""
        return to_latents(self.encoded(vectors))

    def encoded(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "item dim"]:
        """Output of the encoder."""
        return apply_network(self.network.encoder, (self.prepared(vectors) - self.mean) / self.scale)

    def reconstruct(self, latents: Float[np.ndarray, "item dim"]) -> Float[np.ndarray, "item input"]:
        """Output of the decoder."""
        return apply_network(self.network.decoder, latents.astype(np.float32)) * self.scale + self.mean

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
    network = Autoencoder(widths, torch.Generator())
    network.load_state_dict(
        {name: torch.from_numpy(np.array(value)) for name, value in arrays.items() if name != "mean"}
    )
    kind = settings["kind"]
    return RqVaeQuantizer(codebooks, network.requires_grad_(False), arrays["mean"], settings["scale"], widths, kind)


def apply_network(network: nn.Module, values: Float[np.ndarray, "item before"]) -> Float[np.ndarray, "item after"]:
    """Apply one half of an autoencoder, some rows at a time."""
    with torch.no_grad():
        parts = torch.from_numpy(np.ascontiguousarray(values, np.float32)).split(ROWS)
        return torch.cat([network(part) for part in parts]).numpy()


PartsOf = Callable[[Float[np.ndarray, "item input"], "Standard"], tuple[LossPart, ...]]
"""Loss parts, made from the vectors that are fitted and what standardises them."""


@dataclass(frozen=True, slots=True, eq=False)
class Standard:
    """How inputs are standardised: unit length, then mean and spread of the fitted items."""

    mean: Float[np.ndarray, "input"]
    scale: float

    @classmethod
    def of(cls, vectors: Float[np.ndarray, "item input"]) -> "Standard":
        """Mean and spread of vectors that are not all the same."""
        prepared = unit_length(vectors)
        refuse_identical(prepared)
        mean = prepared.mean(axis=0, dtype=np.float64).astype(np.float32)
        return cls(mean, float((prepared - mean).std()))

    def __call__(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "item input"]:
        """Standardise."""
        return (unit_length(vectors) - self.mean) / self.scale


def fit_rqvae(
    vectors: Float[np.ndarray, "item input"],
    config: RqVaeConfig,
    *,
    items: int,
    kind: str = KIND,
    parts: PartsOf | None = None,
) -> RqVaeQuantizer:
    """Train an RQ-VAE on a sample of a catalogue of `items` items.

    A level whose perplexity falls below a tenth of its codes has collapsed: that is logged as a warning, with the
    setting to change, as soon as it shows.

    Args:
        vectors: of the sampled items.
        config: how to train.
        items: size of the catalogue, which automatic codebook sizes follow.
        kind: name of the variant in `QUANTIZERS`.
        parts: makes the losses that the variant adds; without any the result is that of plain `rqvae`, bit by bit.
    """
    standard = Standard.of(vectors)
    sizes = level_sizes(config.codes, levels=config.levels, items=min(items, len(vectors)))
    generator = torch.Generator().manual_seed(config.seed)
    data = torch.from_numpy(standard(vectors))
    widths = (data.shape[1], *config.hidden, config.dim)
    training = Training(
        network=Autoencoder(widths, generator),
        books=[nn.Parameter(torch.randn(size, config.dim, generator=generator)) for size in sizes],
        usage=[torch.zeros(size, dtype=torch.int64) for size in sizes],
        config=config,
        parts=() if parts is None else parts(vectors, standard),
    )
    if config.kmeans_init:
        training.start_at_centroids(data)
    train(training, data, config, generator)
    training.set_unit(data)
    codebooks = Codebooks.of([book.detach().numpy() for book in training.books])
    network = training.network.requires_grad_(False)
    return RqVaeQuantizer(codebooks, network, standard.mean, standard.scale, widths, kind)
