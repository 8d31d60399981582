"""From ranked items to metrics: at the level of Semantic IDs, as the paper does, and at the level of items."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from restd.codes.keys import pack
from restd.errors import DataError
from restd.evaluate.metrics import Judged
from restd.evaluate.queries import TestSet
from restd.progress import progress
from restd.snapshot import Ranker, Snapshot

LEVELS = ("sid", "item")
_BATCH = 128


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The best items of every query; -1 where there are fewer."""

    rows: Int[np.ndarray, "query rank"]
    scores: Float[np.ndarray, "query rank"]
    snapshot_hash: str
    """Of the snapshot whose rows they are."""


def rank_all(ranker: Ranker, tests: TestSet, *, depth: int, name: str = "queries") -> Ranking:
    """Let a ranker answer every query."""
    rows = np.full((len(tests), depth), -1, np.int64)
    scores = np.full((len(tests), depth), -np.inf)
    with progress(f"Ranking for {name}", total=len(tests)) as advance:
        for start in range(0, len(tests), _BATCH):
            texts = tests.texts[start : start + _BATCH]
            best_rows, best_scores = ranker.rank(texts, depth)
            part, length = slice(start, start + len(texts)), best_rows.shape[1]
            rows[part, :length], scores[part, :length] = best_rows, best_scores
            advance(len(texts))
    return Ranking(rows, scores, ranker.snapshot_hash)


def units(snapshot: Snapshot, level: str) -> Int[np.ndarray, "item"]:
    """What counts as one result: an item, or all items of a Semantic ID."""
    if level == "item":
        return np.arange(len(snapshot))
    return np.unique(pack(snapshot.sids, snapshot.index.sizes), return_inverse=True)[1]


def largest_group(snapshot: Snapshot) -> int:
    """Items of the most crowded Semantic ID: how many times deeper items must be ranked for as many SIDs."""
    return int(np.bincount(units(snapshot, "sid")).max())


def judge(
    rows: Int[np.ndarray, "query rank"],
    tests: TestSet,
    unit_of: Int[np.ndarray, "item"],
    *,
    graded: bool = False,
    depth: int | None = None,
) -> Judged:
    """Judge rankings (eq. sid-relevance).

    Of items that share a unit the best grade counts; a unit stands where it was ranked first. What is not judged gains
    nothing. Every positive gains 1, or its grade.
    """
    ranks = depth or rows.shape[1]
    gains = np.zeros((len(tests), ranks))
    best: list[np.ndarray] = []
    for query in range(len(tests)):
        own = tests.positives(query)
        worth: dict[int, float] = {}
        for unit, grade in zip(unit_of[tests.rows[own]].tolist(), tests.grades[own].tolist(), strict=True):
            worth[unit] = max(worth.get(unit, 0.0), grade if graded else 1.0)
        ranked = rows[query]
        ordered = dict.fromkeys(unit_of[ranked[ranked >= 0]].tolist())
        for rank, unit in enumerate(list(ordered)[:ranks]):
            gains[query, rank] = worth.get(unit, 0.0)
        best.append(np.sort(np.fromiter(worth.values(), np.float64))[::-1])
    ideal = np.zeros((len(tests), max(map(len, best))))
    for query, grades in enumerate(best):
        ideal[query, : len(grades)] = grades
    return Judged(gains, ideal)


def ranking_table(ranking: Ranking, tests: TestSet, ids: pa.StringArray) -> pa.Table:
    """A ranking as a TREC run; scores that would put equals into another order are nudged apart by their ranks."""
    query, place = np.nonzero(ranking.rows >= 0)
    return pa.table(
        {
            "query_id": pa.array(tests.ids).take(pa.array(query)),
            "rank": pa.array(place + 1, pa.int32()),
            "item": ids.take(pa.array(ranking.rows[query, place])),
            "score": pa.array(_strictly_falling(ranking.scores)[query, place]),
        }
    )


def _strictly_falling(scores: Float[np.ndarray, "query rank"]) -> Float[np.ndarray, "query rank"]:
    """Scores that no reader can put into another order: trec_eval breaks ties by name, not by rank."""
    falling = np.array(scores, np.float64)
    for rank in range(1, falling.shape[1]):
        bound = np.nextafter(falling[:, rank - 1], -np.inf)
        own = falling[:, rank]
        falling[:, rank] = np.where(np.isfinite(own), np.minimum(own, bound), own)
    return falling


def read_ranking(run: pa.Table, tests: TestSet, snapshot: Snapshot, *, path: str) -> tuple[Ranking, list[str]]:
    """A TREC run as a ranking of these queries, and notes on what is missing; unknown items are an error."""
    names = run["item"].to_pylist()
    row_of = {name: row for row, name in enumerate(snapshot.ids.to_pylist())}
    unknown = [place for place, name in enumerate(names) if name not in row_of]
    if unknown:
        query = run["query_id"][unknown[0]].as_py()
        raise DataError(
            f"{path} ranks item {names[unknown[0]]!r} for query {query!r}, which the index does not have "
            f"({len(unknown):,} of {len(names):,} rows name unknown items); rank the items of this index, or name the "
            "index the run was made for."
        )
    place_of = {name: place for place, name in enumerate(tests.ids)}
    lists: list[list[tuple[int, float]]] = [[] for _ in tests.ids]
    strangers: set[str] = set()
    for query, name, score in zip(run["query_id"].to_pylist(), names, run["score"].to_pylist(), strict=True):
        if query in place_of:
            lists[place_of[query]].append((row_of[name], score))
        else:
            strangers.add(query)
    empty = sum(not ranked for ranked in lists)
    if empty == len(lists):
        raise DataError(
            f"{path} ranks nothing for any of the {len(tests):,} judged queries; its first query is "
            f"{run['query_id'][0].as_py() if len(run) else '(none)'!r}, theirs is {tests.ids[0]!r}. Check the split."
        )
    notes = []
    if strangers:
        notes.append(f"{len(strangers):,} queries of {path} are not judged in this split; they are left out")
    if empty:
        notes.append(f"{empty:,} judged queries have no result in {path}; they score nothing")
    return _padded(lists, snapshot.hash), notes


def _padded(lists: Sequence[Sequence[tuple[int, float]]], snapshot_hash: str) -> Ranking:
    depth = max(map(len, lists))
    rows, scores = np.full((len(lists), depth), -1, np.int64), np.full((len(lists), depth), -np.inf)
    for query, ranked in enumerate(lists):
        for rank, (row, score) in enumerate(ranked):
            rows[query, rank], scores[query, rank] = row, score
    return Ranking(rows, scores, snapshot_hash)
