"""Residual k-means: an optional projection, then one k-means a level on what the levels before left over."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Float16

from restd.errors import ConfigError
from restd.progress import progress
from restd.quantize.codebooks import Codebooks, nearest
from restd.quantize.quantizer import AUTO_CODES, check_shape, level_sizes, refuse_identical, unit_length

KIND = "kmeans"
_RESEED_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class KMeansConfig:
    """How to fit residual k-means.

    Args:
        levels: number of codes in a Semantic ID.
        codes: codes per level, one number or one a level; 0 chooses by catalogue size.
        dim: width after PCA; embeddings that are no wider are used as they are.
        normalize: scale embeddings to length one first.
        iterations: rounds of k-means per level.
        sample: fit on at most this many items.
        seed: decides sample, initial centroids and reseeding.
    """

    levels: int = 4
    codes: int | tuple[int, ...] = AUTO_CODES
    dim: int = 32
    normalize: bool = True
    iterations: int = 25
    sample: int = 262_144
    seed: int = 0

    def __post_init__(self) -> None:
        check_shape(levels=self.levels, dim=self.dim, sample=self.sample, seed=self.seed)
        if self.iterations < 1:
            raise ConfigError(f"iterations = {self.iterations} cannot be used; wanted at least 1.")


@dataclass(frozen=True, slots=True, eq=False)
class KMeansQuantizer:
    """PCA (where the input is wider than `dim`) and codebooks."""

    codebooks: Codebooks
    mean: Float[np.ndarray, "input"]
    basis: Float[np.ndarray, "dim input"] | None
    normalize: bool

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values of the state."""
        return {"kind": KIND, "normalize": self.normalize}

    def prepared(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "item input"]:
        """Scale embeddings to length one if the fit did."""
        return unit_length(vectors) if self.normalize else np.asarray(vectors, np.float32)

    def latents(self, vectors: Float[np.ndarray, "item input"]) -> Float16[np.ndarray, "item dim"]:
        """Centre, project, round to float16."""
        return _project(self.prepared(vectors), self.mean, self.basis)

    def reconstruct(self, latents: Float[np.ndarray, "item dim"]) -> Float[np.ndarray, "item input"]:
        """Undo the projection as far as it can be undone."""
        values = latents.astype(np.float32)
        return (values if self.basis is None else values @ self.basis) + self.mean

    def tensors(self) -> dict[str, np.ndarray]:
        """Mean and basis."""
        found = {"mean": self.mean}
        return found if self.basis is None else {**found, "basis": self.basis}

    @classmethod
    def from_state(
        cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray], codebooks: Codebooks
    ) -> "KMeansQuantizer":
        """Restore from `settings`, `tensors` and codebooks."""
        return cls(codebooks, tensors["mean"], tensors.get("basis"), settings["normalize"])


def fit_kmeans(vectors: Float[np.ndarray, "item input"], config: KMeansConfig, *, items: int) -> KMeansQuantizer:
    """Fit projection and codebooks to a sample of a catalogue of `items` items.

    >>> points = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    >>> fit_kmeans(points, KMeansConfig(levels=2, codes=4, dim=4), items=200).codebooks.values.shape
    (2, 4, 4)
    """
    prepared = unit_length(vectors) if config.normalize else np.asarray(vectors, np.float32)
    refuse_identical(prepared)
    sizes = level_sizes(config.codes, levels=config.levels, items=min(items, len(vectors)))
    mean = prepared.mean(axis=0, dtype=np.float64).astype(np.float32)
    basis = _principal_axes(prepared - mean, config.dim) if prepared.shape[1] > config.dim else None
    residual = _project(prepared, mean, basis).astype(np.float32)
    books = []
    with progress("Fitting codebooks", total=config.levels) as advance:
        for level, size in enumerate(sizes):
            book = fit_level(residual, size, config=config, seed=config.seed + level)
            residual = residual - book[nearest(residual, book)]
            books.append(book)
            advance(1, error=float(np.square(residual).sum(1).mean()))
    return KMeansQuantizer(Codebooks.of(books), mean, basis, config.normalize)


def _project(
    prepared: Float[np.ndarray, "item input"], mean: np.ndarray, basis: np.ndarray | None
) -> Float16[np.ndarray, "item dim"]:
    centred = prepared - mean
    return (centred if basis is None else centred @ basis.T).astype(np.float16)


def _principal_axes(centred: Float[np.ndarray, "item input"], dim: int) -> Float[np.ndarray, "dim input"]:
    covariance = centred.T.astype(np.float64) @ centred.astype(np.float64) / len(centred)
    axes = np.linalg.eigh(covariance)[1][:, ::-1][:, :dim].T
    signs = np.sign(axes[np.arange(dim), np.abs(axes).argmax(axis=1)])  # an eigenvector's sign is arbitrary: fix it
    return np.ascontiguousarray(axes * signs[:, None], np.float32)


def fit_level(
    residual: Float[np.ndarray, "item dim"], size: int, *, config: KMeansConfig, seed: int
) -> Float[np.ndarray, "code dim"]:
    """Centroids of one level, every one of them the nearest of some item where the items allow it."""
    kmeans = faiss.Kmeans(
        residual.shape[1],
        size,
        niter=config.iterations,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=max(256, len(residual) // size + 1),  # the sample was drawn already
    )
    kmeans.train(np.ascontiguousarray(residual))
    return _reseed_empty(residual, np.array(kmeans.centroids))


def _reseed_empty(
    residual: Float[np.ndarray, "item dim"], book: Float[np.ndarray, "code dim"]
) -> Float[np.ndarray, "code dim"]:
    """Move codewords that no item chose to the items worst served; stops when all are used or no item is left over."""
    for _ in range(_RESEED_ROUNDS):
        codes = nearest(residual, book)
        empty = np.flatnonzero(np.bincount(codes, minlength=len(book)) == 0)
        errors = np.square(residual - book[codes]).sum(1)
        worst = np.argsort(-errors, kind="stable")[: len(empty)]
        worst = worst[errors[worst] > 0]
        if len(worst) == 0:
            break
        book[empty[: len(worst)]] = residual[worst]
    return book
