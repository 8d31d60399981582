"""Semantic-ID generative retrieval and recommendation with residual trajectory distillation.

>>> from restd import Catalog, build_index
"""

from typing import TYPE_CHECKING, Any

from restd._version import __version__
from restd.errors import RestdError

if TYPE_CHECKING:
    from restd.client import Client
    from restd.data import Catalog, read_histories, read_judgments
    from restd.index import IndexConfig, SidIndex, build_index, import_index, measure_quality

_HOMES = {
    "Catalog": "restd.data",
    "Client": "restd.client",
    "IndexConfig": "restd.index",
    "SidIndex": "restd.index",
    "build_index": "restd.index",
    "import_index": "restd.index",
    "measure_quality": "restd.index",
    "read_histories": "restd.data",
    "read_judgments": "restd.data",
}

__all__ = [
    "Catalog",
    "Client",
    "IndexConfig",
    "RestdError",
    "SidIndex",
    "__version__",
    "build_index",
    "import_index",
    "measure_quality",
    "read_histories",
    "read_judgments",
]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that `restd --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'restd' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
