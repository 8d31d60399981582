"""What contrastive training needs besides a loss: which pairs are known, and weights that stay near their origin."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class KnownPairs:
    """Pairs of a query and an item that answers it, as sorted numbers query · items + item.

    >>> known = KnownPairs.of(np.array([0, 0, 1]), np.array([2, 3, 2]), items=5)
    >>> query, item = torch.tensor([0, 1]), torch.tensor([2, 3])
    >>> known.among(query, item).tolist()
    [[True, True], [True, False]]
    >>> known.others(query, item).tolist()
    [[False, True], [True, False]]
    """

    keys: Int64[Tensor, "known"]
    items: int

    @classmethod
    def of(cls, query: Int64[np.ndarray, "pair"], item: Int64[np.ndarray, "pair"], *, items: int) -> "KnownPairs":
        """Take the pairs of a training set.

        Args:
            query: row of each pair's query.
            item: row of each pair's item.
            items: how many items there are.
        """
        return cls(torch.from_numpy(np.unique(query * items + item)), items)

    def among(self, query: Int64[Tensor, "row"], item: Int64[Tensor, "column"]) -> Bool[Tensor, "row column"]:
        """Which of these items answer which of these queries."""
        wanted = query[:, None] * self.items + item[None, :]
        place = torch.searchsorted(self.keys, wanted).clamp_max(len(self.keys) - 1)
        return self.keys[place] == wanted

    def others(self, query: Int64[Tensor, "row"], item: Int64[Tensor, "column"]) -> Bool[Tensor, "row column"]:
        """Where an item that is not the row's own answers its query as well; a row's own stands in its own column."""
        return self.among(query, item) & ~torch.eye(len(query), len(item), dtype=torch.bool)


def pull_towards(weights: Sequence[Tensor], origins: Sequence[Tensor], rate: float) -> None:
    """Pull weights towards what they began as: with few pairs they should stay that, not shrink to nothing."""
    with torch.no_grad():
        for weight, origin in zip(weights, origins, strict=True):
            weight.lerp_(origin, rate)
