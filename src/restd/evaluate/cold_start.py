"""How well items are found that were added after training, by each way of searching."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64

from restd._arrow import pc
from restd.data import read_judgments
from restd.errors import ConfigError, DataError
from restd.evaluate.fitting import (
    MOST_QUERIES,
    FittingSet,
    collect,
    fit_on,
    fitting_queries,
    listwise_weights,
)
from restd.evaluate.queries import TestSet, read_tests, some_queries
from restd.evaluate.scoreboard import DEEPEST, HYBRID, LEXICAL_AND_DENSE, WITHOUT, Scoreboard, judged_values
from restd.progress import Notify
from restd.search import Retriever, SearchOptions
from restd.search.candidates import HEADS
from restd.snapshot import Snapshot

ON_NEW = {LEXICAL_AND_DENSE: "bm25_dense_on_new", HYBRID: "hybrid_on_new"}
"""Names of the same rankers with weights that were fitted on validation queries for new items."""
_Answers = Mapping[str, Int64[np.ndarray, "_"]]


@dataclass(frozen=True, slots=True, eq=False)
class ColdStart:
    """What a search is worth for items it was not trained on.

    Args:
        new: rankers on the test queries that new items answer, after adding them.
        known: the same rankers on the test queries that known items answer, after adding the new ones.
        before: the same queries before adding.
        only_new: which queries of `new` no known item answers.
        items: number of known and of new items.
        fitted_on: number of validation queries that chose the weights: of known items, and of new ones.
    """

    new: Scoreboard
    known: Scoreboard
    before: Scoreboard
    only_new: Bool[np.ndarray, "query"]
    items: Mapping[str, int]
    fitted_on: Mapping[str, int]


def add_catalog(retriever: Retriever, path: Path) -> int:
    """Add every item of a table to a loaded search, read as the search's own items were; returns how many.

    Args:
        retriever: a trained search that knows its catalogue.
        path: table of the new items, or a data folder.
    """
    known = retriever.snapshot.items.catalog
    if known is None:
        raise ConfigError("The search does not know its own items' table; load the retriever with its catalogue.")
    # the columns of the text are those of the known items, whatever a first glance at the new ones would say
    catalog = replace(known, path=path, text=tuple(known.text_columns))
    present = pc.is_in(catalog.ids(), value_set=retriever.snapshot.ids)
    if count := pc.sum(present).as_py():
        raise DataError(
            f"{count:,} of the {len(present):,} items of {path} are in the index already, so they are not new. "
            "Expected a search that was trained without them: restd data hold-out makes the two folders."
        )
    items, texts = catalog.items_with_texts()
    retriever.add(items, texts=texts)
    return len(items)


def measure_cold_start(
    retriever: Retriever,
    new: Path,
    *,
    parts: Sequence[str],
    notify: Notify,
    options: SearchOptions | None = None,
) -> ColdStart:
    """Add new items to a trained search and judge every way of searching, without any training.

    An item of the other kind that answers the query too is neither right nor wrong: it is taken out of the list before
    judging. Weights are those that validation queries of known items chose; where `new` has validation queries,
    the rankers are shown with weights fitted on those as well.

    Args:
        retriever: a fitted hybrid search of the known items, with all its parts; the new items are in it afterwards.
        new: folder with the new items and the judgments that name them, as `restd data hold-out` writes it.
        parts: of the hybrid search: the generator, heads, companions.
        notify: receives progress messages.
        options: how to search.
    """
    fusion, data, options = retriever.fusion, retriever.data, options or SearchOptions()
    if fusion is None or data is None:
        raise ConfigError("Cold start is measured on a fitted hybrid search that knows its data; run restd fit first.")
    known_items, ids = len(retriever.snapshot), retriever.snapshot.ids
    known_queries = fitting_queries(data, retriever.snapshot)
    notify(f"Collecting candidates of known items ({known_items:,})")
    valid = collect(retriever, known_queries, parts=parts, options=options)
    deep = replace(options, k=DEEPEST)
    before = collect(retriever, read_tests(data, retriever.snapshot, task="search"), parts=parts, options=deep)
    weights = _weights(valid, before, fusion.weights)

    notify(f"Adding the items of {new}")
    added = add_catalog(retriever, new)
    snapshot = retriever.snapshot
    assert snapshot.ids.slice(0, known_items).equals(ids), "new items stand behind the known ones"
    known_answers, new_answers = _answers(data, snapshot), _answers(new, snapshot)
    if any((rows < known_items).any() for rows in new_answers.values()):
        raise DataError(f"Judgments of {new} name known items; expected judgments of the new ones alone.")
    sides: dict[str, tuple[FittingSet, Bool[np.ndarray, "query candidate"]]] = {}
    for name, folder, others in (("new", new, known_answers), ("known", data, new_answers)):
        tests = read_tests(folder, snapshot, task="search")
        notify(f"Collecting candidates of {len(tests):,} test queries for {name} items")
        reach = replace(options, k=DEEPEST + _most(tests, others))
        collected = collect(retriever, tests, parts=parts, options=reach)
        sides[name] = (collected, _ignored(collected, others))
    fitted_on = {"known": len(known_queries), "new": 0}
    if (queries := _validation(new, snapshot)) is not None:
        fitted_on["new"] = len(queries)
        weights |= _weights_on_new(collect(retriever, queries, parts=parts, options=options), known_answers, parts)
    boards = {name: _board(collected, weights, ignored) for name, (collected, ignored) in sides.items()}
    only_new = np.array([str(text) not in known_answers for text in sides["new"][0].tests.texts])
    items = {"known": known_items, "new": added}
    return ColdStart(boards["new"], boards["known"], _board(before, weights), only_new, items, fitted_on)


def _weights(valid: FittingSet, tests: FittingSet, hybrid: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    """Every part that proposes items alone, BM25 with dense search, and the hybrid search with and without heads."""
    weights: dict[str, Mapping[str, float]] = {
        part: {part: 1.0} for part, proposed in tests.table.proposed.items() if proposed.any()
    }
    if {"bm25", "dense"} <= set(weights):
        weights[LEXICAL_AND_DENSE] = fit_on(valid, ["bm25", "dense"])
    rest = [part for part, weight in hybrid.items() if weight and part != HEADS]
    if hybrid.get(HEADS) and rest:
        weights[f"{WITHOUT}{HEADS}"] = fit_on(valid, rest)
    return {**weights, HYBRID: hybrid}


def _weights_on_new(valid: FittingSet, known_answers: _Answers, parts: Sequence[str]) -> dict[str, Mapping[str, float]]:
    """Weights of the same rankers by queries for new items; known answers teach neither way."""
    ignored = _ignored(valid, known_answers)
    weights: dict[str, Mapping[str, float]] = {}
    for name, own in ((LEXICAL_AND_DENSE, ["bm25", "dense"]), (HYBRID, list(parts))):
        if set(own) <= set(parts):
            features, among = valid.table.features(own)
            fitted = listwise_weights(features, among & ~ignored, valid.relevant)
            weights[ON_NEW[name]] = dict(zip(own, map(float, fitted), strict=True))
    return weights


def _board(
    tests: FittingSet,
    weights: Mapping[str, Mapping[str, float]],
    ignored: Bool[np.ndarray, "query candidate"] | None = None,
) -> Scoreboard:
    kept = {name: own for name, own in weights.items() if any(own.values())}
    return Scoreboard({name: judged_values(tests, own, ignored=ignored) for name, own in kept.items()}, kept)


def _answers(data: Path, snapshot: Snapshot) -> dict[str, Int64[np.ndarray, "_"]]:
    """Rows of all items that answer each query, by its text, in any split."""
    judgments = read_judgments(data)
    rows = pc.index_in(judgments["item"], value_set=snapshot.ids)
    positive = pc.and_(pc.greater(judgments["grade"], 0.0), pc.is_valid(rows))
    texts = judgments["query"].filter(positive).to_pylist()
    answers: dict[str, list[int]] = {}
    for text, row in zip(texts, rows.filter(positive).to_pylist(), strict=True):
        answers.setdefault(text, []).append(row)
    return {text: np.array(own, np.int64) for text, own in answers.items()}


def _most(tests: TestSet, others: _Answers) -> int:
    """Most items that are taken out of one query's list."""
    return max((len(others.get(str(text), ())) for text in tests.texts), default=0)


def _ignored(collected: FittingSet, others: _Answers) -> Bool[np.ndarray, "query candidate"]:
    """Candidates that answer their query and are of the other kind."""
    none = np.zeros(0, np.int64)
    rows = [others.get(str(text), none) for text in collected.tests.texts]
    return np.stack([np.isin(own, out) for own, out in zip(collected.table.rows, rows, strict=True)])


def _validation(new: Path, snapshot: Snapshot) -> TestSet | None:
    """Validation queries for new items, where there are any; as many as weights are fitted on at most."""
    if not pc.any(pc.equal(read_judgments(new)["split"], "valid")).as_py():
        return None
    return some_queries(read_tests(new, snapshot, split="valid", task="search"), MOST_QUERIES)
