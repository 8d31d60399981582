"""Settings of losses that read categories, and categories for a catalogue that has none."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from restd.codes import nearest
from restd.data.categories import Categories
from restd.errors import ConfigError
from restd.quantize import fit_level

BRANCHING = (16, 8, 4)


@dataclass(frozen=True, slots=True)
class CategorySettings:
    """The section [category]: losses of a backbone that knows categories, and how well it routes.

    Args:
        weight: α, weight of the categories that each latent step should name.
        contrast: β, weight of the contrastive loss with category prototypes.
        temperature: temperature of that contrast.
        paths: how many distinct category paths of a query's positives are used, at most.
        width: categories a query is routed to, for the recall that is reported.
    """

    weight: float = 0.1
    contrast: float = 0.05
    temperature: float = 0.1
    paths: int = 3
    width: int = 3


def induce(
    vectors: Float[np.ndarray, "item dim"], *, branching: Sequence[int] = BRANCHING, seed: int = 0
) -> Categories:
    """Categories for a catalogue that has none: k-means of a view of the items, and again inside each cluster.

    The view must be another than the one whose codes the index holds, or the category is just the first code.
    """
    if not branching or min(branching) < 1:
        raise ConfigError(f"Branching must have numbers of at least 1, such as 16, 8, 4; got {tuple(branching)}.")
    paths: list[list[str]] = [[] for _ in range(len(vectors))]
    groups = [np.arange(len(vectors))]
    for depth, width in enumerate(branching):
        inside = []
        for number, rows in enumerate(groups):
            size = min(width, len(rows))
            points = np.ascontiguousarray(vectors[rows], np.float32)
            book = fit_level(points, size, seed=seed + 1_000 * depth + number)
            cluster = nearest(torch.from_numpy(points), torch.from_numpy(book)).numpy()
            for row, name in zip(rows, cluster, strict=True):
                paths[row].append(f"{name + 1:02d}")
            inside.extend(rows[cluster == name] for name in np.unique(cluster))
        groups = inside
    return Categories.of_paths(paths, depth=len(branching), induced=True)
