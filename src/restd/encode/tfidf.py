"""An encoder without pretrained weights: TF-IDF over words, made dense by a truncated SVD."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from restd.artifacts import hash_json
from restd.data.text import words
from restd.encode.encoders import ENCODERS, TFIDF_SVD, EncoderEntry
from restd.errors import DataError

_VOCABULARY = 65_536


class TfidfSvdEncoder:
    """TF-IDF and SVD fitted to a catalogue's own words: deterministic and fast, without knowledge of synonyms."""

    def __init__(self, vocabulary: Sequence[str], idf: np.ndarray, components: np.ndarray) -> None:
        self._vocabulary = list(vocabulary)
        self._components = np.ascontiguousarray(components, np.float32)
        index = {word: column for column, word in enumerate(self._vocabulary)}
        self._vectorizer = _vectorizer(vocabulary=index)
        self._vectorizer.idf_ = np.asarray(idf, np.float32)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return len(self._components)

    @property
    def identity(self) -> dict[str, Any]:
        """Name, width and a hash of vocabulary, word weights and components."""
        tensors = {name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in self._tensors().items()}
        return {"name": TFIDF_SVD, "dim": self.dim, "content": hash_json([self._vocabulary, tensors])}

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        """Encode texts, one unit vector each; a text without a known word gives zeros."""
        vectors = self._vectorizer.transform(texts) @ self._components.T
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)

    def state(self) -> tuple[dict[str, np.ndarray], pa.Table]:
        """Return what encodes the same way again: tensors and the vocabulary."""
        return self._tensors(), pa.table({"word": self._vocabulary})

    def _tensors(self) -> dict[str, np.ndarray]:
        return {"idf": np.asarray(self._vectorizer.idf_, np.float32), "components": self._components}

    @classmethod
    def from_state(cls, tensors: Mapping[str, np.ndarray], vocabulary: pa.Table) -> "TfidfSvdEncoder":
        """Restore a fitted encoder."""
        return cls(vocabulary["word"].to_pylist(), tensors["idf"], tensors["components"])


def _vectorizer(**options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(**{"analyzer": words, "sublinear_tf": True, "dtype": np.float32, **options})


def fit_tfidf_svd(texts: Sequence[str], *, dim: int = 128, seed: int = 0) -> TfidfSvdEncoder:
    """Fit the weightless encoder to (a sample of) a catalogue's texts.

    >>> encoder = fit_tfidf_svd(["red kettle", "blue kettle", "red mug", "blue mug"], dim=2)
    >>> encoder.encode(["red kettle", "?"]).shape
    (2, 2)
    """
    from sklearn.utils.extmath import randomized_svd

    vectorizer = _vectorizer(max_features=_VOCABULARY)
    try:
        weights = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise DataError(
            f"None of the {len(texts):,} texts contains a word. {TFIDF_SVD} needs words; choose another --encoder."
        ) from error
    width = min(dim, *(size - 1 for size in weights.shape))
    if width < 1:
        raise DataError(f"{TFIDF_SVD} needs at least two texts and two different words; choose another --encoder.")
    _, _, components = randomized_svd(weights, width, random_state=seed)
    vocabulary = vectorizer.get_feature_names_out().tolist()
    return TfidfSvdEncoder(vocabulary, np.asarray(vectorizer.idf_), np.asarray(components))


ENCODERS.add(
    EncoderEntry(
        TFIDF_SVD,
        "TF-IDF and SVD fitted to the catalogue's own words, up to 128 wide; any language, no weights to install.",
        fit=lambda texts, seed: fit_tfidf_svd(texts, seed=seed),
        restore=TfidfSvdEncoder.from_state,
        source="Deerwester et al. 1990, Indexing by Latent Semantic Analysis",
    )
)
