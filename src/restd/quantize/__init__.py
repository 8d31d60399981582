"""Vectors to codes: quantisers by name, each a latent space with codebooks.

Names are imported when first used: listing the quantisers loads neither torch nor faiss.
"""

from typing import TYPE_CHECKING, Any

from restd.quantize.registry import QUANTIZERS, QuantizerKind

if TYPE_CHECKING:
    from restd.quantize.align_settings import AlignConfig
    from restd.quantize.aligned import AlignedQuantizer, input_width, query_latents, query_stages, restore_quantizer
    from restd.quantize.alignment import Alignment, QueryPairs, fit_alignment
    from restd.quantize.cat_id2 import CatId2Config
    from restd.quantize.forge import ForgeConfig
    from restd.quantize.hi_gen import HiGenConfig
    from restd.quantize.hyperbolic import HyperbolicConfig
    from restd.quantize.kmeans import KMeansConfig
    from restd.quantize.kmeans_fit import KMeansQuantizer, fit_kmeans, fit_level
    from restd.quantize.merge import MergeConfig
    from restd.quantize.quantizer import Quantizer, Stage, check_latents, to_latents, unit_length
    from restd.quantize.rqvae import RqVaeConfig
    from restd.quantize.rqvae_fit import RqVaeQuantizer, fit_rqvae
    from restd.quantize.settings import QuantizerConfig, SchemeConfig, automatic_codes, level_sizes
    from restd.quantize.signals import Identifiers, Signals
    from restd.quantize.sinkhorn import assign_balanced

_HOMES = {
    "AlignConfig": "restd.quantize.align_settings",
    "AlignedQuantizer": "restd.quantize.aligned",
    "Alignment": "restd.quantize.alignment",
    "CatId2Config": "restd.quantize.cat_id2",
    "ForgeConfig": "restd.quantize.forge",
    "HyperbolicConfig": "restd.quantize.hyperbolic",
    "HiGenConfig": "restd.quantize.hi_gen",
    "Identifiers": "restd.quantize.signals",
    "KMeansConfig": "restd.quantize.kmeans",
    "KMeansQuantizer": "restd.quantize.kmeans_fit",
    "MergeConfig": "restd.quantize.merge",
    "Quantizer": "restd.quantize.quantizer",
    "QuantizerConfig": "restd.quantize.settings",
    "QueryPairs": "restd.quantize.alignment",
    "RqVaeConfig": "restd.quantize.rqvae",
    "RqVaeQuantizer": "restd.quantize.rqvae_fit",
    "SchemeConfig": "restd.quantize.settings",
    "Signals": "restd.quantize.signals",
    "Stage": "restd.quantize.quantizer",
    "assign_balanced": "restd.quantize.sinkhorn",
    "automatic_codes": "restd.quantize.settings",
    "check_latents": "restd.quantize.quantizer",
    "fit_alignment": "restd.quantize.alignment",
    "fit_kmeans": "restd.quantize.kmeans_fit",
    "fit_level": "restd.quantize.kmeans_fit",
    "fit_rqvae": "restd.quantize.rqvae_fit",
    "input_width": "restd.quantize.aligned",
    "level_sizes": "restd.quantize.settings",
    "query_latents": "restd.quantize.aligned",
    "query_stages": "restd.quantize.aligned",
    "restore_quantizer": "restd.quantize.aligned",
    "to_latents": "restd.quantize.quantizer",
    "unit_length": "restd.quantize.quantizer",
}

__all__ = [
    "QUANTIZERS",
    "AlignConfig",
    "AlignedQuantizer",
    "Alignment",
    "CatId2Config",
    "ForgeConfig",
    "HiGenConfig",
    "HyperbolicConfig",
    "Identifiers",
    "KMeansConfig",
    "KMeansQuantizer",
    "MergeConfig",
    "Quantizer",
    "QuantizerConfig",
    "QuantizerKind",
    "QueryPairs",
    "RqVaeConfig",
    "RqVaeQuantizer",
    "SchemeConfig",
    "Signals",
    "Stage",
    "assign_balanced",
    "automatic_codes",
    "check_latents",
    "fit_alignment",
    "fit_kmeans",
    "fit_level",
    "fit_rqvae",
    "input_width",
    "level_sizes",
    "query_latents",
    "query_stages",
    "restore_quantizer",
    "to_latents",
    "unit_length",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'restd.quantize' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
