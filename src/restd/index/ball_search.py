"""Exact nearest points of the Poincaré ball, with the calls of a faiss index that our rankers use."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from restd.codes import poincare

_PAIRS = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class BallSearch:
    """Points, of which the nearest are found by comparing all.

    >>> search = BallSearch(np.array([[0.0, 0.1], [0.9, 0.0]], np.float32))
    >>> search.search(np.array([[0.5, 0.0]], np.float32), 2)[1].tolist()
    [[0, 1]]
    """

    points: Float[np.ndarray, "item dim"]

    @property
    def ntotal(self) -> int:
        """Number of points."""
        return len(self.points)

    def search(
        self, queries: Float[np.ndarray, "query dim"], k: int
    ) -> tuple[Float[np.ndarray, "query rank"], Int64[np.ndarray, "query rank"]]:
        """Squared distances and rows of the nearest points, ties by row; some queries at a time."""
        points = self._tensor(self.points)
        parts = []
        for part in self._tensor(queries).split(max(1, _PAIRS // max(self.ntotal, 1))):
            distances, rows = poincare.squared_distances(part, points).sort(dim=1, stable=True)
            parts.append((distances[:, :k], rows[:, :k]))
        distances, rows = (torch.cat(side).numpy() for side in zip(*parts, strict=True))
        return distances, rows

    def distances(
        self, queries: Float[np.ndarray, "query dim"], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """Squared distances of chosen points."""
        return poincare.squared_distance(self._tensor(queries)[:, None], self._tensor(self.points[rows])).numpy()

    def _tensor(self, points: np.ndarray) -> Tensor:
        return poincare.inside(torch.from_numpy(np.ascontiguousarray(points, np.float32)))
