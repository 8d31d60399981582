"""BM25, the lexical baseline, for any of our languages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from restd.data.text import words
from restd.errors import MissingExtraError
from restd.rankers.registry import RANKERS, RankerEntry, RankerTask
from restd.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Bm25:
    """An inverted index of every item's words."""

    inverted: Any
    items: int
    snapshot_hash: str

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Bm25":
        """Index the items' texts: accents folded, Japanese as overlapping pairs of characters."""
        try:
            import bm25s
        except ModuleNotFoundError as error:
            raise MissingExtraError("bm25s", extra="bm25", purpose="BM25") from error
        inverted = bm25s.BM25()
        inverted.index([words(text) for text in snapshot.items.texts()], show_progress=False)
        return cls(inverted, len(snapshot), snapshot.hash)

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their scores, best first; -1 where fewer items share a word with the query."""
        tokens = [words(query) for query in queries]
        rows, scores = self.inverted.retrieve(tokens, k=min(k, self.items), show_progress=False)
        return np.where(scores > 0, rows, -1).astype(np.int64), np.where(scores > 0, scores, -np.inf)


RANKERS.add(
    RankerEntry(
        "bm25",
        "Word overlap: BM25 over the items' texts.",
        {
            "search": RankerTask(
                lambda context: Bm25.of(context.with_texts()),
                {"search": "inverted index", "parameters": "k1 1.5, b 0.75 (Lucene's idf)"},
            )
        },
    )
)
