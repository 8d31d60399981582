"""Codebooks, and what follows from them alone: nearest codes, residuals, reconstructions."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from jaxtyping import Float, Float16, Int, Int16

from restd.errors import ConfigError

MAX_CODES = np.iinfo(np.int16).max
_ROWS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Codebooks:
    """Codewords of every level. Levels may differ in size: shorter ones are padded with zeros that `sizes` masks."""

    values: Float[np.ndarray, "level code dim"]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, books: Sequence[Float[np.ndarray, "_ dim"]]) -> "Codebooks":
        """Stack codebooks of any sizes.

        >>> Codebooks.of([np.ones((4, 2)), np.ones((8, 2))]).values.shape
        (2, 8, 2)
        """
        sizes = tuple(len(book) for book in books)
        if not books or min(sizes) < 1 or max(sizes) > MAX_CODES:
            raise ConfigError(
                f"Codebooks of sizes {sizes} cannot be used; wanted 1 to {MAX_CODES} codes at each level."
            )
        values = np.zeros((len(books), max(sizes), books[0].shape[1]), np.float32)
        for level, book in enumerate(books):
            values[level, : len(book)] = book
        return cls(values, sizes)

    @property
    def levels(self) -> int:
        """Number of levels."""
        return len(self.sizes)

    @property
    def dim(self) -> int:
        """Width of a codeword."""
        return self.values.shape[2]

    def level(self, level: int) -> Float[np.ndarray, "code dim"]:
        """Codewords of one level, without padding."""
        return self.values[level, : self.sizes[level]]

    def fingerprint(self) -> str:
        """Hash of sizes and values: what a trained model is bound to."""
        digest = hashlib.sha256(repr(self.sizes).encode())
        digest.update(np.ascontiguousarray(self.values, "<f4").tobytes())
        return digest.hexdigest()


def nearest(
    vectors: Float[np.ndarray, "item dim"], codewords: Float[np.ndarray, "code dim"]
) -> Int[np.ndarray, "item"]:
    """Index of each vector's nearest codeword in squared Euclidean distance; ties go to the smaller index."""
    index = faiss.IndexFlatL2(codewords.shape[1])
    index.add(np.ascontiguousarray(codewords, np.float32))
    return index.search(np.ascontiguousarray(vectors, np.float32), 1)[1][:, 0]


def assign(latents: Float16[np.ndarray, "item dim"], codebooks: Codebooks) -> Int16[np.ndarray, "item level"]:
    """Greedy residual codes: at each level the codeword nearest to what the levels before left over."""
    codes = np.empty((len(latents), codebooks.levels), np.int16)
    for start in range(0, len(latents), _ROWS):
        rows = slice(start, start + _ROWS)
        residual = latents[rows].astype(np.float32)
        for level in range(codebooks.levels):
            codewords = codebooks.level(level)
            codes[rows, level] = nearest(residual, codewords)
            residual -= codewords[codes[rows, level]]
    return codes


def trajectory(
    latents: Float[np.ndarray, "item dim"], codes: Int[np.ndarray, "item level"], codebooks: Codebooks
) -> Float[np.ndarray, "item step dim"]:
    """Residuals r_0 .. r_L along given codes, r_0 the latent itself; codes beyond the codebooks (a suffix) are ignored.

    >>> books = Codebooks.of([np.array([[1.0], [4.0]]), np.array([[0.0], [0.5]])])
    >>> trajectory(np.array([[4.5]], np.float16), np.array([[1, 1]]), books).tolist()
    [[[4.5], [0.5], [0.0]]]
    """
    steps = np.empty((len(latents), codebooks.levels + 1, codebooks.dim), np.float32)
    steps[:, 0] = latents
    for level in range(codebooks.levels):
        steps[:, level + 1] = steps[:, level] - codebooks.values[level, codes[:, level]]
    return steps


def last_residuals(
    latents: Float[np.ndarray, "item dim"], codes: Int[np.ndarray, "item level"], codebooks: Codebooks
) -> Float[np.ndarray, "item dim"]:
    """r_L alone: what the codes fail to say of each latent."""
    residual = latents.astype(np.float32)
    for level in range(codebooks.levels):
        residual -= codebooks.values[level, codes[:, level]]
    return residual


def check_rows(codes: Int[np.ndarray, "item level"], codebooks: Codebooks) -> None:
    """Refuse codes outside their codebook."""
    for level, size in enumerate(codebooks.sizes):
        low, high = int(codes[:, level].min(initial=0)), int(codes[:, level].max(initial=0))
        if low < 0 or high >= size:
            wrong = low if low < 0 else high
            raise ConfigError(
                f"Code {wrong} at level {level + 1} is outside its codebook, which holds 0 to {size - 1}."
            )
