"""What is searched: an index and what is known of its items, as one immutable value."""

from restd.snapshot.filters import Condition
from restd.snapshot.items import Items, NewItems
from restd.snapshot.ranker import Companion, Ranker, refuse_foreign
from restd.snapshot.snapshot import Snapshot

__all__ = ["Companion", "Condition", "Items", "NewItems", "Ranker", "Snapshot", "refuse_foreign"]
