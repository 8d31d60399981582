"""Semantic IDs: unique codes for every item, the trie over them, and how good they are.

Names are imported when first used: listing the collision policies loads neither torch nor encoders.
"""

from typing import TYPE_CHECKING, Any

from restd.index.policies import POLICIES, PolicyKind

if TYPE_CHECKING:
    from restd.codes import Trie
    from restd.index.build import build_index
    from restd.index.collisions import CollisionProblem, Resolution
    from restd.index.config import IndexConfig, ShapeConfig, with_shape
    from restd.index.drift import Drift
    from restd.index.imported import import_index
    from restd.index.placement import Placement
    from restd.index.quality import IndexQuality, LevelQuality, measure_quality
    from restd.index.shape import ShapeReport, Trial
    from restd.index.sid_index import SidIndex
    from restd.index.table import SidTable

_HOMES = {
    "CollisionProblem": "restd.index.collisions",
    "Drift": "restd.index.drift",
    "IndexConfig": "restd.index.config",
    "IndexQuality": "restd.index.quality",
    "LevelQuality": "restd.index.quality",
    "Placement": "restd.index.placement",
    "Resolution": "restd.index.collisions",
    "ShapeConfig": "restd.index.config",
    "ShapeReport": "restd.index.shape",
    "SidIndex": "restd.index.sid_index",
    "SidTable": "restd.index.table",
    "Trial": "restd.index.shape",
    "Trie": "restd.codes",
    "build_index": "restd.index.build",
    "import_index": "restd.index.imported",
    "measure_quality": "restd.index.quality",
    "with_shape": "restd.index.config",
}

__all__ = [
    "POLICIES",
    "CollisionProblem",
    "Drift",
    "IndexConfig",
    "IndexQuality",
    "LevelQuality",
    "Placement",
    "PolicyKind",
    "Resolution",
    "ShapeConfig",
    "ShapeReport",
    "SidIndex",
    "SidTable",
    "Trial",
    "Trie",
    "build_index",
    "import_index",
    "measure_quality",
    "with_shape",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'restd.index' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
