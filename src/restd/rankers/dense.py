"""Dense retrieval with the catalogue's own encoder: exact inner products of unit vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import faiss
import numpy as np
from jaxtyping import Float, Int, Int64

from restd.encode import Embeddings, Encoder
from restd.errors import DataError
from restd.rankers.registry import RANKERS, RankerContext, RankerEntry, RankerTask, refuse_foreign_embeddings
from restd.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Vectors of every item, and the encoder that made them."""

    vectors: Any
    encoder: Encoder
    snapshot_hash: str
    name: ClassVar[str] = "dense"

    @classmethod
    def of(cls, snapshot: Snapshot, embeddings: Embeddings, *, encoder: Encoder | None = None) -> "Dense":
        """Take the embeddings that `restd index` keeps beside its index; those of another index are refused.

        Args:
            snapshot: the items to rank.
            embeddings: theirs.
            encoder: reads queries; by default the one that made the embeddings.
        """
        refuse_foreign_embeddings(embeddings, snapshot)
        vectors = faiss.IndexFlatIP(embeddings.dim)
        for batch in embeddings.batches():
            vectors.add(unit(batch))
        return cls(vectors, encoder or embeddings.encoder(), snapshot.hash)

    @classmethod
    def by_encoder(cls, context: RankerContext) -> "Dense":
        """The encoder of the index, or the one that the ranker's argument names."""
        if context.argument is None:
            return cls.of(context.snapshot, context.embeddings(), encoder=context.encoder())
        return cls.restore(unit(context.item_vectors()), context.encoder(), context.snapshot)

    @property
    def items(self) -> int:
        """Number of items."""
        return self.vectors.ntotal

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the nearest items and their cosines, best first."""
        if not queries:
            raise DataError("No query was given; expected at least one.")
        scores, rows = self.vectors.search(unit(self.encoder.encode(list(queries))), min(k, self.items))
        return rows, scores

    def scores(
        self, queries: Sequence[str], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """Cosines of chosen items."""
        vectors = self.vectors.reconstruct_batch(np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)
        return np.einsum("qcd,qd->qc", vectors, unit(self.encoder.encode(list(queries))))

    def following(
        self, snapshot: Snapshot, kept: Int64[np.ndarray, "_"], vectors: Float[np.ndarray, "added input"] | None
    ) -> "Dense":
        """The same for a snapshot that follows its own."""
        following = faiss.IndexFlatIP(self.vectors.d)
        following.add(self.vectors.reconstruct_batch(kept))
        if vectors is not None:
            following.add(unit(vectors))
        return Dense(following, self.encoder, snapshot.hash)

    def arrays(self) -> dict[str, np.ndarray]:
        """What a bundle keeps of it: a bundle has no embeddings."""
        return {"vectors": self.vectors.reconstruct_n(0, self.items)}

    @classmethod
    def restore(cls, vectors: Float[np.ndarray, "item dim"], encoder: Encoder, snapshot: Snapshot) -> "Dense":
        """The same from what `arrays` gave."""
        restored = faiss.IndexFlatIP(vectors.shape[1])
        restored.add(vectors)
        return cls(restored, encoder, snapshot.hash)


def unit(vectors: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "row dim"]:
    """Vectors scaled to unit length, as float32; zeros stay zeros."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(length, 1e-12), np.float32)


RANKERS.add(
    RankerEntry(
        "dense",
        "Nearest embeddings, compared exactly: by the index's encoder, or by another one (dense:ENCODER).",
        {
            "search": RankerTask(
                Dense.by_encoder,
                {"search": "exact inner product of unit vectors"},
                restore=lambda arrays, context: Dense.restore(arrays["vectors"], context.encoder(), context.snapshot),
                describe=lambda context: {} if context.argument is None else context.other_encoder().describe(),
            )
        },
        source="Reimers & Gurevych 2019 (Sentence-BERT); the encoder's own paper",
        argument="ENCODER",
    )
)
