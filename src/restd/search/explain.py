"""Why an item was found, or where the beam lost it."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from restd.codes import Trie
from restd.data import Query
from restd.errors import ConfigError
from restd.models.contract import Memory
from restd.models.decode_protocol import Stepper
from restd.search.beam import Level, LookAhead, beam_search, exact_rank, exact_scores
from restd.search.generate import Generator, Plan
from restd.search.heads import KeptHeads
from restd.search.options import SearchOptions
from restd.snapshot import Snapshot

_EXACT = 2_000_000


@dataclass(frozen=True, slots=True)
class LevelTrace:
    """One level of a search, seen from one item."""

    level: int
    code: int
    """The item's code here."""
    candidates: int
    """Continuations there were."""
    survivors: int
    """How many were kept."""
    rank: int | None
    """The item's prefix among the candidates; None where its beginning was lost before."""
    score: float | None
    """Score of the item's prefix."""
    edge: float
    """Score of the last survivor."""

    @property
    def kept(self) -> bool:
        """Whether the item's prefix survived."""
        return self.rank is not None and self.rank <= self.survivors

    @property
    def gap(self) -> float | None:
        """How far the prefix is above the last survivor; below it where negative."""
        return None if self.score is None else self.score - self.edge

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "kept": self.kept, "gap": self.gap}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of one item in one search."""

    query: str
    item: str
    title: str
    sid: tuple[int, ...]
    k: int
    beam: int
    """Prefixes kept at every level, as wide as k at least where the search widens."""
    levels: tuple[LevelTrace, ...]
    rank: int | None
    """Its place in the whole list of this search, beyond the first k too; None where it is not in it."""
    exact_rank: int | None
    """Rank*: among all Semantic IDs that could come back, scored exactly."""
    beam_needed: int | None
    """A beam of this width reaches it; None where even the widest tried does not."""
    excluded: Literal["filter", "history", "categories"] | None = None
    """Why it was not searched for at all: a filter, the history it is in, or the categories that were searched."""

    @property
    def lost_at(self) -> int | None:
        """Level, from 1, at which its prefix left the beam."""
        return next((trace.level + 1 for trace in self.levels if not trace.kept), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "levels": [trace.to_dict() for trace in self.levels], "lost_at": self.lost_at}

    def sentence(self) -> str:
        """The gist in one sentence."""
        if self.excluded is not None:
            why = {
                "filter": "a filter leaves it out",
                "history": "it is in the history, whose items are left out",
                "categories": "it is not in the categories that were searched",
            }[self.excluded]
            return f"{self.item} was not searched for: {why}."
        lost = next((trace for trace in self.levels if not trace.kept), None)
        if self.rank is not None:
            shown = "" if self.rank <= self.k else f", behind the {self.k} that are shown"
            return f"{self.item} is found at rank {self.rank} with a beam of {self.beam}{shown}."
        if lost is None:
            return f"The beam of {self.beam} reaches {self.item}, but it is not among the first {self.k}."
        wider = f"a beam of {self.beam_needed} finds it" if self.beam_needed else "no beam that was tried finds it"
        return (
            f"{self.item} was lost at level {lost.level + 1}: its prefix was number {lost.rank} of {lost.candidates}, "
            f"and {lost.survivors} were kept; {wider}."
        )


def explain(
    generator: Generator,
    snapshot: Snapshot,
    query: Query,
    row: int,
    options: SearchOptions,
    *,
    k: int,
    rank: int | None,
    heads: KeptHeads | None = None,
) -> Explanation:
    """Follow one item through the generative search that these settled options describe.

    Args:
        generator: the model.
        snapshot: what is searched.
        query: a text or a history.
        row: of the item.
        options: as the generative part of the search has them.
        k: number of items that are shown.
        rank: the item's place in the result.
        heads: kept heads, where the options use them.
    """
    plan = Plan.of(snapshot, [query], options)
    ((numbers, memory),) = generator.memories(snapshot, plan)
    ((_, trie),) = generator.tries(snapshot, plan, numbers, memory, options)
    sid = torch.from_numpy(snapshot.sids[row].astype(np.int64)).to(snapshot.device)
    stepper, normalized = generator.stepper(options.score_norm), options.score_norm == "trie_children"
    search = _Search(stepper, memory, trie, _look_ahead(stepper, memory, trie, options, heads), normalized)
    levels, reached = search.trace(sid, plan.widths[0])
    excluded = _excluded(plan, trie, row)
    needed = None
    if excluded is None:
        needed = plan.widths[0] if reached else search.width_needed(sid, plan.widths[0])
    exact = None
    if excluded in (None, "categories"):
        listed = _listed(snapshot, plan)
        exact = rank_of_all(stepper, memory, snapshot.trie_of(listed), sid, trie_normalized=normalized)
    extra = len(plan.seen[0])
    return Explanation(
        query=str(query),
        item=snapshot.ids[row].as_py(),
        title=snapshot.items.titles()[row].as_py(),
        sid=tuple(sid.tolist()),
        k=k,
        beam=plan.widths[0] - extra,
        levels=levels,
        rank=rank,
        exact_rank=exact,
        beam_needed=None if needed is None else needed - extra,
        excluded=excluded,
    )


def _excluded(plan: Plan, trie: Trie, row: int) -> Literal["filter", "history", "categories"] | None:
    if plan.keep is not None and not plan.keep[row]:
        return "filter"
    if row in plan.seen[0]:
        return "history"
    return None if bool((trie.rows == row).any()) else "categories"


def _listed(snapshot: Snapshot, plan: Plan) -> np.ndarray | None:
    """Items that could come back, whatever the categories; None for all."""
    if not len(plan.seen[0]):
        return plan.keep
    listed = np.ones(len(snapshot), bool) if plan.keep is None else plan.keep.copy()
    listed[plan.seen[0]] = False
    return listed


def _look_ahead(
    stepper: Stepper, memory: Memory, trie: Trie, options: SearchOptions, heads: KeptHeads | None
) -> LookAhead | None:
    if options.heads is None or options.heads.mode not in ("look-ahead", "one-shot"):
        return None
    if options.heads.mode == "one-shot":
        raise ConfigError("A one-shot search has no beam to explain; choose another head mode.")
    assert heads is not None
    return heads.look_ahead(stepper, memory, trie, weight=options.heads.weight)


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The search of one query, to be repeated with other widths."""

    stepper: Stepper
    memory: Memory
    trie: Trie
    look_ahead: LookAhead | None
    trie_normalized: bool

    def trace(self, sid: Int64[Tensor, "level"], width: int) -> tuple[tuple[LevelTrace, ...], bool]:
        """Follow a SID level by level, and say whether it is among the beams in the end."""
        levels, rank = trace(
            self.stepper,
            self.memory,
            self.trie,
            sid,
            width=width,
            trie_normalized=self.trie_normalized,
            look_ahead=self.look_ahead,
        )
        return levels, rank is not None

    def width_needed(self, sid: Int64[Tensor, "level"], width: int) -> int | None:
        """The narrowest beam above `width` that reaches a SID, by doubling and then halving the interval."""
        low, high = width, 2 * width
        while not self.trace(sid, high)[1]:
            if high >= self.trie.leaves:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.trace(sid, middle)[1] else (middle, high)
        return min(high, self.trie.leaves)


def trace(
    stepper: Stepper,
    memory: Memory,
    trie: Trie,
    sid: Int64[Tensor, "level"],
    *,
    width: int,
    trie_normalized: bool,
    look_ahead: LookAhead | None = None,
) -> tuple[tuple[LevelTrace, ...], int | None]:
    """Follow one SID through a search: every level, and its rank among the resulting SIDs."""
    levels: list[LevelTrace] = []

    def watch(level: Level) -> None:
        scores = level.candidates[0]
        parent = (level.prefixes[0] == sid[: level.level]).all(dim=-1).nonzero()
        code = int(sid[level.level])
        kept = level.kept[0][level.kept[0] > -torch.inf]
        rank = score = None
        if len(parent) and bool(scores[parent[0, 0], code] > -torch.inf):
            own = scores[parent[0, 0], code]
            position = int(parent[0, 0]) * scores.shape[1] + code
            ties = int((scores.flatten()[:position] == own).sum())  # equals before it in SID order come first
            rank, score = int((scores > own).sum()) + ties + 1, float(own)
        candidates = int((scores > -torch.inf).sum())
        levels.append(LevelTrace(level.level, code, candidates, len(kept), rank, score, float(kept.min())))

    beams = beam_search(
        stepper, memory, trie, width=width, trie_normalized=trie_normalized, look_ahead=look_ahead, watch=watch
    )
    same = ((beams.sids[0] == sid).all(dim=-1) & (beams.leaves[0] >= 0)).nonzero()
    return tuple(levels), int(same[0, 0]) + 1 if len(same) else None


def rank_of_all(
    stepper: Stepper, memory: Memory, trie: Trie, sid: Int64[Tensor, "level"], *, trie_normalized: bool
) -> int | None:
    """Rank* of a SID; None where the catalogue is too large to score it all while a user waits."""
    if trie.leaves > _EXACT:
        return None
    scores = exact_scores(stepper, memory, trie, trie_normalized=trie_normalized)
    return int(exact_rank(scores, trie.find(sid[None]))[0])
