"""Collision policies: what to do when two items get the same codes. One signature, named, deterministic."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int16, Int64

from restd.errors import CapacityError, ConfigError
from restd.index.keys import collision_groups, pack, refuse_too_many, unpack
from restd.index.substitution import all_substitutions, nearest_substitutions
from restd.quantize import Codebooks, last_residuals, trajectory
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
class Problem:
    """Items to be given addresses.

    Args:
        latents: what was quantised.
        raw: codes as assigned.
        codebooks: their codewords.
        taken: SIDs that older items hold and keep (with the suffix, where there is one).
        sizes: codes per stored level when the layout is fixed already, as it is when items are added.
    """

    latents: Float[np.ndarray, "item dim"]
    raw: Int16[np.ndarray, "item level"]
    codebooks: Codebooks
    taken: Int16[np.ndarray, "held stored_level"] | None = None
    sizes: tuple[int, ...] | None = None

    def resolution(
        self, sids: Int16[np.ndarray, "item stored_level"], sizes: tuple[int, ...] | None = None
    ) -> Resolution:
        """Pack a result: a code is edited where it is not the raw one."""
        return Resolution(sids, sids[:, : self.raw.shape[1]] != self.raw, sizes or self.codebooks.sizes)


Policy = Callable[[Problem], Resolution]


def none(problem: Problem) -> Resolution:
    """Keep the raw codes: items that share a SID stay together."""
    return problem.resolution(problem.raw.copy())


def single_substitution(problem: Problem) -> Resolution:
    """Change one code of all but one item of each group: the change that costs least and gives a free SID.

    The item with the smallest quantisation error keeps its SID; the others choose in row order. Where every single
    change is taken, two codes are changed, then three.
    """

    def candidates(rows: Int64[np.ndarray, "row"], keys: Int64[np.ndarray, "row"], taken: set[int]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in rows]
        crowded = np.arange(len(rows))
        for count in _SHORTLISTS:  # short lists do for most; who finds all of it taken gets a longer one
            chosen = rows[crowded]
            options = nearest_substitutions(
                problem.latents[chosen], problem.raw[chosen], keys[crowded], problem.codebooks, count=count
            )
            for member, shortlist in zip(crowded.tolist(), options.tolist(), strict=True):
                found[member] = shortlist
            crowded = np.array([member for member in crowded.tolist() if taken.issuperset(found[member])], np.int64)
            if len(crowded) == 0:
                break
        return found

    return _resolve(problem, candidates)


def min_distortion(problem: Problem) -> Resolution:
    """Encode the losers of each group anew by beam search over all levels and take the best free SID.

    Errors are smaller than with `single_substitution`; whole suffixes change.
    """

    def candidates(rows: Int64[np.ndarray, "row"], keys: Int64[np.ndarray, "row"], taken: set[int]) -> list[list[int]]:
        parts = np.array_split(rows, len(rows) // 512 + 1)
        return [
            options for part in parts for options in _beam_encode(problem.latents[part], problem.codebooks).tolist()
        ]

    return _resolve(problem, candidates)


_Candidates = Callable[[Int64[np.ndarray, "row"], Int64[np.ndarray, "row"], set[int]], list[list[int]]]
"""Keys to try for each row, best first, given the rows, their own keys, and what is taken at this moment."""


def _resolve(problem: Problem, candidates: _Candidates) -> Resolution:
    sizes = problem.codebooks.sizes
    held = len(problem.taken) if problem.taken is not None else 0
    refuse_too_many(len(problem.raw) + held, sizes)
    keys = pack(problem.raw, sizes)
    taken, losers = _settled(problem, keys)

    @lru_cache(maxsize=64)  # items with the same latent, such as those without text, go on where the last one stopped
    def beyond(latent: bytes, key: int) -> Iterator[int]:
        codes = unpack(np.array([key]), sizes)[0]
        return all_substitutions(np.frombuffer(latent, problem.latents.dtype), codes, problem.codebooks)

    for start in range(0, len(losers), _ROWS):
        rows = losers[start : start + _ROWS]
        own = keys[rows]
        for row, key, options in zip(rows.tolist(), own.tolist(), candidates(rows, own, taken), strict=True):
            free = next((option for option in options if option not in taken), None)
            if free is None:
                free = next(option for option in beyond(problem.latents[row].tobytes(), key) if option not in taken)
            taken.add(free)
            keys[row] = free
    return problem.resolution(unpack(keys, sizes))


def _settled(problem: Problem, keys: Int64[np.ndarray, "item"]) -> tuple[set[int], Int64[np.ndarray, "loser"]]:
    """Keys that stay where they are, and the rows that must move, in row order."""
    moves = np.zeros(len(keys), bool)
    rows, group = collision_groups(keys)
    if len(rows):
        errors = np.square(last_residuals(problem.latents[rows], problem.raw[rows], problem.codebooks)).sum(1)
        best_first = np.lexsort((rows, errors, group))
        keeps = best_first[np.concatenate([[True], np.diff(group[best_first]) > 0])]
        moves[rows] = True
        moves[rows[keeps]] = False
    settled: set[int] = set()
    if problem.taken is not None:
        older = pack(problem.taken, problem.codebooks.sizes)
        moves |= np.isin(keys, older)
        settled.update(older.tolist())
    settled.update(keys[~moves].tolist())
    return settled, np.flatnonzero(moves)


def _beam_encode(latents: Float[np.ndarray, "item dim"], codebooks: Codebooks) -> Int64[np.ndarray, "item beam"]:
    """Keys of the best SIDs of each latent by final error, found by a beam over the levels."""
    residual = torch.from_numpy(latents.astype(np.float32))[:, None]
    keys = torch.zeros(len(latents), 1, dtype=torch.int64)
    for level, size in enumerate(codebooks.sizes):
        book = torch.from_numpy(codebooks.level(level))
        branch = min(_BRANCH, size)
        distance, codes = torch.cdist(residual, book[None]).topk(branch, dim=2, largest=False)
        kept = min(_BEAM, distance.shape[1] * branch)
        chosen = distance.flatten(1).topk(kept, dim=1, largest=False).indices
        parent = chosen // branch
        code = codes.flatten(1).gather(1, chosen)
        keys = keys.gather(1, parent) * size + code
        residual = residual.gather(1, parent[..., None].expand(-1, -1, residual.shape[2])) - book[code]
    return keys.numpy()


def sinkhorn_last(problem: Problem) -> Resolution:
    """Assign each group's last level anew by a balanced plan, at most twenty times; what still collides stays so."""
    sizes = problem.codebooks.sizes
    sids = problem.raw.copy()
    book = torch.from_numpy(problem.codebooks.level(len(sizes) - 1))
    older = pack(problem.taken, sizes) if problem.taken is not None else np.empty(0, np.int64)
    for _ in range(_SINKHORN_ROUNDS):
        keys = np.concatenate([pack(sids, sizes), older])
        rows, group = collision_groups(keys)
        group, rows = group[rows < len(sids)], rows[rows < len(sids)]
        if len(rows) == 0:
            break
        before = sids[rows, -1].copy()
        residual = trajectory(problem.latents[rows], problem.raw[rows], problem.codebooks)[:, -2]
        for members in _by_group_size(group):
            distances = torch.cdist(torch.from_numpy(residual[members]), book[None]).square()
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


def suffix(problem: Problem) -> Resolution:
    """Append a code that numbers the items of each group (TIGER's disambiguation code); it has no codebook."""
    sizes = problem.codebooks.sizes
    keys = pack(problem.raw, sizes)
    number = np.zeros(len(keys), np.int64)
    rows, group = collision_groups(keys)
    firsts = np.flatnonzero(np.concatenate([[True], np.diff(group) > 0]))[: len(np.unique(group))]
    number[rows] = np.arange(len(rows)) - np.repeat(firsts, np.bincount(group) if len(group) else 0)
    if problem.taken is not None:
        _skip_held_numbers(number, keys, problem.taken, sizes)
    needed = int(number.max(initial=0)) + 1
    room = problem.sizes[-1] if problem.sizes else max(_SMALLEST_SUFFIX, 1 << (needed - 1).bit_length())
    if needed > min(room, np.iinfo(np.int16).max):
        raise CapacityError(
            f"{needed:,} items share one SID and the disambiguation code has room for {room:,}; "
            "index the catalogue again, with more codes or levels."
        )
    sids = np.concatenate([problem.raw, number[:, None].astype(np.int16)], axis=1)
    return problem.resolution(sids, (*sizes, room))


def _skip_held_numbers(
    number: Int64[np.ndarray, "item"],
    keys: Int64[np.ndarray, "item"],
    taken: Int16[np.ndarray, "held stored_level"],
    sizes: tuple[int, ...],
) -> None:
    """Give new items of an older group the smallest numbers that are free there, in row order."""
    older = pack(taken[:, :-1], sizes)
    held: dict[int, set[int]] = {}
    shared = np.isin(older, keys)
    for key, used in zip(older[shared].tolist(), taken[shared, -1].tolist(), strict=True):
        held.setdefault(key, set()).add(used)
    for row in np.flatnonzero(np.isin(keys, older)):
        used = held[int(keys[row])]
        number[row] = next(count for count in range(len(used) + 1) if count not in used)
        used.add(int(number[row]))


POLICIES: dict[str, Policy] = {
    "single_substitution": single_substitution,
    "min_distortion": min_distortion,
    "sinkhorn_last": sinkhorn_last,
    "suffix": suffix,
    "none": none,
}


UNIQUE_WITHIN = ("single_substitution", "min_distortion")
"""Policies that give every item an address of its own within the codebooks' levels."""


def policy_named(name: str) -> Policy:
    """Return a policy by its name.

    >>> policy_named("none") is none
    True
    """
    if name not in POLICIES:
        raise ConfigError(f"Collision policy {name!r} is unknown; wanted one of {', '.join(POLICIES)}.")
    return POLICIES[name]
