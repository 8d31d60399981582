"""Drawing some of many queries."""

import numpy as np
from jaxtyping import Int64


def draw_queries(total: int, count: int, *, seed: int = 0) -> Int64[np.ndarray, "_"]:
    """Numbers of `count` of `total` queries at random, ascending: losses and metrics validate on the same ones."""
    return np.sort(np.random.default_rng(seed).choice(total, min(count, total), replace=False)).astype(np.int64)
