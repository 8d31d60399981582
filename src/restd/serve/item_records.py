"""One item update as the journal keeps it, with all that makes the same snapshot again without encoder or quantiser."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from restd.index import Placement
from restd.snapshot import NewItems, Snapshot

_RECORD, _VECTORS = "record", "vectors"
_PLACEMENT = ("latents", "raw", "sids", "came_in")


@dataclass(frozen=True, eq=False)
class ItemRecord:
    """What one batch changed.

    Args:
        removed: ids of items that were there, in the order of the request; also those that were replaced.
        added: items behind the others; None where none came.
        generation: generation of the index afterwards.
        snapshot: hash of the snapshot afterwards.
    """

    removed: tuple[str, ...]
    added: NewItems | None
    generation: int
    snapshot: str = ""

    def to_bytes(self) -> bytes:
        """The record as safetensors: its arrays, and everything else as JSON."""
        fields: dict[str, Any] = {
            "removed": self.removed,
            "generation": self.generation,
            "snapshot": self.snapshot,
        }
        tensors = {}
        if self.added is not None:
            fields |= {"items": [dict(item) for item in self.added.items], "texts": self.added.texts}
            tensors = {name: getattr(self.added.placement, name) for name in _PLACEMENT}
            tensors[_VECTORS] = self.added.vectors
        text = json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
        tensors[_RECORD] = np.frombuffer(text, np.uint8)
        return save({name: np.ascontiguousarray(array) for name, array in tensors.items()})

    @classmethod
    def from_bytes(cls, payload: bytes) -> "ItemRecord":
        """The inverse of `to_bytes`."""
        tensors = load(payload)
        fields = json.loads(tensors[_RECORD].tobytes())
        added = None
        if "items" in fields:
            placement = Placement(*(tensors[name] for name in _PLACEMENT))
            added = NewItems(fields["items"], fields["texts"], tensors[_VECTORS], placement)
        return cls(tuple(fields["removed"]), added, fields["generation"], fields["snapshot"])

    def applied(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot after this update."""
        return snapshot.updated(remove=self.removed, add=self.added, generation=self.generation)


def folded(records: Iterable[ItemRecord]) -> ItemRecord | None:
    """One record with the effect of all, in their order; None where there are none.

    What was added and removed again leaves no trace but the generation.
    """
    removed: list[str] = []
    places: dict[str, int] = {}
    parts: list[NewItems] = []
    start, last = 0, None
    for last in records:
        removed += [item for item in last.removed if places.pop(item, None) is None]
        if last.added is not None:
            places.update((str(item["id"]), start + row) for row, item in enumerate(last.added.items))
            parts.append(last.added)
            start += len(last.added.items)
    if last is None:
        return None
    return ItemRecord(tuple(removed), _chosen(parts, list(places.values())), last.generation, last.snapshot)


def _chosen(parts: list[NewItems], rows: list[int]) -> NewItems | None:
    """These rows of all parts, one behind the other."""
    if not rows:
        return None
    items: list[Mapping[str, Any]] = [item for part in parts for item in part.items]
    texts = [text for part in parts for text in part.texts or ()]
    arrays = [np.concatenate([getattr(part.placement, name) for part in parts])[rows] for name in _PLACEMENT]
    vectors = np.concatenate([part.vectors for part in parts])[rows]
    return NewItems([items[row] for row in rows], [texts[row] for row in rows], vectors, Placement(*arrays))
