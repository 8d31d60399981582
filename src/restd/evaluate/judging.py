"""From ranked items to metrics: at the level of Semantic IDs, as the paper does, and at the level of items."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from restd.errors import DataError
from restd.evaluate.metrics import Judged
from restd.evaluate.queries import TestSet
from restd.index import SidIndex
from restd.index.keys import pack
from restd.progress import progress
from restd.search.fusion import Ranker

LEVELS = ("sid", "item")
_BATCH = 128


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The best items of every query; -1 where there are fewer."""

    rows: Int[np.ndarray, "query rank"]
    scores: Float[np.ndarray, "query rank"]


def rank_all(ranker: Ranker, tests: TestSet, *, depth: int, name: str = "queries") -> Ranking:
    """Let a ranker answer every query."""
    rows = np.full((len(tests), depth), -1, np.int64)
    scores = np.full((len(tests), depth), -np.inf)
    with progress(f"Ranking for {name}", total=len(tests)) as advance:
        for start in range(0, len(tests), _BATCH):
            texts = tests.texts[start : start + _BATCH]
            found, scored = ranker.rank(texts, depth)
            held = slice(start, start + len(texts))
            rows[held, : found.shape[1]], scores[held, : found.shape[1]] = found, scored
            advance(len(texts))
    return Ranking(rows, scores)


def units(index: SidIndex, level: str) -> Int[np.ndarray, "item"]:
    """What counts as one result: an item, or all items of a Semantic ID."""
    if level == "item":
        return np.arange(len(index))
    return np.unique(pack(index.sids, index.sizes), return_inverse=True)[1]


def largest_group(index: SidIndex) -> int:
    """Items of the most crowded Semantic ID: how many times deeper items must be ranked for as many SIDs."""
    return int(np.bincount(units(index, "sid")).max())


def judge(
    rows: Int[np.ndarray, "query rank"],
    tests: TestSet,
    unit_of: Int[np.ndarray, "item"],
    *,
    graded: bool = False,
    depth: int | None = None,
) -> Judged:
    """Hold rankings against the judgments (eq. sid-relevance).

    Of items that share a unit the best grade counts; a unit stands where it was ranked first. What nobody judged gains
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
    for query, held in enumerate(best):
        ideal[query, : len(held)] = held
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
    held = np.array(scores, np.float64)
    for rank in range(1, held.shape[1]):
        bound = np.nextafter(held[:, rank - 1], -np.inf)
        held[:, rank] = np.where(np.isfinite(held[:, rank]), np.minimum(held[:, rank], bound), held[:, rank])
    return held


def read_ranking(run: pa.Table, tests: TestSet, index: SidIndex, *, path: str) -> tuple[Ranking, list[str]]:
    """A TREC run as a ranking of these queries, and what there is to say of it; unknown items are an error."""
    names = run["item"].to_pylist()
    row_of = {name: row for row, name in enumerate(index.table.ids.to_pylist())}
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
    empty = sum(not held for held in lists)
    if empty == len(lists):
        raise DataError(
            f"{path} ranks nothing for any of the {len(tests):,} judged queries; its first query is "
            f"{run['query_id'][0].as_py() if len(run) else '(none)'!r}, theirs is {tests.ids[0]!r}. Check the split."
        )
    return _padded(lists), _said(strangers, empty, path)


def _said(strangers: set[str], empty: int, path: str) -> list[str]:
    said = []
    if strangers:
        said.append(f"{len(strangers):,} queries of {path} are not judged in this split; they are left out")
    if empty:
        said.append(f"{empty:,} judged queries have no result in {path}; they score nothing")
    return said


def _padded(lists: Sequence[Sequence[tuple[int, float]]]) -> Ranking:
    depth = max(map(len, lists))
    rows, scores = np.full((len(lists), depth), -1, np.int64), np.full((len(lists), depth), -np.inf)
    for query, held in enumerate(lists):
        for rank, (row, score) in enumerate(held):
            rows[query, rank], scores[query, rank] = row, score
    return Ranking(rows, scores)
