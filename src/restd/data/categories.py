"""Categories of items at a few depths, such that every item has one at each depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64

from restd.artifacts import Artifact
from restd.artifacts.store import Writer
from restd.data.catalog import Catalog

OTHER = "(other)"
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

    def only(self, rows: Int64[np.ndarray, "row"]) -> "Categories":
        """Categories of some of the items; names and numbers stay."""
        return Categories(self.of_item[rows], self.names, self.induced)

    def members(self, chosen: Int64[np.ndarray, "chosen"]) -> Bool[np.ndarray, "item"]:
        """Items of any of the chosen deepest categories."""
        return np.isin(self.of_item[:, -1], chosen)


def read_category_paths(catalog: Catalog, ids: pa.StringArray) -> list[list[str]] | None:
    """Category paths of the items `ids`, empty for items without any; None where the catalogue has none at all."""
    paths: dict[str, list[str]] = {}
    for batch in catalog.batches():
        if "category" in batch.schema.names:
            column = batch.column("category").to_pylist()
            paths.update(zip(batch.column("id").to_pylist(), ([*(path or [])] for path in column), strict=True))
    own = [paths.get(item, []) for item in ids.to_pylist()]
    return own if any(own) else None
