"""Fields that a query names: a brand, a colour, a size written exactly as the catalogue has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int, Int64

from restd.data.text import words
from restd.snapshot import Snapshot

_LONGEST = 4
"""Words of a value that can be named; longer ones are sentences."""


@dataclass(frozen=True, slots=True, eq=False)
class FieldMatch:
    """Scores an item by how many of its fields the query names in full. It proposes no items of its own."""

    values: tuple[tuple[str, ...], ...]
    """Of every item: its short values, as words between spaces."""
    snapshot_hash: str
    name: ClassVar[str] = "match"

    @classmethod
    def of(cls, snapshot: Snapshot) -> "FieldMatch":
        """Read all text columns but ids and titles; titles are what BM25 is for."""
        values: list[list[str]] = [[] for _ in range(len(snapshot))]
        for column in snapshot.items.names():
            if column in ("id", "title"):
                continue
            array = snapshot.items.column(column)
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            if not pa.types.is_string(array.type) and not pa.types.is_list(array.type):
                continue
            for row, value in enumerate(array.to_pylist()):
                for text in value if isinstance(value, list) else [value]:
                    known = words(text) if isinstance(text, str) else []
                    if 0 < len(known) <= _LONGEST:
                        values[row].append(_between_spaces(known))
        return cls(tuple(map(tuple, values)), snapshot.hash)

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """No items: it only scores what others propose."""
        return np.full((len(queries), 0), -1, np.int64), np.zeros((len(queries), 0))

    def scores(
        self, queries: Sequence[str], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """Number of an item's fields that stand in the query, word by word."""
        counts = np.zeros(rows.shape, np.float64)
        for query, text in enumerate(queries):
            phrase = _between_spaces(words(text))
            counts[query] = [sum(value in phrase for value in self.values[row]) for row in rows[query].tolist()]
        return counts

    def following(
        self, snapshot: Snapshot, kept: Int64[np.ndarray, "_"], vectors: Float[np.ndarray, "added input"] | None
    ) -> "FieldMatch":
        """The same for a snapshot that follows its own."""
        return FieldMatch.of(snapshot)


def _between_spaces(known: Sequence[str]) -> str:
    return f" {' '.join(known)} "
