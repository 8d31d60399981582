"""Generative retrievers behind one contract: T5 and mT5, CaLIR, TIGER, and a compact one for ordinary machines."""

from restd.models.asking import prepare_queries
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
    task_of,
    write_backbone,
)
from restd.models.t5 import T5Backbone, T5Config
from restd.models.tiger import SidHistories, TigerBackbone, TigerConfig

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
    "SidHistories",
    "T5Backbone",
    "T5Config",
    "TigerBackbone",
    "TigerConfig",
    "describe",
    "induce",
    "make_backbone",
    "open_model",
    "prepare_queries",
    "read_backbone",
    "refuse_other_layout",
    "route_texts",
    "task_of",
    "write_backbone",
]
