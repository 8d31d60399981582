"""The policy `capacity`: items may share a SID, but only so many."""

import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64

from restd.codes import as_tensor, spaces, trajectory
from restd.codes.keys import collision_groups, pack, unpack
from restd.errors import CapacityError
from restd.index.collisions import CollisionProblem, Resolution
from restd.index.policies import CAPACITY
from restd.index.substitution import all_substitutions

_ROWS = 4_096


def capacity(problem: CollisionProblem) -> Resolution:
    """Let at most so many items share a SID; the others take the nearest last code with room, or the nearest SID.

    Of a crowded SID the items with the smallest quantisation errors stay. The others move in row order: first to the
    last-level code nearest to their residual whose SID has room, and where all of that prefix are full, to the SID with
    room that changes the fewest codes at the least error.
    """
    sizes, most = problem.codebooks.sizes, problem.capacity or CAPACITY
    older = pack(problem.occupied, sizes) if problem.occupied is not None else np.empty(0, np.int64)
    refuse_overfull(len(problem.raw) + len(older), sizes, capacity=most)
    keys = pack(problem.raw, sizes)
    members = Counter(older.tolist())
    movers = _overflow(problem, keys, members, most=most)
    moves = np.zeros(len(keys), bool)
    moves[movers] = True
    members.update(keys[~moves].tolist())

    @lru_cache(maxsize=64)  # items with the same latent start where the last one stopped
    def beyond(latent: bytes, key: int) -> Iterator[int]:
        codes = unpack(np.array([key]), sizes)[0]
        return all_substitutions(np.frombuffer(latent, problem.latents.dtype), codes, problem.codebooks)

    for start in range(0, len(movers), _ROWS):
        rows = movers[start : start + _ROWS]
        siblings = keys[rows] - problem.raw[rows, -1]
        for row, base, order in zip(rows.tolist(), siblings.tolist(), _nearest_last(problem, rows), strict=True):
            free = next((base + code for code in order.tolist() if members[base + code] < most), None)
            if free is None:
                options = beyond(problem.latents[row].tobytes(), int(keys[row]))
                free = next(option for option in options if members[option] < most)
                if members[free] + 1 < most:  # the next item with this latent may still go there
                    beyond.cache_clear()
            members[free] += 1
            keys[row] = free
    return problem.resolution(unpack(keys, sizes))


def refuse_overfull(items: int, sizes: tuple[int, ...], *, capacity: int) -> None:
    """Refuse more items than all SIDs have room for."""
    room = math.prod(sizes) * capacity
    if items > room:
        raise CapacityError(
            f"{items:,} items do not fit {math.prod(sizes):,} SIDs of at most {capacity} items each; raise "
            "index.capacity, or use more codes or levels."
        )


def _overflow(
    problem: CollisionProblem, keys: Int64[np.ndarray, "item"], older: Counter[int], *, most: int
) -> Int64[np.ndarray, "mover"]:
    """Rows that must move, in row order: all but the best of each SID, as far as older items leave room."""
    rows, group = collision_groups(keys)
    errors = problem.errors(rows) if len(rows) else np.zeros(0, np.float32)
    best_first = np.lexsort((rows, errors, group))
    rows, group = rows[best_first], group[best_first]
    place = np.arange(len(rows)) - np.searchsorted(group, group)
    rank = np.zeros(len(keys), np.int64)
    rank[rows] = place
    used = np.array([older[key] for key in keys.tolist()], np.int64) if older else np.zeros(len(keys), np.int64)
    return np.flatnonzero(rank + used >= most)


def _nearest_last(problem: CollisionProblem, rows: Int64[np.ndarray, "row"]) -> Int64[np.ndarray, "row code"]:
    """Last-level codes of each row, the nearest to its residual first."""
    books = problem.codebooks
    steps = trajectory(as_tensor(problem.latents[rows]), as_tensor(problem.raw[rows]), books)
    distances = spaces.squared_distances(steps[:, -2], books.level(books.levels - 1), books.space)
    return torch.argsort(distances, dim=1, stable=True).numpy()
