"""A trained dual encoder as a ranker: exact inner products of queries with the vectors of all items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import faiss
import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int, Int64

from restd.artifacts import Artifact, create
from restd.config import plain
from restd.errors import ArtifactError, DataError
from restd.rankers.dual_data import TextReader
from restd.rankers.dual_network import DualNetwork
from restd.rankers.dual_settings import DualConfig
from restd.snapshot import Snapshot

KIND = "dual-encoder"
SCHEMA = 1


@dataclass(frozen=True, slots=True, eq=False)
class DualEncoder:
    """Both towers, and the vectors of the items that one of them made.

    Args:
        network: both towers.
        readers: how texts of queries, and of items, reach them.
        config: settings.
        ids: of the items.
        vectors: theirs, in a faiss index; None before training.
        summary: how its training ended.
        snapshot_hash: of the snapshot whose rows the items are.
    """

    network: DualNetwork
    readers: tuple[TextReader, TextReader]
    config: DualConfig
    ids: pa.StringArray
    vectors: Any
    summary: Mapping[str, Any]
    snapshot_hash: str
    name: ClassVar[str] = "dpr"

    def restored(self, artifact: Artifact, snapshot: Snapshot) -> "DualEncoder":
        """The trained weights and item vectors of an artefact; one of other items is refused."""
        ids = artifact.table("items")["id"].combine_chunks()
        if not ids.equals(snapshot.ids):
            raise ArtifactError(
                f"{artifact.folder} ranks {len(ids):,} items that are not the snapshot's {len(snapshot):,}, or in "
                "another order; train it again for this index."
            )
        weights = artifact.tensors("weights")
        self.network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        self.network.eval()
        return self._with(snapshot, _searchable(artifact.tensors("vectors")["vectors"]), artifact.manifest.settings)

    def _with(self, snapshot: Snapshot, vectors: Any, settings: Mapping[str, Any]) -> "DualEncoder":
        return type(self)(
            self.network, self.readers, self.config, snapshot.ids, vectors, settings["summary"], snapshot.hash
        )

    def save(self, folder: Path, vectors: Float[np.ndarray, "item dim"], *, identity: str) -> None:
        """Write the network as an artefact, with vectors of the items; `identity` is the hash of what decided it."""
        settings = {"config": plain(self.config), "identity": identity, "summary": dict(self.summary)}
        with create(folder, kind=KIND, schema=SCHEMA, settings=settings) as writer:
            state = self.network.state_dict()
            writer.tensors("weights", {name: value.detach().cpu().numpy() for name, value in state.items()})
            writer.tensors("vectors", {"vectors": vectors})
            writer.table("items", [pa.record_batch({"id": self.ids})])

    def rank(
        self, queries: Sequence[str], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their scores, best first."""
        if not queries:
            raise DataError("No query was given; expected at least one.")
        scores, rows = self.vectors.search(self._encode(queries, side=0), min(k, self.vectors.ntotal))
        return rows, scores

    def scores(
        self, queries: Sequence[str], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """Scores of chosen items."""
        vectors = self.vectors.reconstruct_batch(np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)
        return np.einsum("qcd,qd->qc", vectors, self._encode(queries, side=0))

    def following(
        self, snapshot: Snapshot, kept: Int64[np.ndarray, "_"], vectors: Float[np.ndarray, "added input"] | None
    ) -> "DualEncoder":
        """The same for a snapshot that follows its own; new items are read by the tower as it is."""
        following = faiss.IndexFlatIP(self.vectors.d)
        following.add(self.vectors.reconstruct_batch(kept))
        if vectors is not None:
            texts = snapshot.items.texts()[len(kept) :] if self._reads_item_texts else [""] * len(vectors)
            following.add(self._encode(texts, side=1, vectors=np.asarray(vectors, np.float32)))
        return self._with(snapshot, following, {"summary": self.summary})

    @property
    def _reads_item_texts(self) -> bool:
        return self.readers[1].tokens or self.readers[1].live

    def _encode(
        self, texts: Sequence[str], *, side: int, vectors: Float[np.ndarray, "text input"] | None = None
    ) -> Float[np.ndarray, "text dim"]:
        """Vectors of queries (side 0) or items (side 1)."""
        batch = self.readers[side].read(list(texts), vectors=vectors).batch(np.arange(len(texts)))
        self.network.eval()
        with torch.inference_mode():
            made = self.network.items(batch) if side else self.network.queries(batch).vectors
        return np.ascontiguousarray(made.cpu().numpy(), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class LaserEncoder(DualEncoder):
    """The same with queries that think."""

    name: ClassVar[str] = "laser"


def _searchable(vectors: Float[np.ndarray, "item dim"]) -> Any:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors, np.float32))
    return index
