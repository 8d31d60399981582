"""Why an item was found, or where the beam lost it."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from restd.index import Trie
from restd.models.contract import Memory
from restd.models.decoding import Stepper
from restd.search.beam import Level, beam_search, exact_rank, exact_scores

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
    width: int
    levels: tuple[LevelTrace, ...]
    rank: int | None
    """Among the results; None where the beam lost it."""
    exact_rank: int | None
    """Rank*: among all SIDs scored exactly."""
    width_needed: int | None
    """A beam of this width finds it; None where even the widest tried does not."""

    @property
    def lost_at(self) -> int | None:
        """Level, from 1, at which its prefix left the beam."""
        return next((held.level + 1 for held in self.levels if not held.kept), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "levels": [held.to_dict() for held in self.levels], "lost_at": self.lost_at}

    def sentence(self) -> str:
        """The gist for a person."""
        if self.rank is not None:
            return f"{self.item} is found at rank {self.rank} with a beam of {self.width}."
        lost = next(held for held in self.levels if not held.kept)
        if lost.rank is None:
            return f"{self.item} is not in the part of the catalogue that was searched."
        wider = f"a beam of {self.width_needed} finds it" if self.width_needed else "no beam that was tried finds it"
        return (
            f"{self.item} was lost at level {lost.level + 1}: its prefix was number {lost.rank} of {lost.candidates}, "
            f"and {lost.survivors} were kept; {wider}."
        )


def trace(
    stepper: Stepper, memory: Memory, trie: Trie, sid: Int64[Tensor, "level"], *, width: int, trie_normalized: bool
) -> tuple[tuple[LevelTrace, ...], int | None]:
    """Follow one SID through a search: every level, and its rank among the results."""
    levels: list[LevelTrace] = []

    def watch(held: Level) -> None:
        scores = held.candidates[0]
        parent = (held.prefixes[0] == sid[: held.level]).all(dim=-1).nonzero()
        code = int(sid[held.level])
        finite = int((scores > -torch.inf).sum())
        kept = held.kept[0][held.kept[0] > -torch.inf]
        rank = score = None
        if len(parent) and bool(scores[parent[0, 0], code] > -torch.inf):
            own = scores[parent[0, 0], code]
            place = int(parent[0, 0]) * scores.shape[1] + code
            ties = int((scores.flatten()[:place] == own).sum())  # equals before it in SID order come first
            rank, score = int((scores > own).sum()) + ties + 1, float(own)
        levels.append(LevelTrace(held.level, code, finite, len(kept), rank, score, float(kept.min())))

    beams = beam_search(stepper, memory, trie, width=width, trie_normalized=trie_normalized, watch=watch)
    same = ((beams.sids[0] == sid).all(dim=-1) & (beams.leaves[0] >= 0)).nonzero()
    return tuple(levels), int(same[0, 0]) + 1 if len(same) else None


def width_needed(
    stepper: Stepper, memory: Memory, trie: Trie, sid: Int64[Tensor, "level"], *, width: int, trie_normalized: bool
) -> int | None:
    """The narrowest beam above `width` that finds a SID, by doubling and then halving the interval."""

    def finds(tried: int) -> bool:
        return trace(stepper, memory, trie, sid, width=tried, trie_normalized=trie_normalized)[1] is not None

    low, high = width, 2 * width
    while not finds(high):
        if high >= trie.leaves:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if finds(middle) else (middle, high)
    return min(high, trie.leaves)


def rank_of_all(
    stepper: Stepper, memory: Memory, trie: Trie, sid: Int64[Tensor, "level"], *, trie_normalized: bool
) -> int | None:
    """Rank* of a SID; None where the catalogue is too large to score it all while somebody waits."""
    if trie.leaves > _EXACT:
        return None
    scores = exact_scores(stepper, memory, trie, trie_normalized=trie_normalized)
    return int(exact_rank(scores, trie.find(sid[None]))[0])
