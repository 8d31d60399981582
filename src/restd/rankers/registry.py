"""Rankers by name, each over the items of a snapshot, row for row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from restd.data import Histories, Task
from restd.encode import Embeddings, Encoder, RememberedEncoder
from restd.errors import ArtifactError, ConfigError, DataError
from restd.models.query_encoder import find_encoder
from restd.registry import Registry
from restd.snapshot import Companion, Ranker, Snapshot


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
    """

    snapshot: Snapshot
    data: Path
    home: Path
    task: Task = "search"
    trained: Path | None = None
    seen: bool = True
    shared: dict[str, Any] = field(default_factory=dict)

    def with_texts(self) -> Snapshot:
        """The snapshot with its items' texts, from the data folder where it has no catalogue yet."""
        return self.snapshot if self.snapshot.items.catalog is not None else self.snapshot.with_catalog(self.data)

    def histories(self) -> Histories:
        """The users' histories over the snapshot's items."""
        return Histories.read(self.data)[0].over(self.snapshot.ids)[0]

    def embeddings(self) -> Embeddings:
        """The embeddings beside the index; refused where their rows are not the snapshot's."""
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
        """The encoder of the index, which reads queries too; rankers of one context share it and what it remembers."""
        if "encoder" not in self.shared:
            self.shared["encoder"] = RememberedEncoder(find_encoder("index", self.snapshot.index, self.home))
        return self.shared["encoder"]


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
        seen: for histories: whether items of the history may be in the list: `optional`, as the context says, or
            `never`; None where there are no histories.
        restore: makes it from what its `arrays` gave, for rankers that a bundle could not make again.
    """

    make: Callable[[RankerContext], Ranker]
    decoding: Mapping[str, Any]
    seen: Literal["optional", "never"] | None = None
    restore: Callable[[Mapping[str, np.ndarray], RankerContext], Companion] | None = None


@dataclass(frozen=True, slots=True)
class RankerEntry:
    """A ranker by name; the same name may serve several tasks, each in its own way."""

    name: str
    summary: str
    tasks: Mapping[Task, RankerTask]


RANKERS: Registry[RankerEntry] = Registry(
    "ranker",
    group="rankers",
    homes=tuple(
        f"restd.rankers.{home}"
        for home in ("bm25", "bm25_stemmed", "dense", "latent", "hybrid", "popularity", "sasrec_training", "neighbours")
    ),
)

COMPANIONS = ("bm25", "dense", "latent", "popularity", "match")
"""Parts that a hybrid search is fitted with, beside the model and its heads."""


def ranker_names(task: Task) -> tuple[str, ...]:
    """Names of the rankers that can do a task."""
    return tuple(entry.name for entry in RANKERS.entries() if task in entry.tasks)


def find_ranker(name: str, task: Task) -> RankerTask:
    """Look a ranker up; one that cannot do the task is an error that lists those that can."""
    tasks = RANKERS[name].tasks
    if task not in tasks:
        raise ConfigError(
            f"The ranker {name!r} does not {task}; it is for {' and '.join(tasks)}. Rankers that {task}: "
            f"{', '.join(ranker_names(task))}."
        )
    return tasks[task]


def make_ranker(name: str, context: RankerContext) -> Ranker:
    """Make a ranker by name."""
    return find_ranker(name, context.task).make(context)


def make_companion(name: str, context: RankerContext) -> Companion:
    """Make a part of a hybrid search by name: any ranker that can score chosen items, or `match`."""
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
    seen = {} if way.seen is None else {"seen": way.seen == "optional" and context.seen}
    return {"ranker": name, **way.decoding, **seen}
