"""MERGE in the registry: an RQ-VAE that learns which items answer the same queries; losses in `merge_losses`."""

from dataclasses import dataclass
from typing import Literal

from restd.quantize.registry import QUANTIZERS, QuantizerKind
from restd.quantize.rqvae import RqVaeConfig, refuse_negative
from restd.registry import deferred

KIND = "merge"


@dataclass(frozen=True, slots=True)
class MergeConfig(RqVaeConfig):
    """How to train an RQ-VAE with MERGE's losses; without any of them it is `rqvae`.

    Args:
        alignment: weight of the loss that draws items to their queries, better grades more.
        level_weight: weight, at each level, of the losses that draw items of a query together.
        margin: by how much items of a query with the same grade should be closer than one with a lower grade.
        temperature: temperature of the contrast between items of the same query and others.
        query: a query's vector: `items` is the mean of its best-graded items, `text` its own embedding.
    """

    alignment: float = 0.01
    level_weight: float = 0.001
    margin: float = 0.2
    temperature: float = 0.1
    query: Literal["items", "text"] = "items"

    def __post_init__(self) -> None:
        RqVaeConfig.__post_init__(self)
        refuse_negative(self, "alignment", "level_weight", "margin")
        refuse_negative(self, "temperature", strictly=True)


QUANTIZERS.add(
    QuantizerKind(
        KIND,
        "RQ-VAE whose levels keep items of the same query together, coarse levels any, deep levels the equally good.",
        MergeConfig,
        fit=deferred("restd.quantize.merge_losses", "fit_merge"),
        restore=deferred("restd.quantize.rqvae_fit", "restore_rqvae"),
        needs=frozenset({"queries"}),
        source="Zhang et al., ACL 2025 (MERGE)",
    )
)
