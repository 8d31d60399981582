"""BM25, the lexical baseline, for any of our languages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from restd.data import Catalog
from restd.data.text import words
from restd.errors import MissingExtraError


@dataclass(frozen=True, slots=True, eq=False)
class Bm25:
    """An index of every item's words."""

    retriever: Any
    items: int

    @classmethod
    def of(cls, catalog: Catalog) -> "Bm25":
        """Index a catalogue's texts: accents folded, Japanese as overlapping pairs of characters."""
        return cls.of_texts([text for batch in catalog.batches() for text in catalog.texts(batch).to_pylist()])

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> "Bm25":
        """Index texts, a row each."""
        try:
            import bm25s
        except ModuleNotFoundError as error:
            raise MissingExtraError("bm25s", extra="bm25", purpose="BM25") from error
        tokens = [words(text) for text in texts]
        retriever = bm25s.BM25()
        retriever.index(tokens, show_progress=False)
        return cls(retriever, len(tokens))

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their scores, best first; -1 where fewer items share a word with the query."""
        tokens = [words(query) for query in queries]
        found, scores = self.retriever.retrieve(tokens, k=min(k, self.items), show_progress=False)
        return np.where(scores > 0, found, -1).astype(np.int64), np.where(scores > 0, scores, -np.inf)
