"""What is searched, as one immutable value with a content hash."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Float16, Int16, Int64

from restd._arrow import pc
from restd.artifacts import read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.codes import Trie
from restd.data import Catalog
from restd.errors import ConfigError, DataError
from restd.index import SidIndex
from restd.index.sid_index import FOLDER
from restd.index.table import SidTable, refuse_known
from restd.snapshot.filters import Condition
from restd.snapshot.items import Items, NewItems
from restd.snapshot.ranker import Companion, refuse_foreign

_TRIES = 32
_CPU = torch.device("cpu")
_CODES = 1 << 12
"""Codes of each of the two levels of numbered items; 16 million items fit."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An index, what is known of its items, and what was made for exactly these items.

    A snapshot never changes: adding or removing items gives another one, with another hash. Whatever names items by
    their rows (companions, rankers, test sets, evaluations) carries the hash of its snapshot and is refused elsewhere.

    Args:
        index: ids, Semantic IDs, latents and codebooks.
        items: titles, texts and columns of the same items, row for row.
        categories: category of every item as the model's router numbers them, -1 for items without one, which are
            always searched; None where nothing routes.
        companions: rankers of these items that a hybrid search fuses with the model.
        embeddings: content hash of the embeddings whose rows are these items; None where there are none.
        device: where the trie and the latents are needed: the model's.
    """

    index: SidIndex
    items: Items
    categories: Int64[np.ndarray, "item"] | None = None
    companions: tuple[Companion, ...] = ()
    embeddings: str | None = None
    device: torch.device = _CPU
    _tries: dict[bytes, Trie] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for companion in self.companions:
            refuse_foreign(
                f"The companion {companion.name!r}",
                companion.snapshot_hash,
                self.hash,
                remedy="Make it again from the snapshot that is searched.",
            )

    @classmethod
    def of(cls, index: SidIndex, catalog: Catalog | None = None) -> "Snapshot":
        """Take an index at hand, and the catalogue its items are from."""
        return cls(index, Items(index.table.ids, catalog))

    @classmethod
    def load(cls, folder: Path, catalog: Path | Catalog | None = None) -> "Snapshot":
        """Open the folder of an index; a catalogue given by path is read as it was when the index was made."""
        folder = Path(folder)
        index = SidIndex.load(folder)
        inside = folder if (folder / MANIFEST).is_file() else folder / FOLDER
        parents = read_manifest(inside).parents
        # an index that was changed since it was made names its predecessor too, and its rows are others
        embeddings = None if "index" in parents else parents.get("embeddings")
        snapshot = replace(cls.of(index), embeddings=embeddings)
        return snapshot if catalog is None else snapshot.with_catalog(catalog)

    @classmethod
    def numbered(cls, ids: pa.StringArray, catalog: Catalog | None = None) -> "Snapshot":
        """Number items that have no index, for rankers that need no Semantic IDs.

        >>> Snapshot.numbered(pa.array(["mug", "cup"])).sids.tolist()
        [[0, 0], [0, 1]]
        """
        if len(ids) > _CODES**2:
            raise ConfigError(f"{len(ids):,} items cannot be numbered; at most {_CODES**2:,} can. Make an index.")
        sids = np.stack(np.divmod(np.arange(len(ids)), _CODES), axis=1).astype(np.int16)
        index = SidIndex(SidTable(ids, sids, (_CODES, _CODES)), sids, None, None, None, "none")
        return cls.of(index, catalog)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ids(self) -> pa.StringArray:
        """Item ids, one per row."""
        return self.index.table.ids

    @property
    def sids(self) -> Int16[np.ndarray, "item level"]:
        """Semantic IDs, one per row."""
        return self.index.sids

    @property
    def latents(self) -> Float16[np.ndarray, "item dim"] | None:
        """What was quantised; None for imported Semantic IDs without geometry."""
        return self.index.latents

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all that decides which row is which item and what is generated: ids, SIDs, layout, latents."""
        digest = hashlib.sha256(json.dumps(self.index.layout(), sort_keys=True).encode())
        _update_with_texts(digest, self.ids)
        digest.update(np.ascontiguousarray(self.sids, "<i2").data)
        if self.latents is not None:
            digest.update(np.ascontiguousarray(self.latents, "<f2").data)
        return digest.hexdigest()

    @cached_property
    def trie(self) -> Trie:
        """The trie of all Semantic IDs, on the snapshot's device."""
        return self._placed(self.index.trie)

    @cached_property
    def points(self) -> Float[torch.Tensor, "item dim"]:
        """Latents as float32, on the snapshot's device; an error where the index has none."""
        return torch.from_numpy(self.index.latents_and_codebooks()[0]).float().to(self.device)

    def trie_of(self, keep: Bool[np.ndarray, "item"] | None) -> Trie:
        """The trie of the kept items, or of all of them; the last few are remembered."""
        if keep is None:
            return self.trie
        key = np.packbits(keep).tobytes()
        trie = self._tries.get(key)  # looked up once: another thread may clear the cache meanwhile
        if trie is None:
            trie = self._placed(self.index.trie.restrict(torch.from_numpy(keep)))
            if len(self._tries) >= _TRIES:
                self._tries.clear()
            self._tries[key] = trie
        return trie

    def _placed(self, trie: Trie) -> Trie:
        return trie if self.device == _CPU else trie.to(self.device)

    def matching(
        self, where: Sequence[str | Condition] = (), allow: Sequence[str] | None = None, deny: Sequence[str] = ()
    ) -> Bool[np.ndarray, "item"] | None:
        """Items that meet all conditions, are allowed and not denied; None where nothing is filtered."""
        if not where and allow is None and not deny:
            return None
        conditions = [Condition.parse(text) if isinstance(text, str) else text for text in where]
        keep = self.items.matching(conditions)
        if allow is not None:
            allowed = np.zeros(len(keep), bool)
            allowed[self.items.rows(allow, what="allow")] = True
            keep = keep & allowed
        if deny:
            keep = keep.copy()
            keep[self.items.rows(deny, what="deny")] = False
        if not keep.any():
            filters = ", ".join(map(str, conditions)) or "allow and deny"
            raise DataError(f"No item meets the filter ({filters}); loosen it.")
        return keep

    def members(self, categories: Sequence[int]) -> Bool[np.ndarray, "item"]:
        """Items of any of these categories, and those that have none."""
        assert self.categories is not None
        return np.isin(self.categories, categories) | (self.categories < 0)

    def on(self, device: torch.device | str) -> "Snapshot":
        """The same snapshot for a model on this device."""
        device = torch.device(device)
        return self if device == self.device else replace(self, device=device)

    def with_catalog(self, catalog: Path | Catalog) -> "Snapshot":
        """The same snapshot with titles, texts and columns of this catalogue."""
        if not isinstance(catalog, Catalog):
            catalog = Catalog.read_as(catalog, self.index.origin.get("reading"))
        return replace(self, items=replace(self.items, catalog=catalog, _columns={}))

    def with_companions(self, companions: Sequence[Companion]) -> "Snapshot":
        """The same snapshot with these companions; one that was made for another snapshot is refused."""
        return replace(self, companions=tuple(companions))

    def add(
        self,
        items: Sequence[Mapping[str, Any]],
        vectors: Float[np.ndarray, "item input"],
        texts: Sequence[str] | None = None,
    ) -> "Snapshot":
        """A snapshot with new items behind the others, quantised with the codebooks as they are.

        Companions follow; embeddings on disk are left behind, as their rows are not the new one's.

        Args:
            items: each with an id and whatever else is known.
            vectors: embeddings of the same items.
            texts: what they were encoded by, for rankers that read texts; by default all texts of each item.
        """
        ids = [str(item["id"]) for item in items]
        refuse_known(self.index.table, ids)
        vectors = np.asarray(vectors, np.float32)
        return self.updated(add=NewItems(items, texts, vectors, self.index.place(ids, vectors)))

    def remove(self, ids: Sequence[str]) -> "Snapshot":
        """A snapshot without these items; companions follow, embeddings on disk are left behind."""
        return self.updated(remove=ids)

    def placed(
        self,
        items: Sequence[Mapping[str, Any]],
        vectors: Float[np.ndarray, "item input"],
        texts: Sequence[str] | None = None,
    ) -> NewItems:
        """New items and replacements with the rows that `updated` adds, once it has removed those they replace.

        An item that keeps its Semantic ID is no newer to a model than it was.
        """
        ids = [str(item["id"]) for item in items]
        rows = pc.index_in(pa.array(ids, pa.string()), value_set=self.ids)
        replaced, known = rows.drop_null().to_numpy(), np.flatnonzero(rows.is_valid().to_numpy(zero_copy_only=False))
        keep = np.ones(len(self), bool)
        keep[replaced] = False
        placement = self.index.subset(keep).place(ids, vectors)
        came_in = placement.came_in.copy()
        same = (placement.sids[known] == self.sids[replaced]).all(axis=1)
        came_in[known[same]] = self.index.item_generations[replaced[same]]
        return NewItems(items, texts, vectors, replace(placement, came_in=came_in))

    def updated(
        self, *, remove: Sequence[str] = (), add: NewItems | None = None, generation: int | None = None
    ) -> "Snapshot":
        """A snapshot without some items and with others behind the rest, in one step.

        Args:
            remove: ids of items that are there.
            add: items that are not there once these are removed.
            generation: generation of the new index, where many updates are made in one step; by default the next one
                if items are added.
        """
        keep = np.ones(len(self), bool)
        keep[self.items.rows(remove, what="remove")] = False
        if add is None and not keep.any():
            raise ConfigError("Removing these items would leave nothing to search. Keep at least one item.")
        index, items = self.index, self.items
        categories = self.categories
        if remove:
            index, items = index.subset(keep), items.without(keep)
            categories = None if categories is None else categories[keep]
        if add is not None:
            ids = [str(item["id"]) for item in add.items]
            index = index.append(ids, add.placement)
            items = items.with_added(add.items, add.texts)
            if categories is not None:
                categories = np.concatenate([categories, np.full(len(ids), -1, np.int64)])
        if generation is not None:
            index = replace(index, generation=generation)
        following = Snapshot(index, items, categories, device=self.device)
        vectors = None if add is None else add.vectors
        kept = np.flatnonzero(keep)
        return following.with_companions([one.following(following, kept, vectors) for one in self.companions])


def _update_with_texts(digest: Any, texts: pa.StringArray) -> None:
    """Add the lengths and bytes of texts to a hash, without a Python object per text."""
    _, offsets, letters = texts.buffers()
    ends = np.frombuffer(offsets or b"", np.int32)[texts.offset : texts.offset + len(texts) + 1]
    digest.update(np.diff(ends).astype("<i4").data)
    if letters is not None and len(ends):
        digest.update(memoryview(letters)[ends[0] : ends[-1]])
