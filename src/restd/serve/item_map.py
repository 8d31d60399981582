"""Items as points: the first two principal axes of the latents, and where a query is among them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

from restd.data import History, Query
from restd.encode import Encoder
from restd.errors import ConfigError
from restd.quantize import query_latents
from restd.search import SearchOptions
from restd.search.snapshot_search import SnapshotSearch
from restd.snapshot import Snapshot

_SAMPLE = 50_000
"""Items that the axes are computed from, spread evenly over the Semantic IDs."""
AXES = "first two principal axes of the latents"


@dataclass(frozen=True, slots=True, eq=False)
class MapAxes:
    """Where the map's origin is in the space of the latents, and its two axes."""

    centre: Float[np.ndarray, "dim"]
    axes: Float[np.ndarray, "dim 2"]
    shares: tuple[float, float]
    """Of the variance of the latents, along each axis."""

    @classmethod
    def of(cls, snapshot: Snapshot, *, sample: int = _SAMPLE) -> "MapAxes":
        """Compute the axes; an error where the index has no latents."""
        latents, _ = snapshot.index.latents_and_codebooks()
        points = latents[np.sort(spread_rows(snapshot, sample))].astype(np.float64)
        centre = points.mean(axis=0)
        points -= centre
        variances, directions = np.linalg.eigh(points.T @ points / len(points))
        variances, directions = np.maximum(variances[::-1], 0), directions[:, ::-1]
        if directions.shape[1] == 1:  # a line is drawn as one
            variances, directions = np.append(variances, 0.0), np.column_stack([directions, np.zeros(1)])
        axes = directions[:, :2]
        largest = axes[np.abs(axes).argmax(axis=0), [0, 1]]
        axes = axes * np.where(largest < 0, -1.0, 1.0)  # an axis has no sign of its own
        first, second = (variances[:2] / max(variances.sum(), 1e-300)).tolist()
        return cls(centre, axes, (first, second))

    def place(self, vectors: Float[np.ndarray, "item dim"]) -> Float[np.ndarray, "item 2"]:
        """Coordinates of latents."""
        return (vectors.astype(np.float64) - self.centre) @ self.axes


@dataclass(frozen=True, slots=True, eq=False)
class ItemMap:
    """Points of some items."""

    rows: Int64[np.ndarray, "point"]
    coordinates: Float[np.ndarray, "point 2"]
    first_codes: Int64[np.ndarray, "point"]
    sampled: bool
    """Whether there are more items."""

    @classmethod
    def of(cls, snapshot: Snapshot, axes: MapAxes, *, points: int) -> "ItemMap":
        """Place items spread evenly over the Semantic IDs, so that every part of the catalogue has its share."""
        latents, _ = snapshot.index.latents_and_codebooks()
        rows = np.sort(spread_rows(snapshot, points))
        return cls(rows, axes.place(latents[rows]), snapshot.sids[rows, 0].astype(np.int64), len(rows) < len(snapshot))


@dataclass(frozen=True, slots=True)
class QueryPoint:
    """Where a query is on the map."""

    x: float
    y: float
    source: str
    """How it was found."""


def spread_rows(snapshot: Snapshot, count: int) -> Int64[np.ndarray, "_"]:
    """Rows of items at even distances in the order of Semantic IDs; all of them where there are fewer."""
    rows = snapshot.index.trie.rows
    count = min(count, len(rows))
    return rows.numpy()[np.arange(count) * len(rows) // count].astype(np.int64)


def place_query(
    search: SnapshotSearch, axes: MapAxes, query: Query, options: SearchOptions, *, encoder: Callable[[], Encoder]
) -> QueryPoint:
    """Where the heads expect the answer, or without heads where the query itself is.

    Args:
        search: model, snapshot and heads.
        axes: of the map.
        query: a text or a history.
        options: settled options.
        encoder: gives the encoder of the index; only called where it is needed.

    Raises:
        ConfigError: the query has no point, with the reason.
    """
    if search.heads is not None:
        latent, source = search.expected_latent(query, options), "where the first horizon head expects the answer"
    elif isinstance(query, History):
        raise ConfigError("A history has a point only where the model has horizon heads; train with --objective restd.")
    elif search.snapshot.index.quantizer is None:
        why = search.snapshot.index.why_no_quantizer
        raise ConfigError(f"The index {why}, so queries cannot be projected into its space.")
    else:
        vectors = np.asarray(encoder().encode([query]))
        latent = query_latents(search.snapshot.index.quantizer, vectors)[0].astype(np.float64)
        source = "the query's embedding, aligned and projected as the index does it"
    x, y = axes.place(latent[None])[0].tolist()
    return QueryPoint(x, y, source)
