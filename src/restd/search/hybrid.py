"""Hybrid search: the model, its heads and the snapshot's companions propose items, and each scores all of them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64

from restd.data import Query
from restd.errors import ConfigError
from restd.models import CachedRoutes
from restd.search.candidates import GENERATOR, HEADS, CandidateTable
from restd.search.generate import Generator, seen_rows
from restd.search.heads import KeptHeads
from restd.search.options import SearchOptions
from restd.snapshot import Companion, Snapshot

DEPTH = 60
"""Items that each companion and the heads propose, or k where that is more."""
_NONE = np.zeros(0, np.int64)


def collect_candidates(
    generator: Generator,
    snapshot: Snapshot,
    queries: Sequence[Query],
    options: SearchOptions,
    *,
    parts: Sequence[str],
    heads: KeptHeads | None = None,
    routes: CachedRoutes | None = None,
) -> CandidateTable:
    """Items that the parts propose for each query, with the scores of every part.

    Args:
        generator: the model.
        snapshot: what is searched.
        queries: texts or histories.
        options: settled options; filters hold in every part.
        parts: `generator`, `heads`, and names of companions.
        heads: the model's heads, where `heads` is among the parts.
        routes: categories that another model chose for these queries.
    """
    companions = find_companions(snapshot, parts)
    depth = min(max(options.k, DEPTH), len(snapshot))
    keep = snapshot.matching(options.where, options.allow, options.deny)
    excluded = None if options.seen else seen_rows(snapshot, queries)
    reach = depth if keep is None and excluded is None else len(snapshot)
    lists = {
        name: _proposed(companion.rank(queries, reach)[0], depth, keep, excluded)
        for name, companion in companions.items()
    }
    union = [
        np.unique(np.concatenate([rows[query] for rows in lists.values()] or [_NONE])) for query in range(len(queries))
    ]
    scores: dict[str, np.ndarray] = {}
    if GENERATOR in parts or HEADS in parts:
        if HEADS in parts and heads is None:
            raise ConfigError("The heads are a part of this hybrid search; load the retriever with keep_heads=True.")
        generated = generator.candidates(
            snapshot, queries, options, union, depth=depth, heads=heads if HEADS in parts else None, routes=routes
        )
        union = [candidates.rows for candidates in generated]
        if GENERATOR in parts:
            scores[GENERATOR] = _padded([candidates.log_probability for candidates in generated], -np.inf)
            lists[GENERATOR] = [candidates.beam for candidates in generated]
        if HEADS in parts:
            scores[HEADS] = _padded([one.nearness for one in generated if one.nearness is not None], -np.inf)
            lists[HEADS] = [candidates.nearest for candidates in generated]
    rows = _padded(union, -1)
    for name, companion in companions.items():
        scores[name] = np.asarray(companion.scores(queries, rows), np.float64)
    proposed = {name: _membership(rows, own) for name, own in lists.items()}
    new = generator.new_items(snapshot)
    return CandidateTable(rows, scores, proposed, new[rows] & (rows >= 0) if new.any() else None)


def find_companions(snapshot: Snapshot, parts: Sequence[str]) -> dict[str, Companion]:
    """The snapshot's companions among the parts, by name; one that is missing is an error."""
    known = {companion.name: companion for companion in snapshot.companions}
    missing = [part for part in parts if part not in (GENERATOR, HEADS, *known)]
    if missing:
        raise ConfigError(
            f"The hybrid search has the part {missing[0]!r}, and the snapshot has no companion of that name (it has: "
            f"{', '.join(known) or 'none'}). Set it with set_companions([...]), or fit the search without it."
        )
    return {name: companion for name, companion in known.items() if name in parts}


def _proposed(
    ranked: Int[np.ndarray, "query rank"],
    depth: int,
    keep: Bool[np.ndarray, "item"] | None,
    excluded: Sequence[Int64[np.ndarray, "_"]] | None,
) -> list[Int64[np.ndarray, "_"]]:
    """The first items of a companion's list for each query, of those that the search may return."""
    lists = []
    for query, row_list in enumerate(ranked):
        rows = row_list[row_list >= 0]
        if keep is not None:
            rows = rows[keep[rows]]
        if excluded is not None:
            rows = rows[~np.isin(rows, excluded[query])]
        lists.append(rows[:depth].astype(np.int64))
    return lists


def _padded(values: Sequence[np.ndarray], filler: float | int) -> np.ndarray:
    """Lists of unequal length as one array."""
    longest = max((len(part) for part in values), default=0)
    array = np.full((len(values), longest), filler, values[0].dtype if len(values) else np.int64)
    for number, part in enumerate(values):
        array[number, : len(part)] = part
    return array


def _membership(
    rows: Int64[np.ndarray, "query candidate"], lists: Sequence[Int64[np.ndarray, "_"]]
) -> Bool[np.ndarray, "query candidate"]:
    return np.stack([np.isin(candidates, own) & (candidates >= 0) for candidates, own in zip(rows, lists, strict=True)])
