"""Residual k-means in the registry: its settings. The fit is in `kmeans_fit`, which needs torch and faiss."""

from dataclasses import dataclass

from restd.errors import ConfigError
from restd.quantize.registry import QUANTIZERS, QuantizerKind
from restd.quantize.settings import AUTO_CODES, check_shape
from restd.registry import deferred

KIND = "kmeans"


@dataclass(frozen=True, slots=True)
class KMeansConfig:
    """How to fit residual k-means.

    Args:
        levels: number of codes in a Semantic ID.
        codes: codes per level, one number or one per level; 0 chooses by catalogue size.
        dim: width after PCA; embeddings that are no wider are used as they are.
        normalize: scale embeddings to length one first.
        iterations: rounds of k-means per level.
        sample: fit on at most this many items.
        seed: random seed for the sample, the initial centroids and reseeding.
    """

    levels: int = 4
    codes: int | tuple[int, ...] = AUTO_CODES
    dim: int = 32
    normalize: bool = True
    iterations: int = 25
    sample: int = 262_144
    seed: int = 0

    def __post_init__(self) -> None:
        check_shape(self)
        if self.iterations < 1:
            raise ConfigError(f"iterations must be at least 1, got {self.iterations}.")


QUANTIZERS.add(
    QuantizerKind(
        KIND,
        "Residual k-means after PCA: no training that could go wrong, seconds on a laptop.",
        KMeansConfig,
        fit=deferred("restd.quantize.kmeans_fit", "fit_kmeans"),
        restore=deferred("restd.quantize.kmeans_fit", "restore_kmeans"),
        nested=True,
    )
)
