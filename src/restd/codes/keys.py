"""Semantic IDs as single integers, so that sorting, grouping and looking up are one vector operation."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Int16, Int64

from restd.errors import CapacityError, ConfigError


def radices(sizes: Sequence[int]) -> Int64[np.ndarray, "level"]:
    """Weight of each level's code in the packed key, the first level weighing most.

    >>> radices((4, 8, 16)).tolist()
    [128, 16, 1]
    """
    if math.prod(sizes) >= 2**63:
        raise ConfigError(
            f"Levels of sizes {tuple(sizes)} do not fit a 64-bit key; use fewer levels or smaller codebooks."
        )
    weights = [math.prod(sizes[level + 1 :]) for level in range(len(sizes))]
    return np.array(weights, np.int64)


def pack(sids: Int[np.ndarray, "item level"], sizes: Sequence[int]) -> Int64[np.ndarray, "item"]:
    """Keys whose order is the lexicographic order of the SIDs.

    >>> pack(np.array([[0, 1], [1, 0]]), (2, 8)).tolist()
    [1, 8]
    """
    keys = np.zeros(len(sids), np.int64)
    for level, weight in enumerate(radices(sizes)):
        keys += sids[:, level] * weight
    return keys


def unpack(keys: Int64[np.ndarray, "item"], sizes: Sequence[int]) -> Int16[np.ndarray, "item level"]:
    """SIDs of keys; the inverse of `pack`."""
    sids = np.empty((len(keys), len(sizes)), np.int16)
    rest = keys
    for level in reversed(range(len(sizes))):
        rest, sids[:, level] = np.divmod(rest, sizes[level])
    return sids


def refuse_too_many(items: int, sizes: Sequence[int]) -> None:
    """Every item needs an address of its own."""
    addresses = math.prod(sizes)
    if items <= addresses:
        return
    levels, largest = len(sizes), max(sizes)
    codes = math.ceil(items ** (1 / levels))
    codes += codes**levels < items  # the root is rounded
    more = next(count for count in range(levels, 64) if math.prod(sizes) * max(largest, 2) ** (count - levels) >= items)
    raise CapacityError(
        f"{items:,} items do not fit the {addresses:,} addresses of {levels} levels with {'×'.join(map(str, sizes))} "
        f"codes; use {more} levels (of {max(largest, 2)} codes), or {codes} codes at each of {levels} levels."
    )


def collision_groups(
    keys: Int64[np.ndarray, "item"],
) -> tuple[Int64[np.ndarray, "colliding"], Int64[np.ndarray, "colliding"]]:
    """Rows that share their key with another row, sorted by key and then row, and the number of each one's group.

    >>> [part.tolist() for part in collision_groups(np.array([5, 3, 5, 9, 3, 3]))]
    [[1, 4, 5, 0, 2], [0, 0, 0, 1, 1]]
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]
    number = np.cumsum(new) - 1
    shared = np.bincount(number, minlength=1)[number] > 1
    rows = order[shared]
    return rows, np.unique(number[shared], return_inverse=True)[1]
