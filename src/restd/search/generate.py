"""The generative part of a search: queries are read in batches, routed, and searched over the trie."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.codes import Trie
from restd.data import EventSpans, History, Query
from restd.errors import ConfigError
from restd.models import Backbone, CachedRoutes, Memory, make_stepper
from restd.models.decode_protocol import Stepper
from restd.search.beam import beam_search
from restd.search.candidate_scores import ScoringStepper
from restd.search.heads import KeptHeads, first_state, head_search
from restd.search.options import ScoreNorm, SearchOptions
from restd.search.queries import clean_queries
from restd.search.results import RankedList
from restd.snapshot import Snapshot

_BATCH = 32
_POOL = 1_024


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a search does with each query; everything that explanations must do alike.

    Args:
        queries: as the model reads them.
        originals: the same before they were cleaned, as cached routes know them.
        keep: items that filters leave; None for all.
        seen: rows of the items in each history that must not come back; empty where they may.
        depths: items to list for each query before those are left out.
        widths: prefixes its beam keeps.
        least: items the searched categories must hold, or the whole catalogue is searched.
    """

    queries: Sequence[Query]
    originals: Sequence[Query]
    keep: Bool[np.ndarray, "item"] | None
    seen: tuple[Int64[np.ndarray, "_"], ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    least: tuple[int, ...]

    @classmethod
    def of(cls, snapshot: Snapshot, queries: Sequence[Query], options: SearchOptions) -> "Plan":
        """Plan a search by settled options.

        Where items of the history are left out, each query is searched deeper and wider by its own history's length.
        """
        assert options.beam is not None
        keep = snapshot.matching(options.where, options.allow, options.deny)
        cleaned = clean_queries(queries)
        seen = (np.zeros(0, np.int64),) * len(queries) if options.seen else seen_rows(snapshot, cleaned)
        beam = max(options.beam, options.k) if options.widen else options.beam
        depths = tuple(min(options.k + len(rows), len(snapshot)) for rows in seen)
        widths = tuple(beam + len(rows) for rows in seen)
        least = depths if options.widen else (1,) * len(queries)
        return cls(cleaned, queries, keep, seen, depths, widths, least)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Items of one query with the model's own scores, for a hybrid search."""

    rows: Int64[np.ndarray, "candidate"]
    log_probability: Float[np.ndarray, "candidate"]
    """Exact, whether the beam kept an item or somebody else proposed it."""
    nearness: Float[np.ndarray, "candidate"] | None
    """Of latents to where the heads point; None without heads."""
    beam: Int64[np.ndarray, "_"]
    """Rows that the beam proposed."""
    nearest: Int64[np.ndarray, "_"]
    """Rows that the heads proposed."""


def seen_rows(snapshot: Snapshot, queries: Sequence[Query]) -> tuple[Int64[np.ndarray, "_"], ...]:
    """Rows of the items in each history; texts are an error."""
    if not all(isinstance(query, History) for query in queries):
        raise ConfigError("seen = False leaves out items of a history; a text has none. Leave `seen` unset to search.")
    spans = EventSpans.of_queries(queries, snapshot.ids)
    return tuple(spans.pick(np.array([number])).flat for number in range(len(spans)))


class Generator:
    """A trained model that decodes Semantic IDs of a snapshot; safe to use from many threads.

    Args:
        backbone: the model.
        trained_on: generation of the index it was trained on; items of later ones are new to it.
    """

    def __init__(self, backbone: Backbone, *, trained_on: int = 0) -> None:
        self.backbone = backbone.eval()
        self.trained_on = trained_on
        self._stepper = lru_cache(maxsize=None)(self._make_stepper)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.backbone.parameters()).device

    def _make_stepper(self, normalizer: str) -> Stepper:
        return make_stepper(self.backbone, normalizer="full_vocab" if normalizer == "full_vocab" else "level_codes")

    def stepper(self, norm: ScoreNorm) -> Stepper:
        """The decoder with scores normalised this way; children of the trie are normalised by the search itself."""
        return self._stepper("full_vocab" if norm == "full_vocab" else "level_codes")

    def prepared(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot as this model searches it: on its device, with the categories it routes to."""
        return replace(snapshot.on(self.device), categories=self.backbone.item_categories(snapshot.ids))

    def new_items(self, snapshot: Snapshot) -> Bool[np.ndarray, "item"]:
        """Items that were added to the index after this model was trained."""
        return snapshot.index.item_generations > self.trained_on

    def rank(
        self,
        snapshot: Snapshot,
        queries: Sequence[Query],
        options: SearchOptions,
        *,
        routes: CachedRoutes | None = None,
        heads: KeptHeads | None = None,
        whole: bool = False,
    ) -> list[RankedList]:
        """The best items of every query, at most `options.k`; or the whole list of the same search."""
        plan = Plan.of(snapshot, queries, options)
        if whole:
            plan = replace(plan, depths=(len(snapshot),) * len(queries))
        lists: dict[int, RankedList] = {}
        for numbers, memory in self.memories(snapshot, plan):
            for rows, trie in self.tries(snapshot, plan, numbers, memory, options, routes=routes):
                part = memory.take(torch.tensor(rows, device=memory.mask.device))
                own = [numbers[row] for row in rows]
                ranked_lists = self._search(snapshot, plan, own, part, trie, options, heads)
                for number, ranked in zip(own, ranked_lists, strict=True):
                    lists[number] = ranked.without(plan.seen[number])
        return [lists[number] for number in range(len(plan.queries))]

    def _search(
        self,
        snapshot: Snapshot,
        plan: Plan,
        numbers: Sequence[int],
        memory: Memory,
        trie: Trie,
        options: SearchOptions,
        heads: KeptHeads | None,
    ) -> list[RankedList]:
        depths, widths = ([values[number] for number in numbers] for values in (plan.depths, plan.widths))
        stepper, normalized = self.stepper(options.score_norm), options.score_norm == "trie_children"
        if options.heads is not None:
            if heads is None:
                raise ConfigError("The heads were not loaded; load the retriever with keep_heads=True.")
            return head_search(
                heads,
                options.heads,
                snapshot,
                stepper,
                memory,
                trie,
                depths=depths,
                widths=widths,
                trie_normalized=normalized,
            )
        beams = beam_search(stepper, memory, trie, width=widths, trie_normalized=normalized)
        return [
            RankedList.of_leaves(trie, leaves, scores, depth)
            for leaves, scores, depth in zip(beams.leaves, beams.scores, depths, strict=True)
        ]

    @torch.inference_mode()
    def candidates(
        self,
        snapshot: Snapshot,
        queries: Sequence[Query],
        options: SearchOptions,
        extra: Sequence[Int64[np.ndarray, "_"]],
        *,
        depth: int,
        heads: KeptHeads | None = None,
        routes: CachedRoutes | None = None,
    ) -> list[Candidates]:
        """The beam's items, the heads' nearest and `extra` rows of each query, all with the model's exact scores.

        Args:
            snapshot: what is searched.
            queries: texts or histories.
            options: settled options.
            extra: rows that others proposed for each query.
            depth: items to take from the heads; from the beam, all that it kept.
            heads: adds the items whose latents are nearest to where the heads point.
            routes: categories that another model chose for these queries.
        """
        plan = Plan.of(snapshot, queries, options)
        plan = replace(plan, depths=tuple(min(width, len(snapshot)) for width in plan.widths))
        stepper, normalized = self.stepper(options.score_norm), options.score_norm == "trie_children"
        whole = snapshot.trie_of(plan.keep) if normalized else None
        made: dict[int, Candidates] = {}
        for numbers, memory in self.memories(snapshot, plan):
            for part_rows, trie in self.tries(snapshot, plan, numbers, memory, options, routes=routes):
                part = memory.take(torch.tensor(part_rows, device=memory.mask.device))
                own = [numbers[row] for row in part_rows]
                widths = [plan.widths[number] for number in own]
                chosen = _Chosen(snapshot, plan, own, extra, heads, depth)
                scoring = ScoringStepper(stepper, chosen, trie=whole)
                beams = beam_search(scoring, part, trie, width=widths, trie_normalized=normalized)
                exact = scoring.scores.double().cpu().numpy()
                for place, number in enumerate(own):
                    leaves, scores = beams.leaves[place], beams.scores[place]
                    ranked = RankedList.of_leaves(trie, leaves, scores, plan.depths[number])
                    made[number] = chosen.candidates(place, ranked.without(plan.seen[number]), exact[place])
        return [made[number] for number in range(len(plan.queries))]

    @torch.inference_mode()
    def memories(self, snapshot: Snapshot, plan: Plan) -> Iterator[tuple[list[int], Memory]]:
        """Queries as the model reads them, in batches, with their numbers; neighbours in length go together."""
        for start in range(0, len(plan.queries), _POOL):
            prepared = self.backbone.prepare_queries(plan.queries[start : start + _POOL], snapshot.index)
            widths = np.array(plan.widths[start : start + _POOL])
            order = np.lexsort((widths, prepared.lengths))
            for begin in range(0, len(order), _BATCH):
                rows = order[begin : begin + _BATCH]
                yield (start + rows).tolist(), self.backbone.encode(prepared.batch(rows).to(self.device))

    @torch.inference_mode()
    def tries(
        self,
        snapshot: Snapshot,
        plan: Plan,
        numbers: Sequence[int],
        memory: Memory,
        options: SearchOptions,
        *,
        routes: CachedRoutes | None = None,
    ) -> list[tuple[list[int], Trie]]:
        """Rows of a batch that search the same part of the catalogue, with its trie: all, or a few categories."""
        routed = self._routed(plan, numbers, memory, options, routes)
        if routed is None or snapshot.categories is None:
            return [(list(range(len(numbers))), snapshot.trie_of(plan.keep))]
        groups: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for row, categories in enumerate(routed.sort(dim=1).values.tolist()):
            groups.setdefault((tuple(categories), plan.least[numbers[row]]), []).append(row)
        parts = []
        for (categories, least), rows in groups.items():
            inside = snapshot.members(categories)
            keep = inside if plan.keep is None else inside & plan.keep
            # categories that hold fewer items than must be listed do not keep the others out
            parts.append((rows, snapshot.trie_of(keep if keep.sum() >= least else plan.keep)))
        return parts

    def _routed(
        self,
        plan: Plan,
        numbers: Sequence[int],
        memory: Memory,
        options: SearchOptions,
        routes: CachedRoutes | None,
    ) -> Int64[Tensor, "query width"] | None:
        """Categories of each query; None for the whole catalogue."""
        if routes is not None:
            return torch.from_numpy(routes.route([str(plan.originals[number]) for number in numbers]))
        return self.backbone.route(memory, width=options.category_width) if options.category_width else None


class _Chosen:
    """The items of a few queries that others proposed, and those nearest to where the heads point.

    The heads read a state that only the search knows, so a `ScoringStepper` asks when it has it.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        plan: Plan,
        numbers: Sequence[int],
        extra: Sequence[Int64[np.ndarray, "_"]],
        heads: KeptHeads | None,
        depth: int,
    ) -> None:
        self._snapshot, self._plan, self._numbers = snapshot, plan, numbers
        self._heads, self._depth = heads, depth
        self._near: np.ndarray | None = None
        self._nearest = [np.zeros(0, np.int64)] * len(numbers)
        self._rows = [extra[number] for number in numbers]

    def __call__(self, first: Float[Tensor, "query 1 width"] | None) -> Int64[Tensor, "query candidate level"]:
        """Semantic IDs of the chosen items; queries that have fewer are filled up with the first item of all."""
        device = self._snapshot.device
        if self._heads is not None:
            self._heads.refuse_other_codebooks(self._snapshot)
            self._near = self._heads.nearness(first_state(first), self._snapshot.points).cpu().numpy()
            self._nearest = [
                _nearest(near, self._plan, number, self._depth)
                for near, number in zip(self._near, self._numbers, strict=True)
            ]
            self._rows = [np.union1d(rows, near) for rows, near in zip(self._rows, self._nearest, strict=True)]
        padded = np.zeros((len(self._rows), max(map(len, self._rows))), np.int64)
        for place, rows in enumerate(self._rows):
            padded[place, : len(rows)] = rows
        return torch.from_numpy(self._snapshot.sids[padded].astype(np.int64)).to(device)

    def candidates(self, place: int, ranked: RankedList, exact: Float[np.ndarray, "candidate"]) -> Candidates:
        """All items of one query: the beam's with its scores, the chosen ones with theirs."""
        chosen = self._rows[place]
        rows = np.union1d(ranked.rows, chosen)
        values = np.empty(len(rows))
        values[np.searchsorted(rows, chosen)] = exact[: len(chosen)]
        values[np.searchsorted(rows, ranked.rows)] = ranked.scores
        near = None if self._near is None else self._near[place, rows].astype(np.float64)
        return Candidates(rows, values, near, ranked.rows, self._nearest[place])


def _nearest(near: Float[np.ndarray, "item"], plan: Plan, number: int, depth: int) -> Int64[np.ndarray, "_"]:
    """Rows of the items nearest to where the heads point, of those that the search may return."""
    near = near.copy()
    if plan.keep is not None:
        near[~plan.keep] = -np.inf
    near[plan.seen[number]] = -np.inf
    count = min(depth, int((near > -np.inf).sum()))
    return np.argpartition(-near, count - 1)[:count].astype(np.int64) if count else np.zeros(0, np.int64)
