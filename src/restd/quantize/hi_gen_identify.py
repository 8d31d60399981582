"""Identifiers that begin with the category path and go on with clusters inside the category, as in Hi-Gen.

The original learns item vectors from relevance and from business figures such as click rates. Here they are the
encoder's: no such figures are known, and an index should not depend on which items were popular when it was built.
"""

import numpy as np
import torch
from jaxtyping import Float, Float16, Int64

from restd.codes import nearest
from restd.codes.codebooks import MAX_CODES
from restd.codes.keys import radices
from restd.errors import ConfigError
from restd.progress import progress
from restd.quantize.hi_gen import HiGenConfig
from restd.quantize.kmeans_fit import fit_level, principal_axes
from restd.quantize.quantizer import refuse_identical, to_latents, unit_length
from restd.quantize.settings import level_sizes
from restd.quantize.signals import Identifiers, Signals


def identify_by_categories(
    vectors: Float[np.ndarray, "item input"], config: HiGenConfig, signals: Signals
) -> Identifiers:
    """Category path, clusters inside the deepest category, and a number for items that still agree.

    A category has the same code wherever it occurs. Numbers of clusters mean something below their own prefix only.

    >>> from restd.data.categories import Categories
    >>> points = np.array([[1, 0], [0, 1], [0, 1], [1, 1]], np.float32)
    >>> categories = Categories.of_paths([["Mugs"], ["Mugs"], ["Mugs"], ["Desks"]], depth=1)
    >>> config = HiGenConfig(levels=2, codes=3)
    >>> identify_by_categories(points, config, Signals(categories)).sids.tolist()
    [[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0]]
    """
    assert signals.categories is not None
    depth = min(config.depth, config.levels, signals.categories.depth)
    clusters = config.levels - depth
    most = level_sizes(config.codes, levels=clusters, items=len(vectors)) if clusters else ()
    points = _project(vectors, config)
    columns = list(signals.categories.of_item[:, :depth].T)
    group = columns[-1]
    for level, size in enumerate(most):
        column = _clusters(points.astype(np.float32), group, size, config, seed=config.seed + level)
        group = np.unique(group * size + column, return_inverse=True)[1]
        columns.append(column)
    columns.append(_numbers(group))
    sizes = (*signals.categories.counts[:depth], *(int(column.max()) + 1 for column in columns[depth:]))
    _refuse_too_large(sizes, depth=depth)
    return Identifiers(np.stack(columns, axis=1).astype(np.int16), sizes, points=points)


def _project(vectors: Float[np.ndarray, "item input"], config: HiGenConfig) -> Float16[np.ndarray, "item dim"]:
    """Unit length, centred, and reduced where vectors are wider than `dim`."""
    prepared = unit_length(vectors)
    refuse_identical(prepared)
    centred = prepared - prepared.mean(axis=0, dtype=np.float64).astype(np.float32)
    if centred.shape[1] > config.dim:
        centred = centred @ principal_axes(_sample(centred, config.sample, seed=config.seed), config.dim).T
    return to_latents(centred)


def _sample(points: Float[np.ndarray, "item dim"], most: int, *, seed: int) -> Float[np.ndarray, "chosen dim"]:
    if len(points) <= most:
        return points
    return points[np.sort(np.random.default_rng(seed).choice(len(points), most, replace=False))]


def _clusters(
    points: Float[np.ndarray, "item dim"],
    group: Int64[np.ndarray, "item"],
    size: int,
    config: HiGenConfig,
    *,
    seed: int,
) -> Int64[np.ndarray, "item"]:
    """Cluster of each item among the items of its group."""
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order])) + 1
    codes = np.zeros(len(points), np.int64)
    with progress("Clustering categories", total=len(points)) as advance:
        for rows in np.split(order, starts):
            codes[rows] = _cluster(points[rows], size, config, seed=seed)
            advance(len(rows))
    return codes


def _cluster(
    points: Float[np.ndarray, "item dim"], size: int, config: HiGenConfig, *, seed: int
) -> Int64[np.ndarray, "item"]:
    if len(points) <= size:  # as many clusters as there are different vectors
        return np.unique(points, axis=0, return_inverse=True)[1].reshape(-1)
    book = fit_level(_sample(points, config.sample, seed=seed), size, iterations=config.iterations, seed=seed)
    return nearest(torch.from_numpy(points), torch.from_numpy(book)).numpy()


def _numbers(group: Int64[np.ndarray, "item"]) -> Int64[np.ndarray, "item"]:
    """Place of each item among those of its group, in the order of the catalogue."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    first = np.searchsorted(ordered, ordered)
    numbers = np.empty(len(group), np.int64)
    numbers[order] = np.arange(len(group)) - first
    return numbers


def _refuse_too_large(sizes: tuple[int, ...], *, depth: int) -> None:
    """A code is stored in sixteen bits, and a whole identifier must fit a key of 64."""
    for level, size in enumerate(sizes):
        if size > MAX_CODES:
            what = "categories at this depth" if level < depth else "items that share category and clusters"
            remedy = "Lower hi-gen.depth" if level < depth else "Raise hi-gen.codes or hi-gen.levels"
            raise ConfigError(
                f"Level {level + 1} would need {size:,} codes, for as many {what}; a level has at most "
                f"{MAX_CODES:,}. {remedy}."
            )
    radices(sizes)
