"""Hi-Gen's identifiers in the registry: their settings. They are made in `hi_gen_identify`, which needs faiss."""

from dataclasses import dataclass

from restd.errors import ConfigError
from restd.quantize.registry import QUANTIZERS, QuantizerKind
from restd.quantize.settings import AUTO_CODES, check_shape
from restd.registry import deferred


@dataclass(frozen=True, slots=True)
class HiGenConfig:
    """How to make identifiers of categories and clusters.

    Args:
        levels: codes of categories and clusters together; one more code numbers the items that share them.
        depth: codes of categories, at most; fewer where the paths of the catalogue, or `levels`, end earlier.
        codes: clusters per level, at most: one number, or one per level of clusters; 0 chooses by catalogue size.
        dim: width after PCA, in which items are clustered; embeddings that are no wider are used as they are.
        iterations: rounds of k-means.
        sample: fit the PCA, and the clusters of a category, on at most this many items.
        seed: random seed for samples and initial centroids.
    """

    levels: int = 4
    depth: int = 3
    codes: int | tuple[int, ...] = AUTO_CODES
    dim: int = 32
    iterations: int = 25
    sample: int = 262_144
    seed: int = 0

    def __post_init__(self) -> None:
        check_shape(self)
        for name in ("depth", "iterations"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")


QUANTIZERS.add(
    QuantizerKind(
        "hi-gen",
        "Hi-Gen's identifiers: the category path, then clusters inside each category, then a number.",
        HiGenConfig,
        identify=deferred("restd.quantize.hi_gen_identify", "identify_by_categories"),
        needs=frozenset({"categories"}),
        source="Wu et al. 2024",
    )
)
