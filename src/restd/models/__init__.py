"""Generative retrievers behind one contract: T5 and mT5, CaLIR, and a compact one for ordinary machines."""

from restd.models.calir import CachedRoutes, CalirBackbone, CalirConfig, CategoryHeads, route_texts
from restd.models.categories import Categories, induce
from restd.models.compact import CompactBackbone, CompactConfig
from restd.models.contract import Backbone, Memory, Output
from restd.models.store import (
    AnyBackbone,
    ModelConfig,
    describe,
    make_backbone,
    open_model,
    read_backbone,
    refuse_other_layout,
    write_backbone,
)
from restd.models.t5 import T5Backbone, T5Config

__all__ = [
    "AnyBackbone",
    "Backbone",
    "CachedRoutes",
    "CalirBackbone",
    "CalirConfig",
    "Categories",
    "CategoryHeads",
    "CompactBackbone",
    "CompactConfig",
    "Memory",
    "ModelConfig",
    "Output",
    "T5Backbone",
    "T5Config",
    "describe",
    "induce",
    "make_backbone",
    "open_model",
    "read_backbone",
    "refuse_other_layout",
    "route_texts",
    "write_backbone",
]
