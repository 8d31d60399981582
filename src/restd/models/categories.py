"""Categories of items at a few depths, from the catalogue or induced, such that every item has one at each depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int64

from restd.artifacts import Artifact
from restd.artifacts.store import Writer
from restd.codes import nearest
from restd.errors import ConfigError
from restd.quantize import fit_level

OTHER = "(other)"
BRANCHING = (16, 8, 4)
_SEPARATOR = " > "


@dataclass(frozen=True, slots=True, eq=False)
class Categories:
    """Which category an item has at each depth.

    An item whose path ends early is in its parent's own `(other)` bucket from there on, so that a router that chooses
    among the deepest categories can reach every item.

    >>> categories = Categories.of_paths([["Home", "Lamp"], ["Home"], []], depth=2)
    >>> categories.names[1]
    ('(other) > (other)', 'Home > (other)', 'Home > Lamp')
    >>> categories.of_item.tolist()
    [[1, 2], [1, 1], [0, 0]]
    """

    of_item: Int64[np.ndarray, "item depth"]
    names: tuple[tuple[str, ...], ...]
    """Full paths of the categories of each depth; their place is their number."""
    induced: bool = False

    @classmethod
    def of_paths(cls, paths: Sequence[Sequence[str]], *, depth: int, induced: bool = False) -> "Categories":
        """Number the categories of each depth in the order of their paths."""
        whole = [[*path[:depth], *[OTHER] * (depth - len(path))] for path in paths]
        columns, names = [], []
        for level in range(1, depth + 1):
            parts = [tuple(path[:level]) for path in whole]
            known = sorted(set(parts))
            number = {path: place for place, path in enumerate(known)}
            columns.append([number[path] for path in parts])
            names.append(tuple(map(_SEPARATOR.join, known)))
        return cls(np.array(columns, np.int64).T.reshape(len(paths), depth), tuple(names), induced)

    @property
    def depth(self) -> int:
        """How many depths there are."""
        return len(self.names)

    @property
    def counts(self) -> tuple[int, ...]:
        """Categories of each depth."""
        return tuple(len(names) for names in self.names)

    def write(self, writer: Writer, ids: pa.StringArray) -> None:
        """Put the categories of the items `ids` into an artefact."""
        columns = {f"depth_{depth}": self.of_item[:, depth] for depth in range(self.depth)}
        items = pa.table({"id": ids, **columns})
        depths = [depth for depth, names in enumerate(self.names) for _ in names]
        names = pa.table({"depth": depths, "name": [name for names in self.names for name in names]})
        writer.table("categories", items.to_batches(), schema=items.schema)
        writer.table("category-names", names.to_batches(), schema=names.schema)

    @classmethod
    def read(cls, artifact: Artifact, *, induced: bool) -> tuple["Categories", pa.StringArray]:
        """Read what `write` wrote, and the ids of the items."""
        items, named = artifact.table("categories"), artifact.table("category-names").to_pydict()
        depth = items.num_columns - 1
        of_item = np.stack([items[f"depth_{level}"].to_numpy() for level in range(depth)], axis=1)
        names: list[list[str]] = [[] for _ in range(depth)]
        for level, name in zip(named["depth"], named["name"], strict=True):
            names[level].append(name)
        return cls(of_item, tuple(map(tuple, names)), induced), items["id"].combine_chunks()

    def members(self, chosen: Int64[np.ndarray, "chosen"]) -> Bool[np.ndarray, "item"]:
        """Items of any of the chosen deepest categories."""
        return np.isin(self.of_item[:, -1], chosen)


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
