"""Residual k-means: an optional projection, then one k-means per level on what the levels before left over."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import torch
from jaxtyping import Float, Float16, Int

from restd.codes import Codebooks, nearest
from restd.progress import progress
from restd.quantize.kmeans import KIND, KMeansConfig
from restd.quantize.quantizer import Stage, refuse_identical, to_latents, unit_length
from restd.quantize.settings import level_sizes

_RESEED_ROUNDS = 8


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
        return {"mean": self.mean} if self.basis is None else {"mean": self.mean, "basis": self.basis}

    def stage(self) -> Stage:
        """The projection as one linear layer."""
        weight = np.eye(len(self.mean), dtype=np.float32) if self.basis is None else self.basis
        return Stage(self.normalize, (weight,), (-weight @ self.mean,))


def restore_kmeans(
    settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray], codebooks: Codebooks
) -> KMeansQuantizer:
    """Restore from the quantiser's settings, its tensors and codebooks."""
    return KMeansQuantizer(codebooks, arrays["mean"], arrays.get("basis"), settings["normalize"])


def fit_kmeans(vectors: Float[np.ndarray, "item input"], config: KMeansConfig, *, items: int) -> KMeansQuantizer:
    """Fit projection and codebooks to a sample of a catalogue of `items` items.

    >>> points = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    >>> fit_kmeans(points, KMeansConfig(levels=2, codes=4, dim=4), items=200).codebooks.sizes
    (4, 4)
    """
    prepared = unit_length(vectors) if config.normalize else np.asarray(vectors, np.float32)
    refuse_identical(prepared)
    sizes = level_sizes(config.codes, levels=config.levels, items=min(items, len(vectors)))
    mean = prepared.mean(axis=0, dtype=np.float64).astype(np.float32)
    basis = principal_axes(prepared - mean, config.dim) if prepared.shape[1] > config.dim else None
    residual = _project(prepared, mean, basis).astype(np.float32)
    books = []
    with progress("Fitting codebooks", total=config.levels) as advance:
        for level, size in enumerate(sizes):
            book = fit_level(residual, size, iterations=config.iterations, seed=config.seed + level)
            residual = residual - book[_nearest(residual, book)]
            books.append(book)
            advance(1, error=float(np.square(residual).sum(1).mean()))
    return KMeansQuantizer(Codebooks.of(books), mean, basis, config.normalize)


def _project(
    prepared: Float[np.ndarray, "item input"], mean: np.ndarray, basis: np.ndarray | None
) -> Float16[np.ndarray, "item dim"]:
    centred = prepared - mean
    return to_latents(centred if basis is None else centred @ basis.T)


def principal_axes(centred: Float[np.ndarray, "item input"], dim: int) -> Float[np.ndarray, "dim input"]:
    """The first principal axes of centred points, one per row."""
    from sklearn.decomposition import PCA

    # in float64, so that rounding decides nothing; rows of zeros, since PCA wants as many items as axes
    points = np.zeros((max(len(centred), dim), centred.shape[1]))
    points[: len(centred)] = centred
    axes = PCA(dim, svd_solver="covariance_eigh", copy=False).fit(points).components_
    return np.ascontiguousarray(axes, np.float32)


def fit_level(
    residual: Float[np.ndarray, "item dim"], size: int, *, seed: int, iterations: int = 25, restarts: int = 1
) -> Float[np.ndarray, "code dim"]:
    """Centroids of one level, every one of them the nearest of some item where the items allow it."""
    kmeans = faiss.Kmeans(
        residual.shape[1],
        size,
        niter=iterations,
        nredo=restarts,
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
        codes = _nearest(residual, book)
        empty = np.flatnonzero(np.bincount(codes, minlength=len(book)) == 0)
        errors = np.square(residual - book[codes]).sum(1)
        worst = np.argsort(-errors, kind="stable")[: len(empty)]
        worst = worst[errors[worst] > 0]
        if len(worst) == 0:
            break
        book[empty[: len(worst)]] = residual[worst]
    return book


def _nearest(residual: Float[np.ndarray, "item dim"], book: Float[np.ndarray, "code dim"]) -> Int[np.ndarray, "item"]:
    return nearest(torch.from_numpy(residual), torch.from_numpy(book)).numpy()
