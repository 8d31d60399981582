"""Leaves and rows made into results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Int64
from torch import Tensor

from restd.codes import Trie
from restd.search.answers import Hit, PartScore
from restd.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class RankedList:
    """Items of one query, best first."""

    rows: Int64[np.ndarray, "rank"]
    scores: Float[np.ndarray, "rank"]

    @classmethod
    def of_leaves(
        cls, trie: Trie, leaves: Int64[Tensor, "beam"], scores: Float[Tensor, "beam"], depth: int
    ) -> "RankedList":
        """The first items of ranked leaves; those that share a Semantic ID follow one another in the order of rows."""
        reached = leaves >= 0
        rows: list[int] = []
        values: list[float] = []
        pairs = zip(trie.items_of(leaves[reached][:depth]), scores[reached][:depth].tolist(), strict=True)
        for items, score in pairs:
            if len(rows) >= depth:
                break
            rows += items
            values += [score] * len(items)
        return cls(np.array(rows[:depth], np.int64), np.array(values[:depth], np.float64))

    def without(self, rows: Int64[np.ndarray, "_"]) -> "RankedList":
        """The list without some items.

        >>> RankedList(np.array([4, 5, 6]), np.array([-1.0, -2.0, -3.0])).without(np.array([5])).rows.tolist()
        [4, 6]
        """
        if not len(rows):
            return self
        keep = ~np.isin(self.rows, rows)
        return RankedList(self.rows[keep], self.scores[keep])


def stack(
    lists: Sequence[RankedList], k: int
) -> tuple[Int64[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
    """The first k of every list, one row per query; -1 behind lists that are shorter."""
    rows, scores = np.full((len(lists), k), -1, np.int64), np.full((len(lists), k), -np.inf, np.float64)
    for query, ranked in enumerate(lists):
        count = min(k, len(ranked.rows))
        rows[query, :count], scores[query, :count] = ranked.rows[:count], ranked.scores[:count]
    return rows, scores


def first_rows(rows: Int[np.ndarray, "query _"], count: int) -> Int64[np.ndarray, "query _"]:
    """The first `count` rows of each query, skipping ranks that are not filled.

    >>> first_rows(np.array([[3, -1, 5, 6], [-1, -1, -1, 2]]), 2).tolist()
    [[3, 5], [2, -1]]
    """
    lists = [[row for row in ranked if row >= 0][:count] for ranked in rows.tolist()]
    first = np.full((len(rows), max(map(len, lists), default=0)), -1, np.int64)
    for query, ranked in enumerate(lists):
        first[query, : len(ranked)] = ranked
    return first


def make_hits(
    snapshot: Snapshot,
    rows: Int[np.ndarray, "query rank"],
    scores: Float[np.ndarray, "query rank"],
    parts: Sequence[Sequence[Mapping[str, PartScore]]] | None = None,
) -> list[list[Hit]]:
    """Ranked rows as results, with the parts of their scores if given; ranks that are not filled are left out."""
    titles, table = snapshot.items.titles(), snapshot.index.table
    return [
        [
            Hit(
                snapshot.ids[row].as_py(),
                titles[row].as_py(),
                score,
                sid,
                None if parts is None else parts[query][rank],
            )
            for rank, (row, score, sid) in enumerate(
                zip(ranked.tolist(), values.tolist(), table.shown(ranked), strict=True)
            )
            if row >= 0
        ]
        for query, (ranked, values) in enumerate(zip(rows, scores, strict=True))
    ]
