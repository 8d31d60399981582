"""Generative retrievers behind one contract, by registration: compact, T5 and mT5, CaLIR, TIGER, and yours."""

# ruff: noqa: I001
# The order of the first four is the order of registration, in which backbones are listed.

from restd.models.compact import CompactBackbone, CompactConfig
from restd.models.t5 import T5Backbone, T5Config
from restd.models.calir import CalirBackbone, CalirConfig, CategoryHeads
from restd.models.tiger import TigerBackbone, TigerConfig

from restd.data.categories import Categories
from restd.models.categories import CategorySettings, induce
from restd.models.contract import Backbone, Memory, Output, load_weights
from restd.models.ending_stepper import EndingStepper, make_stepper
from restd.models.inputs import SidHistories
from restd.models.registry import (
    BACKBONES,
    BackboneKind,
    BuildContext,
    ModelConfig,
    backbones_for,
    default_backbone,
    kind_of,
    make_backbone,
)
from restd.models.routing import CachedRoutes, route_texts
from restd.models.store import (
    index_generation,
    open_model,
    read_backbone,
    read_description,
    refuse_other_layout,
    task_of,
)

__all__ = [
    "BACKBONES",
    "Backbone",
    "BackboneKind",
    "BuildContext",
    "CachedRoutes",
    "CalirBackbone",
    "CalirConfig",
    "Categories",
    "CategoryHeads",
    "CategorySettings",
    "CompactBackbone",
    "CompactConfig",
    "EndingStepper",
    "Memory",
    "ModelConfig",
    "Output",
    "SidHistories",
    "T5Backbone",
    "T5Config",
    "TigerBackbone",
    "TigerConfig",
    "backbones_for",
    "default_backbone",
    "index_generation",
    "induce",
    "kind_of",
    "load_weights",
    "make_backbone",
    "make_stepper",
    "open_model",
    "read_backbone",
    "read_description",
    "refuse_other_layout",
    "route_texts",
    "task_of",
]
