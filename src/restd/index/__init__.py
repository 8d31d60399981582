"""Semantic IDs: unique codes for every item, the trie over them, and how good they are."""

from restd.index.build import IndexConfig, build_index, with_shape
from restd.index.growth import Drift
from restd.index.imported import import_index
from restd.index.policies import POLICIES, Policy, Problem, Resolution, policy_named
from restd.index.quality import IndexQuality, LevelQuality, measure_quality
from restd.index.sid_index import SidIndex
from restd.index.table import SidTable
from restd.index.trie import Trie

__all__ = [
    "POLICIES",
    "Drift",
    "IndexConfig",
    "IndexQuality",
    "LevelQuality",
    "Policy",
    "Problem",
    "Resolution",
    "SidIndex",
    "SidTable",
    "Trie",
    "build_index",
    "import_index",
    "measure_quality",
    "policy_named",
    "with_shape",
]
