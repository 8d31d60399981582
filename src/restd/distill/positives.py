"""All of a query's positives, for targets that look at more than one of them."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.errors import ConfigError


class Members(NamedTuple):
    """The positives of a batch's queries, one row of the batch after another."""

    owner: Int64[Tensor, "member"]
    """Row of the batch that each belongs to."""
    items: Int64[Tensor, "member"]
    weights: Float[Tensor, "member"]


@dataclass(frozen=True, slots=True, eq=False)
class Positives:
    """The positive items of every query.

    >>> positives = Positives.of(torch.tensor([0, 1, 0]), torch.tensor([7, 8, 9]))
    >>> members = positives.of_rows(torch.tensor([9]), torch.tensor([0]))
    >>> members.owner.tolist(), members.items.tolist()
    ([0, 0], [7, 9])
    """

    items: Int64[Tensor, "positive"]
    """Item rows, one query after another."""
    weights: Float[Tensor, "positive"]
    first: Int64[Tensor, "query_plus_one"]
    """Where each query's positives begin."""

    @classmethod
    def of(
        cls,
        queries: Int64[Tensor, "pair"],
        rows: Int64[Tensor, "pair"],
        weights: Float[Tensor, "pair"] | None = None,
    ) -> "Positives":
        """Take training pairs: numbers of queries from 0, rows of items, and weights, which are equal by default."""
        order = torch.argsort(queries, stable=True)
        counts = torch.bincount(queries)
        weights = torch.ones(len(rows), device=rows.device) if weights is None else weights
        return cls(rows[order], weights[order], torch.cat([counts.new_zeros(1), counts.cumsum(0)]))

    def of_rows(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"]) -> Members:
        """The positives of each row's query; the row itself must be among them."""
        start, end = self.first[queries], self.first[queries + 1]
        owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), end - start)
        place = torch.arange(len(owner), device=rows.device) - (end - start).cumsum(0)[owner] + end[owner]
        items = self.items[place]
        own = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        own.index_add_(0, owner, (items == rows[owner]).long())
        if (own == 0).any():
            raise ConfigError(
                f"Item row {int(rows[own == 0][0])} is not among the positives of its query. Pass each row with the "
                "query it was paired with."
            )
        return Members(owner, items, self.weights[place])


def share_prefix(left: Int64[Tensor, "row level"], right: Int64[Tensor, "row level"]) -> Bool[Tensor, "row level"]:
    """Whether two Semantic IDs agree on the codes before each level.

    >>> share_prefix(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 5, 3]])).tolist()
    [[True, True, False]]
    """
    same = left == right
    return torch.cat([torch.ones_like(same[:, :1]), same[:, :-1].cumprod(dim=1).bool()], dim=1)
