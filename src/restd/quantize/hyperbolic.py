"""HGRec in the registry: residual quantisation in the Poincaré ball. The training is in `hyperbolic_fit`."""

from dataclasses import dataclass
from typing import Literal

from restd.quantize.registry import QUANTIZERS, QuantizerKind
from restd.quantize.rqvae import RqVaeConfig
from restd.quantize.settings import AUTO_CODES, level_sizes
from restd.registry import deferred

KIND = "hyperbolic"
_SMALLEST, _LARGEST = 64, 512
_ITEMS_PER_CODE, _FEWEST = 4, 16


@dataclass(frozen=True, slots=True)
class HyperbolicConfig(RqVaeConfig):
    """How to train an RQ-VAE in the ball. With `codes` 0, levels grow from 64 to 512 codes.

    Args:
        space: `poincare`, or `euclidean` for the same shape in a flat space, which is `rqvae`.
    """

    space: Literal["poincare", "euclidean"] = "poincare"


def pyramid(codes: int | tuple[int, ...], *, levels: int, items: int) -> tuple[int, ...]:
    """Codes of each level: as stated, or twice as many as the level before, at most a quarter of the items.

    >>> pyramid(0, levels=4, items=100_000), pyramid(0, levels=4, items=300), pyramid(32, levels=2, items=300)
    ((64, 128, 256, 512), (64, 64, 64, 64), (32, 32))
    """
    if codes == AUTO_CODES:
        most = 1 << (max(items // _ITEMS_PER_CODE, 1).bit_length() - 1)
        most = min(max(most, _FEWEST), 1 << (max(items, 1).bit_length() - 1))
        codes = tuple(min(_SMALLEST << level, _LARGEST, most) for level in range(levels))
    return level_sizes(codes, levels=levels, items=items)


QUANTIZERS.add(
    QuantizerKind(
        KIND,
        "RQ-VAE in the Poincaré ball: room grows towards the boundary, and codebooks grow with the level.",
        HyperbolicConfig,
        fit=deferred("restd.quantize.hyperbolic_fit", "fit_hyperbolic"),
        restore=deferred("restd.quantize.hyperbolic_fit", "restore_hyperbolic"),
        sizes=pyramid,
        source="HGRec, ICML 2026",
    )
)
