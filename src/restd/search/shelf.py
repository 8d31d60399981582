"""What a retriever searches: an index and what is known of its items."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from restd.errors import DataError
from restd.index import SidIndex, Trie
from restd.search.items import Condition, Items

_TRIES = 32


@dataclass(frozen=True, slots=True)
class Hit:
    """An answer."""

    item: str
    title: str
    score: float
    sid: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Shelf:
    """An index and what is known of its items; replaced as a whole, so that a search sees one or the other."""

    index: SidIndex
    items: Items
    tries: dict[bytes, Trie] = field(default_factory=dict)

    def trie(self, kept: Bool[np.ndarray, "item"] | None) -> Trie:
        """The trie of all items, or of those that are kept; the last few are remembered."""
        if kept is None:
            return self.index.trie
        key = np.packbits(kept).tobytes()
        found = self.tries.get(key)  # looked up once: another thread may forget it meanwhile
        if found is None:
            found = self.index.trie.restrict(torch.from_numpy(kept))
            if len(self.tries) >= _TRIES:
                self.tries.clear()
            self.tries[key] = found
        return found

    def kept(
        self, where: Sequence[str | Condition], allow: Sequence[str] | None, deny: Sequence[str]
    ) -> Bool[np.ndarray, "item"] | None:
        """Items that meet all conditions; None where there are none to meet."""
        if not where and allow is None and not deny:
            return None
        conditions = [Condition.parse(held) if isinstance(held, str) else held for held in where]
        kept = self.items.meeting(conditions)
        if allow is not None:
            chosen = np.zeros(len(kept), bool)
            chosen[self.items.rows(allow, what="allow")] = True
            kept &= chosen
        if deny:
            kept[self.items.rows(deny, what="deny")] = False
        if not kept.any():
            said = ", ".join(f"{held.column}{held.operator}{held.value}" for held in conditions) or "allow and deny"
            raise DataError(f"No item meets the filter ({said}); loosen it.")
        return kept

    def hits(self, rows: Int[np.ndarray, "query rank"], scores: Float[np.ndarray, "query rank"]) -> list[list[Hit]]:
        """Ranked rows as answers; unfilled ranks are left out."""
        titles = self.items.titles()
        return [
            [
                Hit(self.items.ids[row].as_py(), titles[row].as_py(), score, tuple(self.index.sids[row].tolist()))
                for row, score in zip(held.tolist(), scored.tolist(), strict=True)
                if row >= 0
            ]
            for held, scored in zip(rows, scores, strict=True)
        ]
