"""The identifiers of DSI: arbitrary numbers, and paths of a hierarchical k-means."""

import numpy as np
import torch
from jaxtyping import Float, Int

from restd.codes import nearest
from restd.codes.ending import stacked
from restd.codes.keys import radices, unpack
from restd.errors import ConfigError
from restd.progress import progress
from restd.quantize.dsi import DsiNaiveConfig, DsiSemanticConfig
from restd.quantize.kmeans_fit import fit_level
from restd.quantize.signals import Identifiers, Signals

_RESTARTS = 10
"""Runs of each k-means, of which the one with the least error is kept."""


def number_items(
    vectors: Float[np.ndarray, "item dim"], config: DsiNaiveConfig, signals: Signals | None = None
) -> Identifiers:
    """Number the items in random order; a level has one digit of the number.

    >>> made = number_items(np.zeros((120, 2), np.float32), DsiNaiveConfig())
    >>> made.sizes, len(np.unique(made.sids, axis=0)), int(made.sids[:, 0].max())
    ((10, 10, 10), 120, 1)
    """
    digits = 1
    while config.base**digits < len(vectors):
        digits += 1
    sizes = (config.base,) * digits
    numbers = np.random.default_rng(config.seed).permutation(len(vectors)).astype(np.int64)
    return Identifiers(unpack(numbers, sizes), sizes)


def cluster_items(
    vectors: Float[np.ndarray, "item dim"], config: DsiSemanticConfig, signals: Signals | None = None
) -> Identifiers:
    """The path of clusters to each item, and its place among the items of the last one, in the catalogue's order.

    Codes start at 1, since paths are of unequal length; where all are equally long, at 0.

    >>> points = np.repeat(np.eye(2, dtype=np.float32), 3, axis=0) + 0.01 * np.arange(6)[:, None].astype(np.float32)
    >>> cluster_items(points, DsiSemanticConfig(branch=2, leaf=3)).sids.tolist()
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    """
    paths: list[tuple[int, ...]] = [()] * len(vectors)
    waiting: list[tuple[tuple[int, ...], np.ndarray]] = [((), np.arange(len(vectors)))]
    with progress("Clustering items", total=len(vectors)) as advance:
        while waiting:
            path, rows = waiting.pop()
            if len(rows) <= config.leaf:
                for place, row in enumerate(rows.tolist(), start=1):
                    paths[row] = (*path, place)
                advance(len(rows))
                continue
            parts = split(vectors[rows], branch=config.branch, seed=config.seed)
            waiting += [((*path, code), rows[part]) for code, part in enumerate(parts, start=1)]
    sids, ends = stacked(paths), len(set(map(len, paths))) > 1
    if not ends:
        sids -= 1
    sizes = tuple(int(code) + 1 for code in sids.max(axis=0))
    try:
        radices(sizes)
    except ConfigError as error:
        raise ConfigError(
            f"Hierarchical k-means splits these items to a depth of {len(sizes)}: {error} Here that means a larger "
            "dsi-semantic.leaf or dsi-semantic.branch."
        ) from error
    return Identifiers(sids.astype(np.int16), sizes, ends)


def split(vectors: Float[np.ndarray, "item dim"], *, branch: int, seed: int) -> list[Int[np.ndarray, "_"]]:
    """Rows of each cluster of a k-means, at least two clusters and none of them empty.

    Items that k-means cannot tell apart, as they have the same vector, are split in their order into equal parts.

    >>> [part.tolist() for part in split(np.ones((5, 3), np.float32), branch=2, seed=0)]
    [[0, 1, 2], [3, 4]]
    """
    count = min(branch, len(vectors))
    points = np.ascontiguousarray(vectors, np.float32)
    if (points == points[0]).all():
        return np.array_split(np.arange(len(points)), count)
    # k-means does not mind the unit, faiss minds squares beyond float32; a power of two changes no bit of the others
    points = np.ldexp(points, -int(np.frexp(np.abs(points).max())[1])).astype(np.float32)
    centroids = fit_level(points, count, seed=seed, restarts=_RESTARTS)
    codes = nearest(torch.from_numpy(points), torch.from_numpy(centroids)).numpy()
    parts = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    return parts if len(parts) > 1 else np.array_split(np.arange(len(points)), count)
