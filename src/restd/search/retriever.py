"""`Retriever`: a trained model, an index and a catalogue, answering queries."""

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int, Int64

from restd._arrow import pc
from restd.artifacts import create
from restd.data import Catalog, History, Query, Runs, dataset
from restd.distill.heads import FOLDER as HEADS
from restd.encode import Encoder, encode_texts
from restd.errors import ConfigError
from restd.index import SidIndex, Trie
from restd.models import (
    AnyBackbone,
    CachedRoutes,
    CalirBackbone,
    Memory,
    open_model,
    prepare_queries,
    refuse_other_layout,
)
from restd.models.decoding import Stepper
from restd.models.store import find_encoder
from restd.search.answers import cleaned, fill, first_rows, histories_of, known_norm, text_of, without_seen
from restd.search.beam import beam_search
from restd.search.explain import Explanation, rank_of_all, trace, width_needed
from restd.search.fusion import Ranker, fuse
from restd.search.heads import HeadUse, KeptHeads, head_search
from restd.search.items import Condition, Items
from restd.search.places import places
from restd.search.shelf import Hit, Shelf

_BATCH = 32
_POOL = 1_024
_WIDTH = 100
NEXT_WIDTH = 20
"""Of the beam where nobody says: the paper's for recommendation."""
_DEEP = 10


class Retriever:
    """Searches a catalogue with a trained model; no teacher is loaded, and no heads unless they are asked for.

    Items that share a Semantic ID share a score and stand in the catalogue's order. Searching is safe from many
    threads; `add` and `remove` put a new index in place at once, and searches under way keep the one they began with.
    """

    def __init__(
        self,
        backbone: AnyBackbone,
        index: SidIndex,
        catalog: Catalog | None = None,
        *,
        companions: Sequence[Ranker] = (),
    ) -> None:
        self.backbone = backbone.eval()
        self.companions = tuple(companions)
        self._shelf = Shelf(index, Items(index.table.ids, catalog))
        self.heads: KeptHeads | None = None
        """Heads kept from training, where they were asked for."""
        self.source: Path | None = None
        """Where the model came from, where it came from disk."""
        self.home: Path | None = None
        """Where the index came from; an encoder that was fitted to the catalogue is kept there."""
        self._encoder: Encoder | None = None
        self._writing = threading.Lock()
        self._stepper = lru_cache(maxsize=None)(self._make_stepper)

    @classmethod
    def load(
        cls,
        model: Path,
        index: Path | None = None,
        catalog: Path | Catalog | None = None,
        *,
        companions: Sequence[Ranker] = (),
        keep_heads: bool = False,
    ) -> "Retriever":
        """Open a trained model with an index of the layout it was trained for, and the items it should show.

        A folder that `save` or `restd train` made knows where index and items are.
        """
        beside = places(model)
        index, catalog = index or beside.get("index"), catalog or beside.get("catalog")
        if index is None:
            raise ConfigError(f"{model} does not say where its index is; name it.")
        backbone, artifact = open_model(model)
        held = SidIndex.load(index)
        refuse_other_layout(artifact, held)
        if isinstance(catalog, Path):
            catalog = Catalog.read_as(catalog, held.origin.get("reading"))
        made = cls(backbone, held, catalog, companions=companions)
        made.source, made.home = artifact.folder, index
        if keep_heads:
            made.heads = KeptHeads.load(model if (model / HEADS).is_dir() else artifact.folder.parent, held)
        return made

    @property
    def index(self) -> SidIndex:
        """The index as it is now."""
        return self._shelf.index

    def _make_stepper(self, norm: str) -> Stepper:
        return self.backbone.stepper(normalizer="full_vocab" if norm == "full_vocab" else "level_codes")

    @overload
    def search(self, query: str, k: int = 10, **options: Any) -> list[Hit]: ...
    @overload
    def search(self, query: list[str], k: int = 10, **options: Any) -> list[list[Hit]]: ...
    def search(self, query: str | list[str], k: int = 10, **options: Any) -> list[Hit] | list[list[Hit]]:
        """Find the best items for a query, or for each of many.

        Args:
            query: a text or many.
            k: items wanted; fewer come back only where fewer qualify.
            options: as `rank` takes them, and `mode="hybrid"` to fuse the model's list with its companions'.
        """
        mode = options.pop("mode", "generative")
        texts = [query] if isinstance(query, str) else list(query)
        shelf = self._shelf
        if mode == "hybrid":
            rows, scores = self._hybrid(shelf, texts, k, **options)
        elif mode == "generative":
            rows, scores = self._generative(shelf, texts, k, **options)
        else:
            raise ConfigError(f"Mode {mode!r} is unknown; wanted generative or hybrid.")
        hits = shelf.hits(rows, scores)
        return hits[0] if isinstance(query, str) else hits

    @overload
    def recommend(self, history: History | Sequence[str], k: int = 10, **options: Any) -> list[Hit]: ...
    @overload
    def recommend(self, history: list[History], k: int = 10, **options: Any) -> list[list[Hit]]: ...
    def recommend(
        self, history: History | Sequence[str] | list[History], k: int = 10, *, seen: bool = False, **options: Any
    ) -> list[Hit] | list[list[Hit]]:
        """Find what a user will want next, or each of many.

        Args:
            history: ids of the items they took, the latest last; a `History` also says who they are.
            k: items wanted.
            seen: whether items of the history may come back; off here, on in `rank`, as in the paper's protocol.
            options: as `rank` takes them; the beam is 20 wide unless `width` says otherwise.
        """
        asked, many = histories_of(history)
        shelf = self._shelf
        hits = shelf.hits(*self._ranked(shelf, asked, k, seen=seen, **{"width": NEXT_WIDTH, **options}))
        return hits if many else hits[0]

    def rank(
        self, queries: Sequence[Query], k: int, **options: Any
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their scores, best first; -1 where fewer items qualify.

        Args:
            queries: texts; for a model that recommends, histories.
            k: items wanted.
            options: `width` of the beam (100, and never below k unless `widen` is False); `score_norm`, one of
                full_vocab, level_codes and trie_children; `where`, conditions such as "category=Home" or "price<=50";
                `allow` and `deny`, item ids; `category_width`, categories a CaLIR model searches (3; 0 for the whole
                catalogue); `routes`, categories that another model chose; `heads`, a `HeadUse` where they were kept;
                `seen=False` leaves out what a history holds already.
        """
        return self._ranked(self._shelf, queries, k, **options)

    def _ranked(
        self, shelf: Shelf, queries: Sequence[Query], k: int, *, seen: bool = True, **options: Any
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        if seen:
            return self._generative(shelf, queries, k, **options)
        if not all(isinstance(asked, History) for asked in queries):
            raise ConfigError("Only a history holds items that were seen; leave `seen` on when searching by words.")
        runs = Runs.asked(queries, shelf.items.ids)
        width = options.pop("width", _WIDTH)
        found = np.full((len(runs), k), -1, np.int64), np.full((len(runs), k), -np.inf, np.float64)
        order = np.argsort(runs.count, kind="stable")
        for start in range(0, len(order), _BATCH):  # the longest of a few decides how much deeper they are searched
            part = order[start : start + _BATCH]
            deeper = int(runs.count[part].max())
            depth = min(k + deeper, len(shelf.index))
            chosen = [queries[number] for number in part.tolist()]
            ranked = self._generative(shelf, chosen, depth, width=width + deeper, **options)
            taken = [runs.pick(np.array([number])).flat for number in part]
            found[0][part], found[1][part] = without_seen(*ranked, taken, k)
        return found

    def _generative(
        self,
        shelf: Shelf,
        queries: Sequence[Query],
        k: int,
        *,
        width: int = _WIDTH,
        widen: bool = True,
        score_norm: str = "full_vocab",
        where: Sequence[str | Condition] = (),
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        category_width: int = 3,
        routes: CachedRoutes | None = None,
        heads: HeadUse | None = None,
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        kept = shelf.kept(where, allow, deny)
        asked = cleaned(queries, k)
        width = max(width, k) if widen else width
        stepper = self._stepper(known_norm(score_norm))
        found = np.full((len(asked), k), -1, np.int64), np.full((len(asked), k), -np.inf, np.float64)
        for numbers, memory in self._memories(shelf, asked):
            routed = self._routed(memory, category_width)
            if routes is not None:
                routed = torch.from_numpy(routes.route([str(queries[number]) for number in numbers]))
            for rows, trie in self._tries(shelf, memory, kept, routed, least=k if widen else 1):
                part = memory.take(torch.tensor(rows))
                normalized = score_norm == "trie_children"
                if heads is not None:
                    held = self._head_search(heads, shelf, stepper, part, trie, k, width, normalized)
                    for name, row in enumerate(rows):
                        found[0][numbers[row]], found[1][numbers[row]] = held[0][name], held[1][name]
                    continue
                beams = beam_search(stepper, part, trie, width=width, trie_normalized=normalized)
                for place, row in enumerate(rows):
                    fill(found, numbers[row], trie, beams.leaves[place], beams.scores[place])
        return found

    def _head_search(
        self,
        use: HeadUse,
        shelf: Shelf,
        stepper: Stepper,
        memory: Memory,
        trie: Trie,
        k: int,
        width: int,
        normalized: bool,
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """A search that also listens to the heads kept from training."""
        if self.heads is None:
            raise ConfigError("The heads were not kept; load the retriever with keep_heads=True.")
        if len(self.heads.latents) != len(shelf.index):
            raise ConfigError("Items came or went since the heads were loaded; save the retriever and load it again.")
        return head_search(self.heads, use, shelf.index, stepper, memory, trie, k, width, normalized)

    @torch.inference_mode()
    def _memories(self, shelf: Shelf, queries: Sequence[Query]) -> Iterator[tuple[list[int], Memory]]:
        """Queries as the model reads them, in batches, with their numbers; neighbours in length go together."""
        device = next(self.backbone.parameters()).device
        for start in range(0, len(queries), _POOL):
            prepared = prepare_queries(self.backbone, queries[start : start + _POOL], shelf.index)
            order = np.argsort(prepared.lengths, kind="stable")
            for place in range(0, len(order), _BATCH):
                rows = order[place : place + _BATCH]
                yield (start + rows).tolist(), self.backbone.encode(prepared.batch(rows).to(device))

    @torch.inference_mode()
    def _routed(self, memory: Memory, width: int) -> Int64[torch.Tensor, "query width"] | None:
        """Categories that the model itself would search; None for all."""
        return self.backbone.route(memory, width=width) if width else None

    def _tries(
        self,
        shelf: Shelf,
        memory: Memory,
        kept: Bool[np.ndarray, "item"] | None,
        routed: Int64[torch.Tensor, "query width"] | None,
        *,
        least: int,
    ) -> list[tuple[list[int], Trie]]:
        """Queries that search the same part of the catalogue, with its trie: all, or their likeliest categories."""
        if routed is None or not isinstance(self.backbone, CalirBackbone):
            return [(list(range(len(memory.mask))), shelf.trie(kept))]
        groups: dict[tuple[int, ...], list[int]] = {}
        for row, chosen in enumerate(routed.sort(dim=1).values.tolist()):
            groups.setdefault(tuple(chosen), []).append(row)
        parts = []
        for chosen, rows in groups.items():
            inside = self._members(shelf, chosen)
            both = inside if kept is None else inside & kept
            # categories that hold fewer items than are wanted do not keep the others out
            parts.append((rows, shelf.trie(both if both.sum() >= least else kept)))
        return parts

    def _members(self, shelf: Shelf, chosen: tuple[int, ...]) -> Bool[np.ndarray, "item"]:
        """Items of these categories; items that came after training have no category and are always searched."""
        assert isinstance(self.backbone, CalirBackbone)
        members = self.backbone.table.members(np.array(chosen))
        if self.backbone.ids is None:
            return members
        place = pc.index_in(shelf.items.ids, value_set=self.backbone.ids)
        return pc.fill_null(pa.array(members).take(place), True).to_numpy(zero_copy_only=False)

    def _hybrid(
        self, shelf: Shelf, queries: Sequence[str], k: int, **options: Any
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        if not self.companions:
            raise ConfigError("A hybrid search fuses other rankers with the model; give some as companions.")
        kept = shelf.kept(options.get("where", ()), options.get("allow"), options.get("deny", ()))
        deep = min(max(_DEEP * k, _WIDTH), len(shelf.index))
        lists = [self._generative(shelf, queries, deep, **options)[0]]
        wanted = deep if kept is None else len(shelf.index)
        for companion in self.companions:
            rows, _ = companion.rank(queries, wanted)
            if kept is not None:
                rows = np.where((rows >= 0) & kept[rows.clip(0)], rows, -1)
            lists.append(rows)
        return fuse([first_rows(held, deep) for held in lists], k)

    def explain(
        self,
        query: Query,
        item: str,
        *,
        width: int = _WIDTH,
        score_norm: str = "full_vocab",
        where: Sequence[str | Condition] = (),
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        category_width: int = 3,
    ) -> Explanation:
        """Say where an item stands in the search for a query: level by level, and what would have kept it."""
        shelf = self._shelf
        norm = known_norm(score_norm)
        row = int(shelf.items.rows([item], what="explain")[0])
        ((_, memory),) = self._memories(shelf, cleaned([query], 1))
        kept = shelf.kept(where, allow, deny)
        ((_, trie),) = self._tries(shelf, memory, kept, self._routed(memory, category_width), least=1)
        sid = torch.from_numpy(shelf.index.sids[row].astype(np.int64))
        same = {"trie_normalized": norm == "trie_children"}
        stepper = self._stepper(norm)
        levels, rank = trace(stepper, memory, trie, sid, width=width, **same)
        inside = int(trie.find(sid[None])[0]) >= 0
        needed = width if rank else width_needed(stepper, memory, trie, sid, width=width, **same) if inside else None
        title = shelf.items.titles()[row].as_py()
        whole = rank_of_all(stepper, memory, shelf.trie(kept), sid, **same) if kept is None or kept[row] else None
        return Explanation(str(query), item, title, tuple(sid.tolist()), width, levels, rank, whole, needed)

    def add(self, items: Sequence[Mapping[str, Any]], *, texts: Sequence[str] | None = None) -> None:
        """Make new items findable without training: encode, quantise with the codebooks as they are, insert.

        Each item is a mapping with an `id`; its other fields are its text, in their order, unless `texts` gives it.
        """
        said = list(texts) if texts is not None else [text_of(item) for item in items]
        with self._writing:
            shelf = self._shelf
            # loaded when it is first needed: most retrievers never add an item
            self._encoder = self._encoder or find_encoder("index", shelf.index, self.home)
            vectors = np.asarray(encode_texts(self._encoder, said))
            grown, _ = shelf.index.add([str(item["id"]) for item in items], vectors)
            self._shelf = replace(shelf, index=grown, items=shelf.items.with_added(items), tries={})

    def remove(self, ids: Sequence[str]) -> None:
        """Make items unreachable."""
        with self._writing:
            shelf = self._shelf
            keep = np.ones(len(shelf.index), bool)
            keep[shelf.items.rows(ids, what="remove")] = False
            self._shelf = replace(shelf, index=shelf.index.remove(ids), items=shelf.items.without(keep), tries={})

    def titles(self, ids: Sequence[str]) -> list[str]:
        """Titles of items; an item without one shows its id."""
        shelf = self._shelf
        return shelf.items.titles().take(pa.array(shelf.items.rows(ids, what="titles"))).to_pylist()

    def texts(self) -> list[str]:
        """The text of every item as it was encoded, in the order of the index."""
        shelf = self._shelf
        if shelf.items.catalog is None:
            raise ConfigError("The retriever was made without a catalogue, so it knows no texts.")
        ids = shelf.items.ids.to_pylist()
        added = [] if shelf.items.added is None else shelf.items.added.to_pylist()
        fresh = {str(item["id"]): text_of(item) for item in added}
        return [fresh.get(item, text) for item, text in zip(ids, shelf.items.catalog.texts_of(ids), strict=True)]

    def save(self, folder: Path) -> None:
        """Write model, index and items as they are now to one folder, from which `load` needs nothing else."""
        if self.source is None:
            raise ConfigError("Only a retriever that was loaded can be saved: its model has no folder yet.")
        shelf = self._shelf
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.source, folder / "model", dirs_exist_ok=True)
        shelf.index.save(folder / "index")
        names = dict.fromkeys(["id", *shelf.items.names()])
        table = pa.table({name: shelf.items.ids if name == "id" else shelf.items.column(name) for name in names})
        said = {"source": "retriever"}
        with create(folder / "items", kind=dataset.KIND, schema=dataset.SCHEMA, settings=said) as writer:
            writer.table("items", table.to_batches(), schema=table.schema)
