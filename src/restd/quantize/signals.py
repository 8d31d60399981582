"""What an identifier scheme may learn from besides the items' vectors, and what a scheme without a geometry makes."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float16, Int16

from restd.data.categories import Categories
from restd.quantize.alignment import QueryPairs


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """Signals row for row with the vectors that they are given with; those that a scheme does not need are None.

    Args:
        categories: of every item.
        queries: training queries and the items that answer them, with grades where the judgments have any.
    """

    categories: Categories | None = None
    queries: QueryPairs | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Identifiers:
    """Identifiers of all items, made by a scheme without latents and codebooks.

    Args:
        sids: codes, row for row.
        sizes: codes of each level.
        ends: whether code 0 ends an identifier, so that they may be of unequal length: a shorter one is filled up
            with it. Identifiers of one length have no such code.
        points: where the items are, row for row, so that items and prefixes can be compared; None where the scheme
            has no such space.
    """

    sids: Int16[np.ndarray, "item level"]
    sizes: tuple[int, ...]
    ends: bool = False
    points: Float16[np.ndarray, "item dim"] | None = None
