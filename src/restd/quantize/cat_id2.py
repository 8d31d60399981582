"""CAT-ID² in the registry: an RQ-VAE whose first levels follow the categories. Its losses are in `cat_id2_losses`."""

from dataclasses import dataclass

from restd.quantize.registry import QUANTIZERS, QuantizerKind
from restd.quantize.rqvae import RqVaeConfig, refuse_negative
from restd.registry import deferred

KIND = "cat-id2"


@dataclass(frozen=True, slots=True)
class CatId2Config(RqVaeConfig):
    """How to train an RQ-VAE with CAT-ID²'s losses; without any of them it is `rqvae`.

    Args:
        category: weight of the contrast that draws items of the same category together, depth by depth.
        balance: weight of the divergence of the mean preference for the codes of a level from even use.
        dispersion: weight of the loss that spreads reconstructed items.
        temperature: temperature of the contrast.
    """

    category: float = 0.1
    balance: float = 0.01
    dispersion: float = 0.01
    temperature: float = 0.1

    def __post_init__(self) -> None:
        RqVaeConfig.__post_init__(self)
        refuse_negative(self, "category", "balance", "dispersion")
        refuse_negative(self, "temperature", strictly=True)


QUANTIZERS.add(
    QuantizerKind(
        KIND,
        "RQ-VAE whose first levels follow the categories, with codes used evenly and items spread.",
        CatId2Config,
        fit=deferred("restd.quantize.cat_id2_losses", "fit_cat_id2"),
        restore=deferred("restd.quantize.rqvae_fit", "restore_rqvae"),
        needs=frozenset({"categories"}),
        source="Liu et al., WSDM 2026 (CAT-ID²)",
    )
)
