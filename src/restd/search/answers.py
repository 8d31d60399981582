"""What a search answers: hits and explanations, as plain values that a service can send.

Nothing here loads a model or its libraries, so that a client of a service is light.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class PartScore:
    """One part of a fused score."""

    score: float | None
    """As the part itself gives it, such as a log-probability or a BM25 score; None where it is not finite."""
    scaled: float
    """The same from 0 to 1 among the candidates of the query."""
    weight: float
    """Of the part for this item: parts that cannot know an item that is new to the model have 0 for it."""
    share: float
    """`weight` times `scaled`; the shares of all parts add up to the fused score."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One result."""

    item: str
    title: str
    score: float
    sid: tuple[int, ...]
    parts: Mapping[str, PartScore] | None = field(default=None, compare=False)
    """How its score in a hybrid search is made up, where a caller wants `contributions`; the result is the same."""


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
    parts: Mapping[str, PartScore] | None = None
    """What each part of a hybrid search says about it; None where no part proposed it, and in other searches."""
    excluded: Literal["filter", "history", "categories"] | None = None
    """Why it was not searched for at all: a filter, the history it is in, or the categories that were searched."""

    @property
    def lost_at(self) -> int | None:
        """Level, from 1, at which its prefix left the beam."""
        return next((trace.level + 1 for trace in self.levels if not trace.kept), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "levels": [trace.to_dict() for trace in self.levels], "lost_at": self.lost_at}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> "Explanation":
        """The explanation that `to_dict` made plain values of; JSON may have been between.

        >>> level = LevelTrace(level=0, code=7, candidates=9, survivors=4, rank=5, score=-1.0, edge=-0.5)
        >>> lost = Explanation("tea", "pot", "Pot", (7,), 4, 4, (level,), None, 6, 5)
        >>> Explanation.of_dict(lost.to_dict()) == lost
        True
        """
        own = {field.name: values[field.name] for field in fields(cls)}
        names = [field.name for field in fields(LevelTrace)]
        own["sid"] = tuple(own["sid"])
        own["levels"] = tuple(LevelTrace(**{name: level[name] for name in names}) for level in own["levels"])
        if own["parts"] is not None:
            own["parts"] = {name: PartScore(**part) for name, part in own["parts"].items()}
        return cls(**own)

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
