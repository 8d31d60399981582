"""Dense retrieval in the index's own space: nearest stored latents, or nearest reconstructions from Semantic IDs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import faiss
import numpy as np
from jaxtyping import Float, Int, Int64

from restd.codes import as_tensor, quantised
from restd.encode import Encoder
from restd.errors import ConfigError, DataError
from restd.index import SidIndex
from restd.index.ball_search import BallSearch
from restd.quantize import Quantizer, query_latents
from restd.rankers.registry import RANKERS, RankerEntry, RankerTask
from restd.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Latent:
    """Points of every item in the space that is quantised; queries are aligned or projected into it."""

    points: Any
    encoder: Encoder
    quantizer: Quantizer
    snapshot_hash: str
    name: ClassVar[str] = "latent"

    @classmethod
    def of(cls, snapshot: Snapshot, encoder: Encoder, *, keep: Literal["latents", "sids"] = "latents") -> "Latent":
        """Take the stored latents, or with `sids` only what the Semantic IDs keep of them."""
        index = snapshot.index
        if index.quantizer is None:
            raise ConfigError(f"This index {index.why_no_quantizer}, so queries cannot be projected into it.")
        points = reconstructions(index) if keep == "sids" else index.latents_and_codebooks()[0].astype(np.float32)
        if index.latents_and_codebooks()[1].space != "euclidean":
            return cls(BallSearch(points), encoder, index.quantizer, snapshot.hash)
        nearest = faiss.IndexFlatL2(points.shape[1])
        nearest.add(np.ascontiguousarray(points))
        return cls(nearest, encoder, index.quantizer, snapshot.hash)

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the nearest items and their negative squared distances, best first."""
        if not queries:
            raise DataError("No query was given; expected at least one.")
        distances, rows = self.points.search(self._project(queries), min(k, self.points.ntotal))
        return rows, -distances

    def scores(
        self, queries: Sequence[str], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """Negative squared distances of chosen items."""
        asked = self._project(queries)
        if isinstance(self.points, BallSearch):
            return -self.points.distances(asked, np.maximum(rows, 0))
        points = self.points.reconstruct_batch(np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)
        return -np.square(points - asked[:, None]).sum(axis=-1)

    def following(
        self, snapshot: Snapshot, kept: Int64[np.ndarray, "_"], vectors: Float[np.ndarray, "added input"] | None
    ) -> "Latent":
        """The same for a snapshot that follows its own; the index has the new items' latents."""
        return Latent.of(snapshot, self.encoder)

    def _project(self, queries: Sequence[str]) -> Float[np.ndarray, "query dim"]:
        vectors = np.asarray(self.encoder.encode(list(queries)))
        return np.ascontiguousarray(query_latents(self.quantizer, vectors), np.float32)


def reconstructions(index: SidIndex) -> Float[np.ndarray, "item dim"]:
    """Sums of every item's stored codewords: all that its Semantic ID keeps of its latent."""
    latents, codebooks = index.latents_and_codebooks()
    return quantised(as_tensor(latents), as_tensor(index.sids), codebooks).numpy()


RANKERS.add(
    RankerEntry(
        "latent",
        "Nearest latents of the index: the query is aligned or projected as the index was, and compared exactly.",
        {
            "search": RankerTask(
                lambda context: Latent.of(context.snapshot, context.encoder()),
                {"search": "exact squared distance to the stored latents"},
            )
        },
    )
)
RANKERS.add(
    RankerEntry(
        "sids",
        "Nearest reconstructions from Semantic IDs: what the codes alone keep of the items, for comparison.",
        {
            "search": RankerTask(
                lambda context: Latent.of(context.snapshot, context.encoder(), keep="sids"),
                {"search": "exact squared distance to the sum of the codewords"},
            )
        },
    )
)
