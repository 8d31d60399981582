"""One search as it begins: the model, the snapshot, the heads and the weights that it keeps to the end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int

from restd.data import Query
from restd.errors import ConfigError
from restd.models import CachedRoutes
from restd.search.answers import Explanation, Hit, PartScore
from restd.search.beam_tree import NODES, BeamTree, beam_tree
from restd.search.candidates import GENERATOR, CandidateTable, best_candidates
from restd.search.contributions import part_scores
from restd.search.explain import EFFORT, explain
from restd.search.fusion import Fusion
from restd.search.generate import Generator, Plan
from restd.search.heads import KeptHeads, first_state
from restd.search.hybrid import collect_candidates
from restd.search.options import SearchOptions
from restd.search.results import make_hits, stack
from restd.search.trace import TracedSearch
from restd.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotSearch:
    """What one search needs, whatever the retriever is given meanwhile; options are settled."""

    generator: Generator
    snapshot: Snapshot
    heads: KeptHeads | None
    fusion: Fusion | None

    def weights(self) -> Fusion:
        """Weights of a hybrid search: those that were fitted, or fixed ones for the parts that there are."""
        if self.fusion is not None:
            return self.fusion
        if not self.snapshot.companions:
            raise ConfigError(
                "A hybrid search fuses other rankers with the model, and the snapshot has no companions: set them with "
                'set_companions(["bm25", "dense"]).'
            )
        return Fusion.fixed([GENERATOR, *(companion.name for companion in self.snapshot.companions)])

    def candidates(
        self,
        queries: Sequence[Query],
        options: SearchOptions,
        *,
        parts: Sequence[str],
        routes: CachedRoutes | None = None,
    ) -> CandidateTable:
        """Items that the parts of a hybrid search propose, with their scores."""
        return collect_candidates(
            self.generator, self.snapshot, queries, options, parts=parts, heads=self.heads, routes=routes
        )

    def rank(
        self,
        queries: Sequence[Query],
        options: SearchOptions,
        *,
        routes: CachedRoutes | None = None,
        whole: bool = False,
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows and scores of the first k of every query, or of the whole list of the same search."""
        length = len(self.snapshot) if whole else options.k
        if options.mode == "hybrid":
            fusion = self.weights()
            table = self.candidates(queries, options, parts=fusion.parts, routes=routes)
            return best_candidates(table.rows, table.fused(fusion.weights), length)
        lists = self.generator.rank(self.snapshot, queries, options, routes=routes, heads=self.heads, whole=whole)
        return stack(lists, length)

    def rank_with_parts(
        self, queries: Sequence[Query], options: SearchOptions
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"], list[list[dict[str, PartScore]]] | None]:
        """Rows and scores of the first k of every query, and what each part of a hybrid search adds to the scores."""
        if options.mode != "hybrid":
            return *self.rank(queries, options), None
        fusion = self.weights()
        table = self.candidates(queries, options, parts=fusion.parts)
        rows, scores = best_candidates(table.rows, table.fused(fusion.weights), options.k)
        return rows, scores, part_scores(table, fusion.weights, rows)

    def hits(self, queries: Sequence[Query], options: SearchOptions, *, contributions: bool = False) -> list[list[Hit]]:
        """Results of every query; with contributions, those of a hybrid search say how their scores are made up."""
        if contributions:
            return make_hits(self.snapshot, *self.rank_with_parts(queries, options))
        return make_hits(self.snapshot, *self.rank(queries, options))

    def explain(self, query: Query, item: str, options: SearchOptions, *, effort: int = EFFORT) -> Explanation:
        """Say what became of an item; see `Retriever.explain`."""
        row = int(self.snapshot.items.rows([item], what="explain")[0])
        parts = None
        if options.mode == "hybrid":
            fusion = self.weights()
            table = self.candidates([query], options, parts=fusion.parts)
            rows, _ = best_candidates(table.rows, table.fused(fusion.weights), table.rows.shape[1])
            parts = part_scores(table, fusion.weights, np.array([[row]]))[0][0] or None
        else:
            rows, _ = self.rank([query], options, whole=True)
        place = np.flatnonzero(rows[0] == row)
        return explain(
            self.generator,
            self.snapshot,
            query,
            row,
            _generative(options),
            k=options.k,
            rank=int(place[0]) + 1 if len(place) else None,
            parts=parts,
            heads=self.heads,
            effort=effort,
        )

    def beam_tree(self, query: Query, item: str | None, options: SearchOptions, *, nodes: int = NODES) -> BeamTree:
        """Show what the beam considered; see `Retriever.beam_tree`."""
        sid = None
        if item is not None:
            sid = self.snapshot.sids[self.snapshot.items.rows([item], what="the beam tree")[0]].tolist()
        traced = TracedSearch.of(self.generator, self.snapshot, query, _generative(options), heads=self.heads)
        return beam_tree(traced, self.snapshot.items.titles(), sid=sid, nodes=nodes)

    @torch.inference_mode()
    def expected_latent(self, query: Query, options: SearchOptions) -> Float[np.ndarray, "dim"]:
        """g_0(h_1): where the heads expect the latent of the answer."""
        if self.heads is None:
            raise ConfigError("The heads were not loaded; load the retriever with keep_heads=True.")
        self.heads.refuse_other_codebooks(self.snapshot)
        plan = Plan.of(self.snapshot, [query], options)
        ((_, memory),) = self.generator.memories(self.snapshot, plan)
        _, cache = self.generator.stepper(options.score_norm).start(memory)
        return self.heads.target(first_state(cache.first))[0].double().cpu().numpy()


def _generative(options: SearchOptions) -> SearchOptions:
    """The search of the model alone that is a part of this one; beside other parts, it leaves the heads to them."""
    return replace(options, mode="generative", heads=None) if options.mode == "hybrid" else options
