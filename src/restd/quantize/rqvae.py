"""RQ-VAE in the registry: its settings. The training is in `rqvae_fit`, which needs torch and faiss."""

from dataclasses import dataclass

from restd.errors import ConfigError
from restd.quantize.registry import QUANTIZERS, QuantizerKind
from restd.quantize.settings import AUTO_CODES, check_shape
from restd.registry import deferred

KIND = "rqvae"


@dataclass(frozen=True, slots=True)
class RqVaeConfig:
    """How to train an RQ-VAE.

    Args:
        levels: number of codes in a Semantic ID.
        codes: codes per level, one number or one per level; 0 chooses by catalogue size.
        dim: width of the bottleneck, which is what is quantised.
        hidden: widths between input and bottleneck; the decoder mirrors them.
        epochs: passes over the (sampled) catalogue.
        batch: items per step.
        learning_rate: learning rate of AdamW.
        weight_decay: weight decay of AdamW, except for codebooks.
        commitment: weight of the loss that draws latents to their codewords. It reaches the encoder through level 1
            alone: straight-through gradients cancel in the residuals of later levels, as in the authors' release.
        kmeans_init: start codebooks at centroids of the first latents rather than at random.
        kmeans_restarts: runs of that k-means, of which the one with the least error is kept.
        reset_dead: after each epoch, move codewords that no item chose to residuals drawn at random.
        sinkhorn_last: balance the last level during training.
        sample: train on at most this many items.
        seed: random seed for the sample, weights, order and resets.
    """

    levels: int = 4
    codes: int | tuple[int, ...] = AUTO_CODES
    dim: int = 32
    hidden: tuple[int, ...] = (256, 128, 64)
    epochs: int = 100
    batch: int = 1024
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    commitment: float = 0.25
    kmeans_init: bool = True
    kmeans_restarts: int = 1
    reset_dead: bool = True
    sinkhorn_last: bool = False
    sample: int = 262_144
    seed: int = 0

    def __post_init__(self) -> None:
        check_shape(self)
        for name, least in (("epochs", 1), ("batch", 2), ("kmeans_restarts", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        if min(self.hidden, default=1) < 1:
            raise ConfigError(f"hidden must be widths of at least 1, got {self.hidden}.")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate must be above 0, got {self.learning_rate}.")
        refuse_negative(self, "weight_decay", "commitment")


def refuse_negative(config: RqVaeConfig, *names: str, strictly: bool = False) -> None:
    """Refuse settings below zero, and zero itself with `strictly`."""
    for name in names:
        value = getattr(config, name)
        if not (value > 0 if strictly else value >= 0):
            raise ConfigError(f"{name} must be {'above' if strictly else 'at least'} 0, got {value}.")


QUANTIZERS.add(
    QuantizerKind(
        KIND,
        "Autoencoder with a residual-quantised bottleneck, trained end to end: smaller error, minutes of training.",
        RqVaeConfig,
        fit=deferred("restd.quantize.rqvae_fit", "fit_rqvae"),
        restore=deferred("restd.quantize.rqvae_fit", "restore_rqvae"),
        source="Lee et al. 2022, RQ-VAE; Rajput et al. 2023, TIGER",
    )
)
