"""FORGE in the registry: an RQ-VAE with a contrast between items of the same query."""

from dataclasses import dataclass

from restd.quantize.registry import QUANTIZERS, QuantizerKind
from restd.quantize.rqvae import RqVaeConfig, refuse_negative
from restd.registry import deferred

KIND = "forge"


@dataclass(frozen=True, slots=True)
class ForgeConfig(RqVaeConfig):
    """How to train an RQ-VAE with FORGE's contrast; without it, it is `rqvae`.

    Args:
        contrast: weight of the contrast between latents of items that answer the same query.
        temperature: temperature of that contrast.
    """

    contrast: float = 0.25
    temperature: float = 0.1

    def __post_init__(self) -> None:
        RqVaeConfig.__post_init__(self)
        refuse_negative(self, "contrast")
        refuse_negative(self, "temperature", strictly=True)


QUANTIZERS.add(
    QuantizerKind(
        KIND,
        "RQ-VAE that draws items of the same query together; meant for the policy capacity.",
        ForgeConfig,
        fit=deferred("restd.quantize.forge_losses", "fit_forge"),
        restore=deferred("restd.quantize.rqvae_fit", "restore_rqvae"),
        needs=frozenset({"queries"}),
        source="Fu et al., KDD 2026 (FORGE)",
    )
)
