"""Why an item was found, or where the beam lost it."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from restd.codes import Trie
from restd.data import Query
from restd.models.contract import Memory
from restd.models.decode_protocol import Stepper
from restd.search.answers import Explanation, PartScore
from restd.search.beam import exact_rank, exact_scores
from restd.search.generate import Generator, Plan
from restd.search.heads import KeptHeads
from restd.search.options import SearchOptions
from restd.search.trace import TracedSearch
from restd.snapshot import Snapshot

EFFORT = 2_000_000
"""Prefixes to decode at most, to rank an item exactly or to look for the beam that it needs."""
_TRACES = 16
"""Searches that looking for a beam takes, about."""


def explain(
    generator: Generator,
    snapshot: Snapshot,
    query: Query,
    row: int,
    options: SearchOptions,
    *,
    k: int,
    rank: int | None,
    parts: Mapping[str, PartScore] | None = None,
    heads: KeptHeads | None = None,
    effort: int = EFFORT,
) -> Explanation:
    """Follow one item through the generative search that these settled options describe.

    Args:
        generator: the model.
        snapshot: what is searched.
        query: a text or a history.
        row: of the item.
        options: as the generative part of the search has them.
        k: number of items that are shown.
        rank: the item's place in the result.
        parts: the item's score in a hybrid search, part by part.
        heads: kept heads, where the options use them.
        effort: prefixes to decode at most for the exact rank, and for the beam needed; beyond it they are None.
    """
    search = TracedSearch.of(generator, snapshot, query, options, heads=heads)
    plan = search.plan
    sid = torch.from_numpy(snapshot.sids[row].astype(np.int64)).to(snapshot.device)
    levels, reached = search.trace(sid, search.width)
    excluded = _excluded(plan, search.trie, row)
    needed = None
    if excluded is None:
        widest = max(1, effort // (_TRACES * len(sid)))
        needed = search.width if reached else search.width_needed(sid, search.width, widest=widest)
    exact = None
    if excluded in (None, "categories"):
        trie = snapshot.trie_of(_listed(snapshot, plan))
        if trie.leaves <= effort:
            exact = rank_of_all(search.stepper, search.memory, trie, sid, trie_normalized=search.trie_normalized)
    return Explanation(
        query=str(query),
        item=snapshot.ids[row].as_py(),
        title=snapshot.items.titles()[row].as_py(),
        sid=snapshot.index.table.shown(np.array([row]))[0],
        k=k,
        beam=search.width - search.extra,
        levels=levels,
        rank=rank,
        exact_rank=exact,
        beam_needed=None if needed is None else needed - search.extra,
        parts=parts,
        excluded=excluded,
    )


def _excluded(plan: Plan, trie: Trie, row: int) -> Literal["filter", "history", "categories"] | None:
    if plan.keep is not None and not plan.keep[row]:
        return "filter"
    if row in plan.seen[0]:
        return "history"
    return None if bool((trie.rows == row).any()) else "categories"


def _listed(snapshot: Snapshot, plan: Plan) -> np.ndarray | None:
    """Items that could come back, whatever the categories; None for all."""
    if not len(plan.seen[0]):
        return plan.keep
    listed = np.ones(len(snapshot), bool) if plan.keep is None else plan.keep.copy()
    listed[plan.seen[0]] = False
    return listed


def rank_of_all(
    stepper: Stepper, memory: Memory, trie: Trie, sid: Int64[Tensor, "level"], *, trie_normalized: bool
) -> int:
    """Rank* of a SID."""
    scores = exact_scores(stepper, memory, trie, trie_normalized=trie_normalized)
    return int(exact_rank(scores, trie.find(sid[None]))[0])
