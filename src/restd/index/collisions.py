"""The collision policies: each takes a `CollisionProblem`, returns a `Resolution`, and is deterministic."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int16, Int64

from restd.codes import Codebooks, as_tensor, last_residuals, poincare, spaces, trajectory
from restd.codes.keys import collision_groups, pack, refuse_too_many, unpack
from restd.errors import CapacityError
from restd.index.substitution import all_substitutions, nearest_substitutions
from restd.quantize.sinkhorn import sinkhorn

_SHORTLISTS = (16, 128, 1_024)
_ROWS = 4_096
_BEAM, _BRANCH = 64, 16
_SINKHORN_ROUNDS = 20
_SMALLEST_SUFFIX = 4


@dataclass(frozen=True, slots=True, eq=False)
class Resolution:
    """Stored codes, and which of them are not the raw ones; `sizes` counts the codes of every stored level."""

    sids: Int16[np.ndarray, "item stored_level"]
    edited: Bool[np.ndarray, "item level"]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CollisionProblem:
    """Items to be given addresses.

    Args:
        latents: what was quantised.
        raw: codes as assigned.
        codebooks: their codewords.
        occupied: SIDs that older items have and keep (with the suffix, where there is one).
        sizes: codes per stored level when the layout is fixed already, as it is when items are added.
        capacity: items that may share a SID, for a policy that bounds them.
    """

    latents: Float[np.ndarray, "item dim"]
    raw: Int16[np.ndarray, "item level"]
    codebooks: Codebooks
    occupied: Int16[np.ndarray, "older stored_level"] | None = None
    sizes: tuple[int, ...] | None = None
    capacity: int | None = None

    def resolution(
        self, sids: Int16[np.ndarray, "item stored_level"], sizes: tuple[int, ...] | None = None
    ) -> Resolution:
        """Pack a result: a code is edited where it is not the raw one."""
        return Resolution(sids, sids[:, : self.raw.shape[1]] != self.raw, sizes or self.codebooks.sizes)

    def errors(self, rows: Int64[np.ndarray, "row"]) -> Float[np.ndarray, "row"]:
        """Quantisation error ‖r_L‖² of the raw codes of some items; in the ball, d(0, r_L)²."""
        left = last_residuals(as_tensor(self.latents[rows]), as_tensor(self.raw[rows]), self.codebooks)
        if self.codebooks.space != "euclidean":
            return spaces.squared_norms(left, self.codebooks.space).numpy()
        return np.square(left.numpy()).sum(1)


def none(problem: CollisionProblem) -> Resolution:
    """Keep the raw codes: items that share a SID stay together."""
    return problem.resolution(problem.raw.copy())


def single_substitution(problem: CollisionProblem) -> Resolution:
    """Change one code of all but one item of each group: the change that costs least and gives a free SID.

    The item with the smallest quantisation error keeps its SID; the others choose in row order. Where every single
    change leads to a SID in use, two codes are changed, then three.
    """

    def candidates(rows: Int64[np.ndarray, "row"], keys: Int64[np.ndarray, "row"], used: set[int]) -> list[list[int]]:
        shortlists: list[list[int]] = [[] for _ in rows]
        crowded = np.arange(len(rows))
        for count in _SHORTLISTS:  # short lists do for most; an item whose whole list is used gets a longer one
            members = rows[crowded]
            options = nearest_substitutions(
                problem.latents[members], problem.raw[members], keys[crowded], problem.codebooks, count=count
            )
            for place, shortlist in zip(crowded.tolist(), options.tolist(), strict=True):
                shortlists[place] = shortlist
            crowded = np.array([place for place in crowded.tolist() if used.issuperset(shortlists[place])], np.int64)
            if len(crowded) == 0:
                break
        return shortlists

    return _resolve(problem, candidates)


def min_distortion(problem: CollisionProblem) -> Resolution:
    """Encode the losers of each group again by beam search over all levels and take the best free SID.

    Errors are smaller than with `single_substitution`; whole suffixes change.
    """

    def candidates(rows: Int64[np.ndarray, "row"], keys: Int64[np.ndarray, "row"], used: set[int]) -> list[list[int]]:
        parts = np.array_split(rows, len(rows) // 512 + 1)
        return [
            options for part in parts for options in _beam_encode(problem.latents[part], problem.codebooks).tolist()
        ]

    return _resolve(problem, candidates)


_Candidates = Callable[[Int64[np.ndarray, "row"], Int64[np.ndarray, "row"], set[int]], list[list[int]]]
"""Keys to try for each row, best first, given the rows, their own keys, and the keys used at this moment."""


def _resolve(problem: CollisionProblem, candidates: _Candidates) -> Resolution:
    sizes = problem.codebooks.sizes
    older = 0 if problem.occupied is None else len(problem.occupied)
    refuse_too_many(len(problem.raw) + older, sizes)
    keys = pack(problem.raw, sizes)
    used, losers = _settled(problem, keys)

    @lru_cache(maxsize=64)  # items with the same latent, such as those without text, start where the last one stopped
    def beyond(latent: bytes, key: int) -> Iterator[int]:
        codes = unpack(np.array([key]), sizes)[0]
        return all_substitutions(np.frombuffer(latent, problem.latents.dtype), codes, problem.codebooks)

    for start in range(0, len(losers), _ROWS):
        rows = losers[start : start + _ROWS]
        own = keys[rows]
        for row, key, options in zip(rows.tolist(), own.tolist(), candidates(rows, own, used), strict=True):
            free = next((option for option in options if option not in used), None)
            if free is None:
                free = next(option for option in beyond(problem.latents[row].tobytes(), key) if option not in used)
            used.add(free)
            keys[row] = free
    return problem.resolution(unpack(keys, sizes))


def _settled(problem: CollisionProblem, keys: Int64[np.ndarray, "item"]) -> tuple[set[int], Int64[np.ndarray, "loser"]]:
    """Keys that stay where they are, and the rows that must move, in row order."""
    moves = np.zeros(len(keys), bool)
    rows, group = collision_groups(keys)
    if len(rows):
        errors = problem.errors(rows)
        best_first = np.lexsort((rows, errors, group))
        keeps = best_first[np.concatenate([[True], np.diff(group[best_first]) > 0])]
        moves[rows] = True
        moves[rows[keeps]] = False
    settled: set[int] = set()
    if problem.occupied is not None:
        older = pack(problem.occupied, problem.codebooks.sizes)
        moves |= np.isin(keys, older)
        settled.update(older.tolist())
    settled.update(keys[~moves].tolist())
    return settled, np.flatnonzero(moves)


def _beam_encode(latents: Float[np.ndarray, "item dim"], codebooks: Codebooks) -> Int64[np.ndarray, "item beam"]:
    """Keys of the best SIDs of each latent by final error, found by a beam over the levels."""
    flat = codebooks.space == "euclidean"
    points = torch.from_numpy(latents.astype(np.float32))
    residual = (points if flat else poincare.inside(points))[:, None]
    keys = torch.zeros(len(latents), 1, dtype=torch.int64)
    for level, size in enumerate(codebooks.sizes):
        book = codebooks.level(level)
        branch = min(_BRANCH, size)
        # in the flat space lengths as they always were: their squares might order near ties otherwise
        distances = torch.cdist(residual, book[None]) if flat else poincare.squared_distances(residual, book[None])
        distance, codes = distances.topk(branch, dim=2, largest=False)
        width = min(_BEAM, distance.shape[1] * branch)
        best = distance.flatten(1).topk(width, dim=1, largest=False).indices
        parent = best // branch
        code = codes.flatten(1).gather(1, best)
        keys = keys.gather(1, parent) * size + code
        kept = residual.gather(1, parent[..., None].expand(-1, -1, residual.shape[2]))
        residual = spaces.left_over(kept, book[code], codebooks.space)
    return keys.numpy()


def sinkhorn_last(problem: CollisionProblem) -> Resolution:
    """Assign each group's last level again by a balanced plan, at most twenty times; what still collides stays so."""
    sizes = problem.codebooks.sizes
    sids = problem.raw.copy()
    book = problem.codebooks.level(len(sizes) - 1)
    older = pack(problem.occupied, sizes) if problem.occupied is not None else np.empty(0, np.int64)
    for _ in range(_SINKHORN_ROUNDS):
        keys = np.concatenate([pack(sids, sizes), older])
        rows, group = collision_groups(keys)
        group, rows = group[rows < len(sids)], rows[rows < len(sids)]
        if len(rows) == 0:
            break
        before = sids[rows, -1].copy()
        residual = trajectory(as_tensor(problem.latents[rows]), as_tensor(problem.raw[rows]), problem.codebooks)[:, -2]
        for members in _by_group_size(group):
            distances = spaces.squared_distances(residual[members], book[None], problem.codebooks.space)
            plan = sinkhorn(distances)
            # few items share many codes, so the plan is flat over each one's part: take the nearest code of it
            likely = plan >= plan.amax(dim=2, keepdim=True) / 2
            sids[rows[members], -1] = distances.masked_fill(~likely, torch.inf).argmin(dim=2).numpy()
        if (sids[rows, -1] == before).all():
            break
    return problem.resolution(sids)


def _by_group_size(group: Int64[np.ndarray, "row"]) -> Iterator[Int64[np.ndarray, "group member"]]:
    """Positions of the members of all groups of one size, some groups at a time so that memory stays bounded."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    firsts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):
        starts = firsts[sizes == size]
        for part in np.array_split(starts, len(starts) * size // _ROWS + 1):
            yield order[part[:, None] + np.arange(size)]


def suffix(problem: CollisionProblem) -> Resolution:
    """Append a code that numbers the items of each group (TIGER's disambiguation code); it has no codebook."""
    sizes = problem.codebooks.sizes
    keys = pack(problem.raw, sizes)
    number = np.zeros(len(keys), np.int64)
    rows, group = collision_groups(keys)
    firsts = np.flatnonzero(np.concatenate([[True], np.diff(group) > 0]))[: len(np.unique(group))]
    number[rows] = np.arange(len(rows)) - np.repeat(firsts, np.bincount(group) if len(group) else 0)
    if problem.occupied is not None:
        _skip_used_numbers(number, keys, problem.occupied, sizes)
    needed = int(number.max(initial=0)) + 1
    room = problem.sizes[-1] if problem.sizes else max(_SMALLEST_SUFFIX, 1 << (needed - 1).bit_length())
    if needed > min(room, np.iinfo(np.int16).max):
        raise CapacityError(
            f"{needed:,} items share one SID, but the disambiguation code has room for {room:,}. Index the catalogue "
            "again with more codes or levels."
        )
    sids = np.concatenate([problem.raw, number[:, None].astype(np.int16)], axis=1)
    return problem.resolution(sids, (*sizes, room))


def _skip_used_numbers(
    number: Int64[np.ndarray, "item"],
    keys: Int64[np.ndarray, "item"],
    occupied: Int16[np.ndarray, "older stored_level"],
    sizes: tuple[int, ...],
) -> None:
    """Give new items of an older group the smallest numbers that are free there, in row order."""
    older = pack(occupied[:, :-1], sizes)
    numbers_of: dict[int, set[int]] = {}
    shared = np.isin(older, keys)
    for key, used_number in zip(older[shared].tolist(), occupied[shared, -1].tolist(), strict=True):
        numbers_of.setdefault(key, set()).add(used_number)
    for row in np.flatnonzero(np.isin(keys, older)):
        used = numbers_of[int(keys[row])]
        number[row] = next(count for count in range(len(used) + 1) if count not in used)
        used.add(int(number[row]))
