"""How good an index is: use of codes, collisions, errors, and whether neighbours share prefixes."""

from dataclasses import asdict, dataclass
from typing import Any

import faiss
import numpy as np
import torch
from jaxtyping import Float, Int, Int64

from restd.codes import Space, as_tensor, assign, last_residuals, nearest, quantised, spaces, trajectory
from restd.codes.ending import TERMINAL
from restd.codes.keys import collision_groups, pack
from restd.encode import Embeddings
from restd.index.ball_search import BallSearch
from restd.index.sid_index import SidIndex

_ROWS = 65_536
_COLLAPSED = 0.1
_IDLE = 0.9


@dataclass(frozen=True, slots=True)
class LevelQuality:
    """One level of an index; fields that need codebooks are None where there are none.

    Where identifiers may end early, a level is measured on the items that have a code there.
    """

    level: int
    codes: int
    used: int
    dead: int
    perplexity: float
    """How many equally used codes would be as varied."""
    gini: float
    """0: all codes alike; 1: one code has everything."""
    largest_share: float
    """Share of items on the most common code."""
    prefixes: int
    """Distinct prefixes that end at this level."""
    items_per_prefix: float
    largest_prefix: int
    single_child: float
    """Share of the prefixes before this level that leave it nothing to decide."""
    error: float | None
    """Mean squared residual after this level, raw codes, as a share of that before level 1."""
    edited: float
    """Share of items whose stored code is not the raw one."""
    conflict: float | None
    """Share of items whose stored code is not the nearest on the path of stored codes."""
    neighbour_hits: float | None
    """Share of an item's ten nearest neighbours that have the same prefix up to this level."""


@dataclass(frozen=True, slots=True)
class IndexQuality:
    """The whole index."""

    items: int
    policy: str
    colliding_before: float
    """Share of items that shared their raw codes with another."""
    colliding_after: float
    largest_group_before: int
    unique: float
    """Distinct stored SIDs per item."""
    edited: float
    """Share of items with any code changed."""
    error_raw: float | None
    """Mean squared quantisation error as a share of the latents' mean square, raw codes."""
    error_stored: float | None
    embedding_error: float | None
    """Mean squared error of embeddings rebuilt from raw codes, through the decoder or inverse projection, as a share of
    the embeddings' variance; None where the embeddings are not at hand."""
    levels: tuple[LevelQuality, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def measure_quality(
    index: SidIndex, *, embeddings: Embeddings | None = None, queries: int = 1_000, neighbours: int = 10, seed: int = 0
) -> IndexQuality:
    """Measure an index; neighbours are looked up for `queries` random items."""
    errors = _level_errors(index)
    conflicts = _conflicts(index)
    hits = _neighbour_hits(index, queries=queries, neighbours=neighbours, seed=seed)
    levels = tuple(
        _level(index, level, error=errors[level], conflict=conflicts[level], hits=hits[level])
        for level in range(len(index.sizes))
    )
    rq_sizes = index.sizes[: index.raw.shape[1]]
    before, groups = collision_groups(pack(index.raw, rq_sizes))
    after, _ = collision_groups(pack(index.sids, index.sizes))
    stored = None
    if index.latents is not None and index.codebooks is not None:
        left = last_residuals(as_tensor(index.latents), as_tensor(index.sids), index.codebooks)
        squares = squared_lengths(left.numpy(), index.codebooks.space)
        stored = float(squares.mean() / _mean_square(index.latents, index.codebooks.space))
    return IndexQuality(
        items=len(index),
        policy=index.policy,
        colliding_before=len(before) / len(index),
        colliding_after=len(after) / len(index),
        largest_group_before=int(np.bincount(groups).max()) if len(groups) else 1,
        unique=index.table.unique / len(index),
        edited=float(index.edited.any(axis=1).mean()),
        error_raw=errors[index.raw.shape[1] - 1],
        error_stored=stored,
        embedding_error=None if embeddings is None else embedding_error(index, embeddings, seed=seed),
        levels=levels,
        warnings=tuple(_warnings(index, levels[: len(rq_sizes)], colliding=len(after))),
    )


def embedding_error(index: SidIndex, embeddings: Embeddings, *, sample: int = 20_000, seed: int = 0) -> float:
    """Share of the embeddings' variance that the raw codes lose, measured where it matters: after decoding."""
    assert index.quantizer is not None
    vectors = embeddings.sample(sample, seed=seed)
    originals = index.quantizer.prepared(vectors)
    latents = index.quantizer.latents(vectors)
    codebooks = index.quantizer.codebooks
    points = as_tensor(latents)
    decoded = quantised(points, assign(points, codebooks), codebooks).numpy()
    rebuilt = index.quantizer.reconstruct(decoded)
    variance = np.square(originals - originals.mean(axis=0)).sum(1).mean()
    return float(np.square(rebuilt - originals).sum(1).mean() / variance)


def _level(
    index: SidIndex, level: int, *, error: float | None, conflict: float | None, hits: float | None
) -> LevelQuality:
    counts = index.code_counts(level)
    goes_on = index.sids[:, level] != TERMINAL if index.ends else slice(None)
    occupancy = _prefix_counts(index.sids[goes_on, : level + 1], index.sizes[: level + 1])
    trie_depth = index.trie.depths[level]
    children = trie_depth.first_child.diff()
    if index.ends:  # of the prefixes that some item goes on behind: codes ascend, so its last child is a real code
        children = children[trie_depth.codes[trie_depth.first_child[1:].long() - 1] != TERMINAL]
    edited = float(index.edited[:, level].mean()) if level < index.raw.shape[1] else 0.0
    return LevelQuality(
        level=level + 1,
        codes=len(counts),
        used=int((counts > 0).sum()),
        dead=int((counts == 0).sum()),
        perplexity=perplexity(counts),
        gini=gini(counts),
        largest_share=float(counts.max(initial=0) / max(counts.sum(), 1)),
        prefixes=len(occupancy),
        items_per_prefix=float(occupancy.sum() / max(len(occupancy), 1)),
        largest_prefix=int(occupancy.max(initial=0)),
        single_child=float((children == 1).float().mean()) if len(children) else 0.0,
        error=error,
        edited=edited,
        conflict=conflict,
        neighbour_hits=hits,
    )


def perplexity(counts: Int[np.ndarray, "code"]) -> float:
    """How many equally used codes would be as varied.

    >>> perplexity(np.array([5, 5, 0])), perplexity(np.array([7, 0, 0])), perplexity(np.array([0, 0]))
    (2.0, 1.0, 0.0)
    """
    if not counts.any():
        return 0.0
    shares = counts[counts > 0] / counts.sum()
    return round(float(np.exp(-(shares * np.log(shares)).sum())), 9)


def gini(counts: Int[np.ndarray, "code"]) -> float:
    """Inequality of counts.

    >>> gini(np.array([5, 5, 5, 5])), round(gini(np.array([0, 0, 0, 20])), 2), gini(np.array([0, 0]))
    (0.0, 0.75, 0.0)
    """
    if not counts.any():
        return 0.0
    ordered = np.sort(counts).astype(np.float64)
    ranks = np.arange(1, len(ordered) + 1)
    return float((2 * ranks - len(ordered) - 1) @ ordered / (len(ordered) * ordered.sum()))


def _prefix_counts(prefixes: Int[np.ndarray, "item level"], sizes: tuple[int, ...]) -> Int64[np.ndarray, "prefix"]:
    return np.unique(pack(prefixes, sizes), return_counts=True)[1]


def squared_lengths(points: Float[np.ndarray, "*shape dim"], space: Space) -> Float[np.ndarray, "*shape"]:
    """Squared lengths, in the ball squared distances from its centre."""
    if space == "euclidean":
        return np.square(points).sum(-1)
    return spaces.squared_norms(torch.from_numpy(points), space).numpy()


def _mean_square(latents: Float[np.ndarray, "item dim"], space: Space) -> float:
    parts = (latents[start : start + _ROWS].astype(np.float32) for start in range(0, len(latents), _ROWS))
    flat = space == "euclidean"
    total = sum(float(np.square(part).sum() if flat else squared_lengths(part, space).sum()) for part in parts)
    return total / len(latents)


def _level_errors(index: SidIndex) -> list[float | None]:
    """Mean ‖r_t‖² along the raw codes, as a share of mean ‖r_0‖²."""
    missing: list[float | None] = [None] * len(index.sizes)
    if index.latents is None or index.codebooks is None:
        return missing
    sums = np.zeros(index.codebooks.levels + 1)
    for start in range(0, len(index), _ROWS):
        rows = slice(start, start + _ROWS)
        steps = trajectory(as_tensor(index.latents[rows]), as_tensor(index.raw[rows]), index.codebooks)
        if index.codebooks.space == "euclidean":
            sums += np.square(steps.numpy()).sum((0, 2))
        else:
            sums += squared_lengths(steps.numpy(), index.codebooks.space).sum(0)
    return [float(value / sums[0]) for value in sums[1:]] + missing[index.codebooks.levels :]


def _conflicts(index: SidIndex) -> list[float | None]:
    """Share of items whose stored code is not the nearest to the residual of the stored path."""
    missing: list[float | None] = [None] * len(index.sizes)
    if index.latents is None or index.codebooks is None:
        return missing
    counts = np.zeros(index.codebooks.levels)
    for start in range(0, len(index), _ROWS):
        rows = slice(start, start + _ROWS)
        stored = as_tensor(index.sids[rows])
        steps = trajectory(as_tensor(index.latents[rows]), stored, index.codebooks)
        for level in range(index.codebooks.levels):
            best = nearest(steps[:, level], index.codebooks.level(level), space=index.codebooks.space)
            counts[level] += int((best != stored[:, level]).sum())
    return [float(value / len(index)) for value in counts] + missing[index.codebooks.levels :]


def _neighbour_hits(index: SidIndex, *, queries: int, neighbours: int, seed: int) -> list[float | None]:
    if index.latents is None or len(index) <= neighbours:
        return [None] * len(index.sizes)
    rows = np.random.default_rng(seed).choice(len(index), min(queries, len(index)), replace=False)
    if index.codebooks is None or index.codebooks.space == "euclidean":
        search = faiss.IndexFlatL2(index.latents.shape[1])
        for start in range(0, len(index), _ROWS):
            search.add(index.latents[start : start + _ROWS].astype(np.float32))
    else:
        search = BallSearch(index.latents)
    _, neighbour_rows = search.search(index.latents[rows].astype(np.float32), neighbours + 1)
    itself = neighbour_rows == rows[:, None]
    itself[~itself.any(axis=1), -1] = True  # copies pushed it out of its own list: drop the farthest instead
    others = ~itself
    same = index.sids[neighbour_rows] == index.sids[rows][:, None]
    prefix = np.logical_and.accumulate(same, axis=2)
    return [float(prefix[:, :, level][others].mean()) for level in range(len(index.sizes))]


def _warnings(index: SidIndex, levels: tuple[LevelQuality, ...], *, colliding: int) -> list[str]:
    warnings = []
    # a scheme decides itself what its levels are; there are no codes to choose, nor a quantiser to train otherwise
    for number, level in enumerate(levels if index.scheme is None else ()):
        # repair spreads a collapse out, and would hide it
        raw = level.perplexity if index.ends else perplexity(np.bincount(index.raw[:, number]))
        if level.codes > 1 and level.used and raw < max(1.5, _COLLAPSED * level.codes):
            warnings.append(
                f"Level {level.level} has collapsed: its {level.codes} codes are used like {raw:.1f}. "
                "Check whether most vectors are alike, train an RQ-VAE at a lower learning rate, or use fewer codes "
                "(--codes)."
            )
        if level.single_child > _IDLE and level.level < len(levels):  # the last level is there to tell items apart
            warnings.append(
                f"Level {level.level} decides little: {level.single_child:.0%} of the prefixes before it have one "
                "child. Use fewer codes (--codes)."
            )
    if colliding:
        warnings.append(f"{colliding:,} items share their SID with another; search returns them together.")
    return warnings
