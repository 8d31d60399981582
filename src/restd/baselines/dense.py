"""Dense retrieval with the catalogue's own encoder: exact inner products of unit vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

from restd.encode import Embeddings, Encoder
from restd.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Vectors of every item, and the encoder that made them."""

    vectors: Any
    encoder: Encoder

    @classmethod
    def of(cls, embeddings: Embeddings) -> "Dense":
        """Take the embeddings `restd index` keeps beside its index."""
        held = faiss.IndexFlatIP(embeddings.dim)
        for batch in embeddings.batches():
            held.add(_unit(batch))
        return cls(held, embeddings.encoder())

    @property
    def items(self) -> int:
        """Number of items."""
        return self.vectors.ntotal

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the nearest items and their cosines, best first."""
        if not queries:
            raise DataError("No query was given; wanted at least one.")
        scores, rows = self.vectors.search(_unit(self.encoder.encode(list(queries))), min(k, self.items))
        return rows, scores


def _unit(vectors: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "row dim"]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(length, 1e-12), np.float32)
