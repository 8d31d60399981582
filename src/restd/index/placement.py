"""Rows of an index that were found for items, and are not in it yet."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float16, Int16, Int32


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """What an index keeps of each new item, row for row: enough to add it without encoder and quantiser.

    Args:
        latents: what was quantised.
        raw: codes as assigned.
        sids: codes as stored, after collisions were resolved.
        came_in: generation in which each item came.
    """

    latents: Float16[np.ndarray, "item dim"]
    raw: Int16[np.ndarray, "item rq_level"]
    sids: Int16[np.ndarray, "item level"]
    came_in: Int32[np.ndarray, "item"]

    def __len__(self) -> int:
        return len(self.sids)
