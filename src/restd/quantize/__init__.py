"""Vectors to codes: residual k-means and RQ-VAE, each a latent space with codebooks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from restd.errors import ArtifactError
from restd.quantize import kmeans, rqvae
from restd.quantize.codebooks import Codebooks, assign, last_residuals, nearest, trajectory
from restd.quantize.kmeans import KMeansConfig, KMeansQuantizer, fit_kmeans
from restd.quantize.quantizer import Quantizer, automatic_codes, level_sizes
from restd.quantize.rqvae import RqVaeConfig, RqVaeQuantizer, fit_rqvae
from restd.quantize.sinkhorn import assign_balanced, sinkhorn

_KINDS = {kmeans.KIND: KMeansQuantizer, rqvae.KIND: RqVaeQuantizer}


def quantizer_from_state(
    settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray], codebooks: Codebooks
) -> Quantizer:
    """Restore any quantiser from what `settings` and `tensors` gave."""
    kind = settings["kind"]
    if kind not in _KINDS:
        raise ArtifactError(f"A quantiser of kind '{kind}' is unknown here; wanted one of {', '.join(_KINDS)}.")
    return _KINDS[kind].from_state(settings, tensors, codebooks)


__all__ = [
    "Codebooks",
    "KMeansConfig",
    "KMeansQuantizer",
    "Quantizer",
    "RqVaeConfig",
    "RqVaeQuantizer",
    "assign",
    "assign_balanced",
    "automatic_codes",
    "fit_kmeans",
    "fit_rqvae",
    "last_residuals",
    "level_sizes",
    "nearest",
    "quantizer_from_state",
    "sinkhorn",
    "trajectory",
]
