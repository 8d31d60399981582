"""A search that is watched level by level: what explanations and pictures of the beam are made from."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from restd.codes import Trie
from restd.data import Query
from restd.errors import ConfigError
from restd.models.contract import Memory
from restd.models.decode_protocol import Stepper
from restd.search.answers import LevelTrace
from restd.search.beam import Beams, Level, LookAhead, Watch, beam_search
from restd.search.generate import Generator, Plan
from restd.search.heads import KeptHeads
from restd.search.options import SearchOptions
from restd.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class TracedSearch:
    """The generative search of one query, to be repeated with other widths."""

    plan: Plan
    stepper: Stepper
    memory: Memory
    trie: Trie
    look_ahead: LookAhead | None
    trie_normalized: bool

    @classmethod
    def of(
        cls,
        generator: Generator,
        snapshot: Snapshot,
        query: Query,
        options: SearchOptions,
        *,
        heads: KeptHeads | None = None,
    ) -> "TracedSearch":
        """Take the search that these settled options describe."""
        plan = Plan.of(snapshot, [query], options)
        ((numbers, memory),) = generator.memories(snapshot, plan)
        ((_, trie),) = generator.tries(snapshot, plan, numbers, memory, options)
        stepper = generator.stepper(options.score_norm)
        look_ahead = _look_ahead(stepper, memory, trie, options, heads)
        return cls(plan, stepper, memory, trie, look_ahead, options.score_norm == "trie_children")

    @property
    def width(self) -> int:
        """Prefixes kept at every level."""
        return self.plan.widths[0]

    @property
    def extra(self) -> int:
        """How much wider the beam is for items of the history that will be left out."""
        return len(self.plan.seen[0])

    def run(self, width: int, watch: Watch) -> Beams:
        """Search with a beam of this width, and show every level."""
        return beam_search(
            self.stepper,
            self.memory,
            self.trie,
            width=width,
            trie_normalized=self.trie_normalized,
            look_ahead=self.look_ahead,
            watch=watch,
        )

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

    def width_needed(self, sid: Int64[Tensor, "level"], width: int, *, widest: int) -> int | None:
        """The narrowest beam above `width` that reaches a SID, by doubling and then halving the interval.

        None where none does that is at most `widest`.
        """
        widest = min(widest, self.trie.leaves)
        low, high = width, min(2 * width, widest)
        while high > low and not self.trace(sid, high)[1]:
            low, high = high, min(2 * high, widest)
        if high <= low:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.trace(sid, middle)[1] else (middle, high)
        return high


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


def _look_ahead(
    stepper: Stepper, memory: Memory, trie: Trie, options: SearchOptions, heads: KeptHeads | None
) -> LookAhead | None:
    if options.heads is None or options.heads.mode not in ("look-ahead", "one-shot"):
        return None
    if options.heads.mode == "one-shot":
        raise ConfigError("A one-shot search has no beam to explain; choose another head mode.")
    if heads is None:
        raise ConfigError("The heads were not loaded; load the retriever with keep_heads=True.")
    return heads.look_ahead(stepper, memory, trie, weight=options.heads.weight)
