"""Baselines by name, each over the items of an index, row for row."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from restd.artifacts import read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.baselines.bm25 import Bm25
from restd.baselines.dense import Dense
from restd.baselines.hybrid import Hybrid
from restd.baselines.neighbours import CooccurrenceNeighbours, EmbeddingNeighbours
from restd.baselines.popularity import Popularity
from restd.baselines.sasrec import SasRecConfig
from restd.baselines.sasrec_training import train_sasrec
from restd.baselines.taken import TakenPopularity
from restd.data import Catalog, Histories, Task, leave_one_out
from restd.encode import Embeddings
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.index.sid_index import FOLDER
from restd.search.fusion import Ranker


@dataclass(frozen=True, slots=True)
class Place:
    """Where an index and its data are."""

    home: Path
    """The folder `restd index` made."""
    data: Path
    index: SidIndex
    task: Task = "search"
    trained: Path | None = None
    """Where baselines that are trained are kept; without it they cannot be asked for."""
    seen: bool = True
    """Whether what a history holds may be recommended, by those who could leave it out."""

    def texts(self) -> list[str]:
        """Every item's text, row for row; empty for items that the catalogue does not have any more."""
        catalog = Catalog.read_as(self.data, self.index.origin.get("reading"))
        return catalog.texts_of(self.index.table.ids.to_pylist())

    def histories(self) -> Histories:
        """The users' histories over the index's items."""
        return Histories.read(self.data)[0].over(self.index.table.ids)[0]


def _bm25(place: Place) -> Ranker:
    return Bm25.of_texts(place.texts())


def _dense(place: Place) -> Ranker:
    return Dense.of(_embeddings(place))


def _embeddings(place: Place) -> Embeddings:
    folder = place.home / "embeddings"
    if not folder.is_dir():
        raise ConfigError(
            f"This baseline needs the embeddings that restd index keeps beside its index, and {place.home} has none; "
            "name the folder restd index made."
        )
    held = Embeddings.open(folder)
    home = place.home if (place.home / MANIFEST).is_file() else place.home / FOLDER
    if held.items != len(place.index) or "index" in read_manifest(home).parents:
        raise ConfigError(
            f"Items came or went since {folder} was made, so its rows are not the index's; make the index again to "
            "use them."
        )
    return held


def _neighbours(place: Place) -> Ranker:
    vectors = np.concatenate(list(_embeddings(place).batches()))
    return _best_discount(EmbeddingNeighbours.of(vectors, place.index.table.ids), place.histories())


def _cooccurrence(place: Place) -> Ranker:
    histories = place.histories()
    return _best_discount(CooccurrenceNeighbours.of(histories), histories)


def _best_discount(
    held: CooccurrenceNeighbours | EmbeddingNeighbours, histories: Histories
) -> CooccurrenceNeighbours | EmbeddingNeighbours:
    """Neighbours that forget as fast as validation likes best, by NDCG@10."""
    asked = leave_one_out(histories, "valid")

    def gained(ranker: Ranker) -> float:
        rows, _ = ranker.rank(asked, _DEPTH)
        return float(((rows == asked.targets[:, None]) / np.log2(np.arange(_DEPTH) + 2)).sum())

    return max((replace(held, discount=discount) for discount in _DISCOUNTS), key=gained)


def _sasrec(place: Place, loss: Literal["ce", "bce"]) -> Ranker:
    """The best on validation of a few trained networks."""
    if place.trained is None:
        raise ConfigError("SASRec is trained before it ranks; say where it may be kept, with --out.")
    histories, rivals = place.histories(), []
    seen = place.seen and loss == "ce"  # bce never learns to put down what was seen
    for dropout in _DROPOUTS:
        config = SasRecConfig(loss=loss, dropout=dropout, seen=seen)
        name = f"sasrec-{loss}-{dropout:g}{'' if seen else '-unseen'}"
        rivals.append(train_sasrec(histories, config, place.trained / name))
    return max(rivals, key=lambda held: held.summary["validation"])


_DISCOUNTS = (1.0, 0.85, 0.7, 0.5)
"""Weights of an item of the history relative to the one after it, of which validation chooses for neighbours."""
_DEPTH = 10
_DROPOUTS = (0.2, 0.5)
"""SASRec's dropouts, of which validation chooses: published for dense and for sparse data."""
BASELINES: dict[Task, dict[str, Callable[[Place], Ranker]]] = {
    "search": {
        "bm25": _bm25,
        "dense": _dense,
        "popularity": lambda place: Popularity.of(place.data, place.index),
        "hybrid": lambda place: Hybrid((_bm25(place), _dense(place))),
    },
    "recommend": {
        "sasrec": lambda place: _sasrec(place, "ce"),
        "sasrec-bce": lambda place: _sasrec(place, "bce"),
        "popularity": lambda place: TakenPopularity.of(place.histories(), seen=place.seen),
        "co-occurrence": _cooccurrence,
        "neighbours": _neighbours,
    },
}
_FORGETS = f"summed with a discount of {' or '.join(f'{value:g}' for value in _DISCOUNTS)}"
# `seen`: None where the place decides
_WAYS: dict[Task, dict[str, dict[str, Any]]] = {
    "search": {
        "bm25": {"search": "inverted index", "parameters": "k1 1.5, b 0.75 (Lucene's idf)"},
        "dense": {"search": "exact inner product of unit vectors"},
        "popularity": {"search": "training pairs of an item"},
        "hybrid": {"search": "reciprocal rank fusion of bm25 and dense, damping 60"},
    },
    "recommend": {
        "sasrec": {
            "search": "all items scored",
            "parameters": "softmax over all items, dropout 0.2 or 0.5",
            "seen": None,
        },
        "sasrec-bce": {
            "search": "all items scored",
            "parameters": "a sampled negative, dropout 0.2 or 0.5",
            "seen": False,
        },
        "popularity": {"search": "training events of an item", "seen": None},
        "co-occurrence": {
            "search": "all items scored",
            "parameters": f"cosines of who took them, {_FORGETS}",
            "seen": False,
        },
        "neighbours": {"search": "all items scored", "parameters": f"cosines of embeddings, {_FORGETS}", "seen": False},
    },
}


def decoding_of(name: str, place: Place) -> dict[str, Any]:
    """How a baseline ranks, for the protocol card."""
    ways = _WAYS[place.task][name]
    return {"ranker": name, **ways, **({"seen": place.seen} if "seen" in ways and ways["seen"] is None else {})}


def refuse_unknown(name: str, task: Task) -> None:
    """An unknown name is an error that lists the known ones."""
    if name not in BASELINES[task]:
        raise ConfigError(f"No baseline {name!r} can {task}; wanted one of {', '.join(BASELINES[task])}.")


def baseline_named(name: str, place: Place) -> Ranker:
    """Make a baseline."""
    refuse_unknown(name, place.task)
    return BASELINES[place.task][name](place)
