"""`Retriever`: a trained model and a snapshot of a catalogue, answering queries."""

import logging
import threading
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int

from restd.artifacts import read_manifest
from restd.data import Catalog, History, Query
from restd.distill.heads import FOLDER as HEADS
from restd.encode import Encoder, encode_texts
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.models import Backbone, CachedRoutes, index_generation, open_model, refuse_other_layout
from restd.rankers.stored import write_companions
from restd.search.answers import Explanation, Hit
from restd.search.beam_tree import NODES, BeamTree
from restd.search.bundle import find_companion, fitted_encoder, item_encoder, save_bundle
from restd.search.candidates import HEADS as HEADS_PART
from restd.search.explain import EFFORT
from restd.search.fusion import Fusion
from restd.search.generate import Generator
from restd.search.heads import KeptHeads
from restd.search.options import SearchKeywords, SearchOptions
from restd.search.queries import as_histories, task_of_queries
from restd.search.snapshot_search import SnapshotSearch
from restd.snapshot import Companion, Snapshot
from restd.snapshot.items import text_of
from restd.train.run_record import run_sources

logger = logging.getLogger(__name__)


class Retriever:
    """Searches a catalogue with a trained model; no teacher is loaded, and no heads unless `keep_heads` is set.

    Items that share a Semantic ID share a score and stand in the catalogue's order. Searching is safe from many
    threads; `add` and `remove` put a new snapshot in place at once, and searches under way keep the one they began
    with. Options are fields of `SearchOptions`, as one value or as keywords.
    """

    def __init__(
        self, backbone: Backbone, snapshot: Snapshot, *, heads: KeptHeads | None = None, trained_on: int | None = None
    ) -> None:
        # a model at hand knows the items it comes with, unless somebody knows better
        generation = snapshot.index.generation if trained_on is None else trained_on
        self._generator = Generator(backbone, trained_on=generation)
        self._snapshot = self._generator.prepared(snapshot)
        self.heads = heads
        """Heads kept from training, where they were loaded."""
        self.fusion: Fusion | None = None
        """Fitted weights of a hybrid search; without them the weights are fixed."""
        self.source: Path | None = None
        """Where the model came from, where it came from disk."""
        self.home: Path | None = None
        """Where the index came from; an encoder that was fitted to the catalogue is kept there."""
        self.data: Path | None = None
        """Where items and judgments are, where the retriever was loaded with them."""
        self._encoder: Encoder | None = None
        self._shared: dict[str, Any] = {}
        self._writing = threading.Lock()

    @classmethod
    def load(
        cls,
        model: Path,
        index: Path | None = None,
        catalog: Path | Catalog | None = None,
        *,
        keep_heads: bool = False,
        companions: Sequence[str] = (),
        hybrid: bool = False,
        device: torch.device | str | None = None,
    ) -> "Retriever":
        """Open a trained model with an index of the layout it was trained for, and the items it should show.

        Args:
            model: a run of `restd train`, or a folder that `save` wrote; both know where index and items are.
            index: the index, where the run does not know it any more.
            catalog: the items, likewise.
            keep_heads: load the horizon heads too, for `SearchOptions.heads`.
            companions: names of rankers that a hybrid search fuses with the model: "bm25", "dense".
            hybrid: load whatever a hybrid search of this model needs: the weights that `restd fit` chose, and the
                parts that they name; where nothing was fitted, BM25 and dense search with fixed weights.
            device: where the model runs; the CPU by default.
        """
        known = run_sources(model)
        index, catalog = index or known.get("index"), catalog or known.get("catalog")
        if index is None:
            raise ConfigError(f"{model} does not say where its index is; name it.")
        backbone, artifact = open_model(model, device=device)
        snapshot = Snapshot.load(index, catalog)
        refuse_other_layout(artifact, snapshot.index)
        retriever = cls(backbone, snapshot, trained_on=index_generation(artifact))
        retriever.source, retriever.home = artifact.folder, index
        retriever.data = catalog.path if isinstance(catalog, Catalog) else catalog
        if keep_heads:
            beside = model if (model / HEADS).is_dir() else artifact.folder.parent
            retriever.heads = KeptHeads.load(beside, retriever.snapshot)
        if hybrid:
            retriever.load_fusion()
        if companions:
            retriever.set_companions(companions)
        return retriever

    def load_fusion(self) -> None:
        """Load the weights that were fitted for this model, and the parts that they name; fixed ones otherwise.

        A part that cannot be made here is left out with a warning.
        """
        if self.source is None:
            raise ConfigError("Fitted weights are found beside the model; load the retriever from its folder.")
        fusion = Fusion.beside(self.source.parent, self.index, content=self.model_hash)
        if HEADS_PART in fusion.parts and self.heads is None:
            self.heads = KeptHeads.load(self.source.parent, self._snapshot)
        fusion, companions = fusion.with_available(self._companion)
        self.set_companions(companions)
        self.fusion = fusion

    @property
    def backbone(self) -> Backbone:
        """The model."""
        return self._generator.backbone

    @property
    def generator(self) -> Generator:
        """The model as it decodes."""
        return self._generator

    @property
    def model_hash(self) -> str:
        """Content hash of the model's folder; empty for a model that came from none."""
        return "" if self.source is None else read_manifest(self.source).content

    @property
    def snapshot(self) -> Snapshot:
        """What is searched now."""
        return self._snapshot

    @property
    def snapshot_search(self) -> SnapshotSearch:
        """What a search that begins now keeps to its end, whatever is added, removed or set meanwhile."""
        return SnapshotSearch(self._generator, self._snapshot, self.heads, self.fusion)

    @property
    def snapshot_hash(self) -> str:
        """Hash of what is searched now."""
        return self._snapshot.hash

    @property
    def index(self) -> SidIndex:
        """The index that is searched now."""
        return self._snapshot.index

    def replace_snapshot(self, snapshot: Snapshot) -> None:
        """Search another snapshot of the same layout from now on; searches under way keep the one they began with."""
        if snapshot.index.layout() != self.index.layout():
            raise ConfigError(
                "The snapshot has other codebooks or level sizes than the model was trained for; load a model of that "
                "index."
            )
        with self._writing:
            self._snapshot = self._generator.prepared(snapshot)

    def with_snapshot(self, snapshot: Snapshot) -> "Retriever":
        """Another retriever of the same model with a snapshot of the same layout; this one stays as it is."""
        other = copy(self)
        other.replace_snapshot(snapshot)
        return other

    def set_companions(self, companions: Sequence[Companion | str]) -> None:
        """Set what a hybrid search fuses with the model, by name or made for this snapshot; they follow updates."""
        with self._writing:
            made = [self._companion(name) if isinstance(name, str) else name for name in companions]
            self._snapshot = self._snapshot.with_companions(made)

    def _companion(self, name: str) -> Companion:
        return find_companion(name, self._snapshot, data=self.data, home=self.home, shared=self._shared)

    @overload
    def search(
        self,
        query: str,
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        query: list[str],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[list[Hit]]: ...
    def search(
        self,
        query: str | list[str],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit] | list[list[Hit]]:
        """Find the best items for a query, or for each of many.

        Args:
            query: a text or many.
            k: number of items to return (10).
            options: how to search.
            contributions: whether hits of a hybrid search say how their scores are made up (`Hit.parts`).
            keywords: fields of `SearchOptions`, which take precedence.
        """
        texts = [query] if isinstance(query, str) else list(query)
        settled = _merged(options, k, keywords).settled("search")
        hits = self.snapshot_search.hits(texts, settled, contributions=contributions)
        return hits[0] if isinstance(query, str) else hits

    @overload
    def recommend(
        self,
        history: History | Sequence[str],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit]: ...
    @overload
    def recommend(
        self,
        history: list[History],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[list[Hit]]: ...
    def recommend(
        self,
        history: History | Sequence[str] | list[History],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit] | list[list[Hit]]:
        """Find what a user will want next, or each of many.

        Args:
            history: ids of the items they took, the latest last; a `History` also says who they are.
            k: number of items to return (10).
            options: how to search; unless `seen` is set, items of the history do not come back.
            contributions: as for `search`.
            keywords: fields of `SearchOptions`, which take precedence.
        """
        histories, many = as_histories(history)
        settled = _merged(options, k, keywords).settled("recommend", seen=False)
        hits = self.snapshot_search.hits(histories, settled, contributions=contributions)
        return hits if many else hits[0]

    def rank(
        self,
        queries: Sequence[Query],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        routes: CachedRoutes | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their scores, best first; -1 where fewer items qualify.

        Args:
            queries: texts; for a model that recommends, histories.
            k: number of items to return (10).
            options: how to search.
            routes: categories that another model chose for these queries.
            keywords: fields of `SearchOptions`, which take precedence.
        """
        settled = _merged(options, k, keywords).settled(task_of_queries(queries))
        return self.snapshot_search.rank(queries, settled, routes=routes)

    def fusion_of(self, snapshot: Snapshot) -> Fusion:
        """Weights of a hybrid search: those that were fitted, or fixed ones for the parts that there are."""
        return replace(self.snapshot_search, snapshot=snapshot).weights()

    def explain(
        self,
        query: Query,
        item: str,
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        effort: int = EFFORT,
        **keywords: Unpack[SearchKeywords],
    ) -> Explanation:
        """Say where an item stands in the search for a query: level by level, and which beam would have kept it.

        Options are those of the search to explain: `search` for a text, `recommend` for a history. The exact rank and
        the beam needed are None where finding them would take more than `effort` decoded prefixes.
        """
        return self.snapshot_search.explain(query, item, _explained(query, options, k, keywords), effort=effort)

    def beam_tree(
        self,
        query: Query,
        item: str | None = None,
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        nodes: int = NODES,
        **keywords: Unpack[SearchKeywords],
    ) -> BeamTree:
        """Show what the beam of a search considers at every level: what it keeps, and what it prunes.

        The path of `item` is always in the tree, as far as it was considered; beside it, at most `nodes` nodes of a
        level. Everything else is as for `explain`.
        """
        return self.snapshot_search.beam_tree(query, item, _explained(query, options, k, keywords), nodes=nodes)

    def encoder(self) -> Encoder:
        """The encoder of the index, loaded when it is first needed: most retrievers never add an item."""
        self._encoder = self._encoder or item_encoder(self._snapshot, self.home)
        return self._encoder

    def add(self, items: Sequence[Mapping[str, Any]], *, texts: Sequence[str] | None = None) -> None:
        """Make new items findable without training: encode, quantise with the codebooks as they are, insert.

        Each item is a mapping with an `id`; its other fields are its text, in their order, unless `texts` gives it.
        """
        item_texts = list(texts) if texts is not None else [text_of(item) for item in items]
        vectors = self.encode_items(item_texts)
        with self._writing:
            self._snapshot = self._snapshot.add(items, vectors, item_texts)

    def encode_items(self, texts: Sequence[str]) -> Float[np.ndarray, "text input"]:
        """Embeddings of new items, by the encoder that the index was made with."""
        return encode_texts(self.encoder(), texts)

    def remove(self, ids: Sequence[str]) -> None:
        """Make items unreachable."""
        with self._writing:
            self._snapshot = self._snapshot.remove(ids)

    def titles(self, ids: Sequence[str]) -> list[str]:
        """Titles of items; an item without one shows its id."""
        items = self._snapshot.items
        return items.titles().take(pa.array(items.rows(ids, what="titles"))).to_pylist()

    def save(self, folder: Path) -> None:
        """Write model, heads, index and items as they are now to one folder, from which `load` needs nothing else.

        An encoder that was fitted to the catalogue goes with them, so that items can be added to what is loaded.
        """
        if self.source is None:
            raise ConfigError("Only a retriever that was loaded can be saved: its model has no folder yet.")
        snapshot = self._snapshot
        save_bundle(folder, model=self.source, snapshot=snapshot, encoder=fitted_encoder(snapshot, self.home))
        parts = [part.name for part in snapshot.companions] if self.fusion is None else self.fusion.parts
        write_companions(folder, [companion for companion in snapshot.companions if companion.name in parts])


def _merged(options: SearchOptions | None, k: int | None, keywords: Mapping[str, Any]) -> SearchOptions:
    return SearchOptions.of(options, **({} if k is None else {"k": k}), **keywords)


def _explained(
    query: Query, options: SearchOptions | None, k: int | None, keywords: Mapping[str, Any]
) -> SearchOptions:
    """Options of the search to explain: items of a history do not come back, as in `recommend`."""
    task = task_of_queries([query])
    return _merged(options, k, keywords).settled(task, seen=task == "search")
