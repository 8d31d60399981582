"""BM25, the lexical baseline, for any of our languages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, Int64

from restd.data.text import words
from restd.errors import MissingExtraError
from restd.rankers.registry import RANKERS, RankerEntry, RankerTask
from restd.rankers.top_k import best_rows
from restd.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Bm25:
    """An inverted index of every item's words."""

    inverted: Any
    items: int
    snapshot_hash: str
    name: ClassVar[str] = "bm25"

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Bm25":
        """Index the items' texts: accents folded, Japanese as overlapping pairs of characters."""
        return cls(inverted_index([words(text) for text in snapshot.items.texts()]), len(snapshot), snapshot.hash)

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their scores, best first; -1 where fewer items share a word with the query.

        Ties are in the order of rows.
        """
        k = min(k, self.items)
        rows, best = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32)
        for query, text in enumerate(queries):
            scores = self._scores(text)
            # not by the inverted index itself: its partial sort is slow where most items have a score of 0
            (own,) = best_rows(np.where(scores > 0, scores, -np.inf)[None], k)
            rows[query, : len(own)], best[query, : len(own)] = own, scores[own]
        return rows, best

    def scores(
        self, queries: Sequence[str], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """Scores of chosen items; 0 where an item shares no word with the query."""
        values = np.zeros(rows.shape, np.float64)
        for query, (text, candidates) in enumerate(zip(queries, rows, strict=True)):
            values[query] = self._scores(text)[candidates]
        return values

    def _scores(self, text: str) -> Float[np.ndarray, "item"]:
        """Scores of all items."""
        # words that no item has are unknown to the inverted index
        known = [word for word in self.terms(text) if word in self.inverted.vocab_dict]
        return self.inverted.get_scores(known) if known else np.zeros(self.items, np.float32)

    def terms(self, text: str) -> list[str]:
        """Words of a query, as those of the items are indexed."""
        return words(text)

    def following(
        self, snapshot: Snapshot, kept: Int64[np.ndarray, "_"], vectors: Float[np.ndarray, "added input"] | None
    ) -> "Bm25":
        """The same for a snapshot that follows its own: all texts are indexed again."""
        return Bm25.of(snapshot)


def inverted_index(terms: list[list[str]]) -> Any:
    """BM25's index of the words of every item."""
    try:
        import bm25s
    except ModuleNotFoundError as error:
        raise MissingExtraError("bm25s", extra="bm25", purpose="BM25") from error
    inverted = bm25s.BM25()
    inverted.index(terms, show_progress=False)
    return inverted


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
        source="Robertson & Zaragoza 2009",
    )
)
