"""What is searched: an index and what is known of its items, as one immutable value.

Names are imported when first used: a condition of a filter needs no index.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from restd.snapshot.filters import Condition
    from restd.snapshot.items import Items, NewItems
    from restd.snapshot.ranker import Companion, Ranker, refuse_foreign
    from restd.snapshot.snapshot import Snapshot

_HOMES = {
    "Companion": "restd.snapshot.ranker",
    "Condition": "restd.snapshot.filters",
    "Items": "restd.snapshot.items",
    "NewItems": "restd.snapshot.items",
    "Ranker": "restd.snapshot.ranker",
    "Snapshot": "restd.snapshot.snapshot",
    "refuse_foreign": "restd.snapshot.ranker",
}

__all__ = ["Companion", "Condition", "Items", "NewItems", "Ranker", "Snapshot", "refuse_foreign"]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'restd.snapshot' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
