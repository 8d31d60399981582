"""Drawing some of many queries, or some of many names."""

import hashlib

import numpy as np
from jaxtyping import Int64


def draw_queries(total: int, count: int, *, seed: int = 0) -> Int64[np.ndarray, "_"]:
    """Numbers of `count` of `total` queries at random, ascending: losses and metrics validate on the same ones."""
    return np.sort(np.random.default_rng(seed).choice(total, min(count, total), replace=False)).astype(np.int64)


def draw_of_text(text: str, *, seed: int) -> float:
    """A number from 0 to 1 that depends on a text and the seed alone: the same in every file, order and machine.

    >>> round(draw_of_text("S0000001", seed=0), 3), draw_of_text("S0000001", seed=0) == draw_of_text("S0000001", seed=1)
    (0.512, False)
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {text}".encode()).digest()[:8]) / 2.0**64
