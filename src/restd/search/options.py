"""How a search is done: one definition for Python, command line, evaluation and protocol card."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, get_args

from restd.artifacts import hash_json
from restd.data import Task
from restd.errors import ConfigError
from restd.snapshot import Condition

ScoreNorm = Literal["full_vocab", "level_codes", "trie_children"]
Mode = Literal["generative", "hybrid"]
HeadMode = Literal["rerank", "fuse", "look-ahead", "one-shot"]
HEAD_MODES: tuple[HeadMode, ...] = get_args(HeadMode)
BEAMS: Mapping[Task, int] = {"search": 100, "recommend": 20}
"""The paper's beams."""
HYBRID_BEAM = 40
"""A hybrid search has other parts that propose items: on the demo's shop a beam of 100 gains 0.2 points of NDCG@10."""


@dataclass(frozen=True, slots=True)
class HeadUse:
    """What the horizon heads kept from training are used for.

    Args:
        mode: `rerank` the beam's items by nearness too; `fuse` them with the nearest latents; `look-ahead` while
            pruning; `one-shot` scores the whole catalogue from one state, without a beam.
        weight: of nearness beside log-probability, or of the look-ahead beside the prefix's score.
        extra_candidates: how many of the nearest latents `fuse` adds to the beam's items.
    """

    mode: HeadMode = "fuse"
    weight: float = 0.4
    extra_candidates: int = 200

    def __post_init__(self) -> None:
        _refuse_unknown("heads.mode", self.mode, HEAD_MODES)
        if not self.weight >= 0:
            raise ConfigError(f"heads.weight = {self.weight}: expected at least 0.")
        if self.extra_candidates < 0:
            raise ConfigError(f"heads.extra_candidates = {self.extra_candidates}: expected at least 0.")


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How a search is done.

    Args:
        k: number of items to return; fewer come back only where fewer qualify.
        beam: prefixes kept at every level; unset, the paper's: 100 for texts, 20 for histories; 40 for a hybrid
            search of texts.
        widen: search at least k wide, whatever the beam; evaluation switches it off to keep the beam as it is stated.
        score_norm: over what probabilities sum to one: every word the model could generate (`full_vocab`), the codes of
            the level (`level_codes`), or the codes that can follow (`trie_children`).
        where: conditions on the items' columns, such as "category=Home" or "price<=50"; all must hold.
        allow: only these items, by id; unset, all.
        deny: none of these items, by id.
        category_width: categories a model that routes queries searches; 0 for the whole catalogue.
        mode: `generative`, or `hybrid`, which fuses the model's list with those of the snapshot's companions.
        heads: use of the horizon heads kept from training; unset, none.
        seen: whether items of the history may come back; unset, `recommend` leaves them out and `rank` does not, as in
            the paper's protocol.

    >>> SearchOptions(k=5, where=["price<=30"]).where
    ('price<=30',)
    >>> SearchOptions.of(width=20)
    Traceback (most recent call last):
    restd.errors.ConfigError: Unknown search option 'width'. Did you mean 'widen'? Known: k, beam, widen, score_norm, \
where, allow, deny, category_width, mode, heads, seen.
    """

    k: int = 10
    beam: int | None = None
    widen: bool = True
    score_norm: ScoreNorm = "full_vocab"
    where: Sequence[str | Condition] = ()
    allow: Sequence[str] | None = None
    deny: Sequence[str] = ()
    category_width: int = 3
    mode: Mode = "generative"
    heads: HeadUse | None = None
    seen: bool | None = None

    def __post_init__(self) -> None:
        _refuse_bad({field.name: getattr(self, field.name) for field in fields(self)})
        for name in ("where", "allow", "deny"):  # lists are frozen too
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def of(cls, options: "SearchOptions | None" = None, **keywords: Any) -> "SearchOptions":
        """Options with some of them replaced by keywords; an unknown keyword is an error that lists the known ones."""
        known = [field.name for field in fields(cls)]
        for name in keywords:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                guess = f" Did you mean {close[0]!r}?" if close else ""
                raise ConfigError(f"Unknown search option {name!r}.{guess} Known: {', '.join(known)}.")
        _refuse_bad(keywords)
        return cls(**keywords) if options is None else replace(options, **keywords)

    def settled(self, task: Task, *, seen: bool = True) -> "SearchOptions":
        """The same with what was left unset: the beam of the task, and whether items of the history may come back."""
        usual = HYBRID_BEAM if self.mode == "hybrid" and task == "search" else BEAMS[task]
        beam = usual if self.beam is None else self.beam
        return replace(self, beam=beam, seen=seen if self.seen is None else self.seen)

    def card(self, *, task: Task, routes: bool = False) -> dict[str, Any]:
        """The decoding entry of a protocol card: beam and norm always, the rest where it matters.

        Args:
            task: what the model is for.
            routes: whether the model chooses among categories.
        """
        settled = self.settled(task)
        entry: dict[str, Any] = {"ranker": "restd", "search": "beam over the trie"}
        entry |= {"beam": settled.beam, "score_norm": self.score_norm}
        if routes:
            entry["category_width"] = self.category_width
        if task == "recommend":
            entry["seen"] = settled.seen
        if self.mode != "generative":
            entry["mode"] = self.mode
        if self.heads is not None:
            entry["heads"] = asdict(self.heads)
        if self.where:
            entry["where"] = [str(condition) for condition in self.where]
        for name, ids in (("allow", self.allow), ("deny", self.deny)):
            if ids:
                entry[name] = {"items": len(ids), "hash": hash_json(sorted(ids))}
        return entry


class SearchKeywords(TypedDict, total=False):
    """Fields of `SearchOptions` as keywords; a test holds the two together."""

    beam: int | None
    widen: bool
    score_norm: ScoreNorm
    where: Sequence[str | Condition]
    allow: Sequence[str] | None
    deny: Sequence[str]
    category_width: int
    mode: Mode
    heads: HeadUse | None
    seen: bool | None


def _refuse_bad(values: Mapping[str, Any]) -> None:
    """Refuse impossible values of the options that are given."""
    for name, least in (("k", 1), ("beam", 1), ("category_width", 0)):
        if values.get(name) is not None:
            _refuse_below(name, values[name], least)
    for name, known in (("score_norm", get_args(ScoreNorm)), ("mode", get_args(Mode))):
        if name in values:
            _refuse_unknown(name, values[name], known)
    for name in ("where", "allow", "deny"):
        if isinstance(values.get(name), str):
            raise ConfigError(f"{name} = {values[name]!r}: expected a list, got one text. Pass [{values[name]!r}].")
    for condition in values.get("where", ()):
        if isinstance(condition, str):
            Condition.parse(condition)


def _refuse_below(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r}: expected a whole number.")
    if value < least:
        raise ConfigError(f"{name} = {value}: expected at least {least}.")


def _refuse_unknown(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name} = {value!r} is unknown; expected one of {', '.join(known)}.")
