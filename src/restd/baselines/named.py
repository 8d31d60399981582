"""Baselines by name, each over the items of an index, row for row."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from restd.artifacts import read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.baselines.bm25 import Bm25
from restd.baselines.dense import Dense
from restd.baselines.hybrid import Hybrid
from restd.baselines.popularity import Popularity
from restd.data import Catalog
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

    def texts(self) -> list[str]:
        """Every item's text, row for row; empty for items that the catalogue does not have any more."""
        catalog = Catalog.read_as(self.data, self.index.origin.get("reading"))
        return catalog.texts_of(self.index.table.ids.to_pylist())


def _bm25(place: Place) -> Ranker:
    return Bm25.of_texts(place.texts())


def _dense(place: Place) -> Ranker:
    folder = place.home / "embeddings"
    if not folder.is_dir():
        raise ConfigError(
            f"Dense search needs the embeddings that restd index keeps beside its index, and {place.home} has none; "
            "name the folder restd index made."
        )
    held = Embeddings.open(folder)
    home = place.home if (place.home / MANIFEST).is_file() else place.home / FOLDER
    if held.items != len(place.index) or "index" in read_manifest(home).parents:
        raise ConfigError(
            f"Items came or went since {folder} was made, so its rows are not the index's; make the index again to "
            "search it densely."
        )
    return Dense.of(held)


BASELINES: dict[str, Callable[[Place], Ranker]] = {
    "bm25": _bm25,
    "dense": _dense,
    "popularity": lambda place: Popularity.of(place.data, place.index),
    "hybrid": lambda place: Hybrid((_bm25(place), _dense(place))),
}

DECODING: dict[str, dict[str, Any]] = {
    "bm25": {"ranker": "bm25", "search": "inverted index", "parameters": "k1 1.5, b 0.75 (Lucene's idf)"},
    "dense": {"ranker": "dense", "search": "exact inner product of unit vectors"},
    "popularity": {"ranker": "popularity", "search": "training pairs of an item"},
    "hybrid": {"ranker": "hybrid", "search": "reciprocal rank fusion of bm25 and dense, damping 60"},
}


def refuse_unknown(name: str) -> None:
    """An unknown name is an error that lists the known ones."""
    if name not in BASELINES:
        raise ConfigError(f"Baseline {name!r} is unknown; wanted one of {', '.join(BASELINES)}.")


def baseline_named(name: str, place: Place) -> Ranker:
    """Make a baseline."""
    refuse_unknown(name)
    return BASELINES[name](place)
