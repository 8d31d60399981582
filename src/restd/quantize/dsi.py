"""The identifiers of DSI (Tay and others 2022) in the registry: their settings. `dsi_identifiers` makes them."""

from dataclasses import dataclass

from restd.errors import ConfigError
from restd.quantize.registry import QUANTIZERS, QuantizerKind
from restd.registry import deferred

NAIVE, SEMANTIC = "dsi-naive", "dsi-semantic"
_MOST = 32_000
"""Codes of a level are stored in 16 bits."""
_SOURCE = "Tay et al. 2022, Transformer Memory as a Differentiable Search Index"


@dataclass(frozen=True, slots=True)
class DsiNaiveConfig:
    """How to make DSI's arbitrary identifiers.

    Args:
        base: codes of each level; an identifier is a number in this base, of as many digits as the largest one needs.
        seed: random seed of the order in which items are numbered.
    """

    base: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        _check(NAIVE, self, least={"base": 2, "seed": 0})


@dataclass(frozen=True, slots=True)
class DsiSemanticConfig:
    """How to make DSI's semantic identifiers.

    Args:
        branch: clusters that a cluster is split into.
        leaf: items of a cluster that is not split any more, at most; they are numbered.
        seed: random seed of the initial centroids.
    """

    branch: int = 10
    leaf: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        _check(SEMANTIC, self, least={"branch": 2, "leaf": 1, "seed": 0})


def _check(name: str, config: DsiNaiveConfig | DsiSemanticConfig, *, least: dict[str, int]) -> None:
    for setting, smallest in least.items():
        value = getattr(config, setting)
        if value < smallest or (setting != "seed" and value > _MOST):
            wanted = "at least 0" if setting == "seed" else f"from {smallest} to {_MOST:,}"
            raise ConfigError(f"{name}.{setting} must be {wanted}, got {value}.")


QUANTIZERS.add(
    QuantizerKind(
        NAIVE,
        "DSI's arbitrary numbers, digit by digit: identifiers that say nothing about the items.",
        DsiNaiveConfig,
        identify=deferred("restd.quantize.dsi_identifiers", "number_items"),
        source=_SOURCE,
    )
)
QUANTIZERS.add(
    QuantizerKind(
        SEMANTIC,
        "DSI's clusters inside clusters: an identifier is the path to a small cluster and a place in it.",
        DsiSemanticConfig,
        identify=deferred("restd.quantize.dsi_identifiers", "cluster_items"),
        source=_SOURCE,
    )
)
