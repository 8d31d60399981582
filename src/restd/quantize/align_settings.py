"""Settings of an alignment; loads neither torch nor faiss."""

from dataclasses import dataclass
from typing import Literal

from restd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AlignConfig:
    """The section [align].

    Args:
        enabled: `auto` aligns if there are judged queries, `on` always (from items' own words if need be), `off` never.
        epochs: passes over the pairs, at most.
        batch: pairs per update; all other items of a batch are its negatives.
        learning_rate: learning rate of AdamW, falling to zero along a cosine.
        weight_decay: weight decay of AdamW, towards the initial maps.
        temperature: temperature of the contrastive loss over cosines.
        patience: epochs without a better validation before training stops.
        pseudo_queries: queries drawn from each item's own words beside the judged ones.
        seed: random seed of the order of pairs and of the drawn queries.
    """

    enabled: Literal["auto", "on", "off"] = "auto"
    epochs: int = 12
    batch: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    temperature: float = 0.05
    patience: int = 3
    pseudo_queries: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 2), ("patience", 1), ("pseudo_queries", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"align.{name} must be at least {least}, got {getattr(self, name)}.")
        for name in ("learning_rate", "temperature"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"align.{name} must be above 0, got {getattr(self, name)}.")
        if self.weight_decay < 0:
            raise ConfigError(f"align.weight_decay must be at least 0, got {self.weight_decay}.")
