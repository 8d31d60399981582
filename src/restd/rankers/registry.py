"""Rankers by name, each over the items of a snapshot, row for row."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from restd.config import read_section
from restd.data import Histories, Task
from restd.encode import Embeddings, Encoder, RememberedEncoder
from restd.errors import ArtifactError, ConfigError, DataError
from restd.models.query_encoder import find_encoder
from restd.progress import Notify
from restd.rankers.other_encoder import OtherEncoder
from restd.registry import Registry
from restd.snapshot import Companion, Ranker, Snapshot

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankerContext:
    """What a ranker is made from.

    Args:
        snapshot: the items it ranks.
        data: folder of judgments or histories, and items.
        home: the folder `restd index` made; embeddings are kept there.
        task: whether queries are texts or histories.
        trained: where rankers that are trained are kept; without it they cannot be made.
        seen: whether items of a history may be recommended, by rankers that can leave them out.
        shared: what rankers of the same search share.
        argument: what follows the colon in a ranker's name, as in `dense:use-multilingual`; None without a colon.
        settings: sections of rankers, as `--set` gives them.
        notify: receives progress messages of rankers that are trained.
    """

    snapshot: Snapshot
    data: Path
    home: Path
    task: Task = "search"
    trained: Path | None = None
    seen: bool = True
    shared: dict[str, Any] = field(default_factory=dict)
    argument: str | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notify: Notify = logger.info

    def with_texts(self) -> Snapshot:
        """The snapshot with its items' texts, from the data folder where it has no catalogue yet."""
        return self.snapshot if self.snapshot.items.catalog is not None else self.snapshot.with_catalog(self.data)

    def histories(self) -> Histories:
        """The users' histories over the snapshot's items."""
        return Histories.read(self.data)[0].over(self.snapshot.ids)[0]

    def embeddings(self) -> Embeddings:
        """The embeddings that `restd index` made; refused where their rows are not the snapshot's."""
        folder = self.home / "embeddings"
        if not folder.is_dir():
            raise ConfigError(
                f"This ranker needs the embeddings that restd index keeps beside its index, and {self.home} has none; "
                "name the folder restd index made."
            )
        embeddings = Embeddings.open(folder)
        refuse_foreign_embeddings(embeddings, self.snapshot)
        return embeddings

    def encoder(self) -> Encoder:
        """The encoder of queries: the argument's, or the index's.

        Rankers of one context share it and what it remembers.
        """
        if self.argument is not None:
            return self.other_encoder().queries
        if "encoder" not in self.shared:
            self.shared["encoder"] = RememberedEncoder(find_encoder("index", self.snapshot.index, self.home))
        return self.shared["encoder"]

    def other_encoder(self) -> OtherEncoder:
        """The encoder that the argument names."""
        assert self.argument is not None
        key = f"encoder:{self.argument}"
        if key not in self.shared:
            self.shared[key] = OtherEncoder.of(self.argument, self.with_texts(), self.home, trained=self.trained)
        return self.shared[key]

    def item_vectors(self) -> Float[np.ndarray, "item dim"]:
        """Embeddings of the snapshot's items by the argument's encoder, or by the index's."""
        if self.argument is not None:
            return self.other_encoder().item_vectors(self.with_texts())
        return np.concatenate(list(self.embeddings().batches()))

    def config(self, name: str) -> Any:
        """Settings of a ranker: those of its section, or the defaults."""
        kind = RANKERS[name].config
        assert kind is not None
        return read_section(kind, self.settings.get(name, {}), section=name)


def refuse_foreign_embeddings(embeddings: Embeddings, snapshot: Snapshot) -> None:
    """Refuse embeddings whose rows are not the snapshot's items."""
    if embeddings.artifact.content != snapshot.embeddings:
        made_from = "no embeddings" if snapshot.embeddings is None else f"embeddings {snapshot.embeddings[:8]}"
        raise ArtifactError(
            f"The rows of {embeddings.artifact.folder} ({embeddings.artifact.content[:8]}) are not those of the index, "
            f"which names {made_from}: items were added or removed since, or the vectors were made again. Make the "
            "index again from the whole catalogue to use them."
        )


def refuse_foreign_histories(histories: Histories, snapshot: Snapshot) -> None:
    """Refuse histories that name items by other rows than the snapshot's."""
    if not histories.items.equals(snapshot.ids):
        raise DataError(
            f"The histories are over {len(histories.items):,} items that are not the snapshot's {len(snapshot):,}, or "
            "in another order; take histories.over(snapshot.ids)."
        )


@dataclass(frozen=True, slots=True)
class RankerTask:
    """How a ranker does one task.

    Args:
        make: makes it.
        decoding: how it ranks, for the protocol card.
        describe: more for the protocol card, where that depends on argument or settings.
        seen: for histories: whether items of the history may be in the list: `optional`, as the context says, or
            `never`; None where there are no histories.
        restore: makes it from what its `arrays` gave, for rankers that a bundle could not make again.
    """

    make: Callable[[RankerContext], Ranker]
    decoding: Mapping[str, Any]
    seen: Literal["optional", "never"] | None = None
    restore: Callable[[Mapping[str, np.ndarray], RankerContext], Companion] | None = None
    describe: Callable[[RankerContext], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class RankerEntry:
    """A ranker by name; the same name may serve several tasks, each in its own way.

    Args:
        name: what it is chosen by.
        summary: one sentence.
        tasks: how it does each task.
        source: the paper it is from; empty where it is from none.
        argument: what may follow its name after a colon, such as `ENCODER`; empty where nothing may.
        config: settings of its section, which has its name; None where it has none.
    """

    name: str
    summary: str
    tasks: Mapping[Task, RankerTask]
    source: str = ""
    argument: str = ""
    config: type[Any] | None = None


_HOMES = ("bm25", "bm25_stemmed", "dense", "dpr", "laser", "latent", "hybrid")
_HOMES += ("popularity", "sasrec_training", "neighbours")
RANKERS: Registry[RankerEntry] = Registry(
    "ranker",
    group="rankers",
    homes=tuple(f"restd.rankers.{home}" for home in _HOMES),
)

COMPANIONS = ("bm25", "dense", "latent", "popularity", "match")
"""Parts that a hybrid search is fitted with, beside the model and its heads."""


def ranker_names(task: Task) -> tuple[str, ...]:
    """Names of the rankers that can do a task."""
    return tuple(entry.name for entry in RANKERS.entries() if task in entry.tasks)


def split_name(name: str) -> tuple[str, str | None]:
    """A ranker's own name, and its argument.

    >>> split_name("dense:BAAI/bge-m3"), split_name("bm25")
    (('dense', 'BAAI/bge-m3'), ('bm25', None))
    """
    own, colon, argument = name.partition(":")
    return own, argument if colon else None


def find_ranker(name: str, task: Task) -> RankerTask:
    """Look a ranker up; one that cannot do the task, or takes no argument, is an error that lists those that can."""
    own, argument = split_name(name)
    entry = RANKERS[own]
    if task not in entry.tasks:
        raise ConfigError(
            f"The ranker {own!r} does not {task}; it is for {' and '.join(entry.tasks)}. Rankers that {task}: "
            f"{', '.join(ranker_names(task))}."
        )
    if argument is not None and not (argument and entry.argument):
        takers = ", ".join(f"{entry.name}:{entry.argument}" for entry in RANKERS.entries() if entry.argument)
        expected = f"something after the colon of {name!r}" if entry.argument else f"no argument, got {name!r}"
        raise ConfigError(f"The ranker {own!r} expects {expected}. Rankers with an argument: {takers}.")
    return entry.tasks[task]


def refuse_unread_settings(settings: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> None:
    """Refuse sections that none of these rankers reads, and settings that a section does not have."""
    own = {split_name(name)[0] for name in names}
    for section, values in settings.items():
        config = RANKERS[section].config if section in RANKERS else None
        if config is None:
            raise ConfigError(f"Unknown section [{section}] for rankers. Known: {', '.join(ranker_sections())}.")
        if section not in own:
            raise ConfigError(
                f"The settings of [{section}] would have no effect: {section!r} is not among the rankers to evaluate "
                f"({', '.join(names) or 'none'})."
            )
        read_section(config, values, section=section)


def ranker_sections() -> tuple[str, ...]:
    """Names of the rankers that have settings."""
    return tuple(entry.name for entry in RANKERS.entries() if entry.config is not None)


def make_ranker(name: str, context: RankerContext) -> Ranker:
    """Make a ranker by name."""
    return find_ranker(name, context.task).make(replace(context, argument=split_name(name)[1]))


def make_companion(name: str, context: RankerContext) -> Companion:
    """Make a part of a hybrid search by name: any ranker that can score chosen items, or `match`."""
    if split_name(name)[1] is not None:
        raise ConfigError(
            f"{name!r} cannot be a part of a hybrid search: new items come with vectors by the index's encoder alone. "
            f"Take {split_name(name)[0]!r}."
        )
    if name == "match":
        from restd.rankers.field_match import FieldMatch

        return FieldMatch.of(context.with_texts())
    ranker = make_ranker(name, context)
    if not isinstance(ranker, Companion):
        raise ConfigError(
            f"The ranker {name!r} cannot score chosen items, so it cannot be a part of a hybrid search; choose from "
            f"{', '.join(COMPANIONS)}."
        )
    return ranker


def decoding_of(name: str, context: RankerContext) -> dict[str, Any]:
    """How a ranker ranks, for the protocol card."""
    way = find_ranker(name, context.task)
    described = {} if way.describe is None else way.describe(replace(context, argument=split_name(name)[1]))
    seen = {} if way.seen is None else {"seen": way.seen == "optional" and context.seen}
    return {"ranker": name, **way.decoding, **described, **seen}
