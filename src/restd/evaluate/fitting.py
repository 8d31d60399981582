"""Weights of a hybrid search, fitted on validation queries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy.optimize import minimize

from restd.data.pairs import Pairs, read_pairs
from restd.distill.heads import FOLDER as HEADS_FOLDER
from restd.errors import ConfigError, DataError, RestdError
from restd.evaluate.judging import judge
from restd.evaluate.metrics import Measure
from restd.evaluate.queries import TestSet, read_tests, some_queries
from restd.progress import Notify, progress
from restd.rankers import COMPANIONS
from restd.search import Fusion, KeptHeads, Retriever, SearchOptions
from restd.search.candidates import GENERATOR, HEADS, CandidateTable, best_candidates
from restd.search.hybrid import collect_candidates
from restd.snapshot import Companion, Snapshot

MEASURE = Measure("NDCG", 10)
FOLDS = 5
MOST_QUERIES = 500
_BATCH = 128
_PENALTY = 1e-3
_WORTH = 0.05
"""A part that gains fewer points of NDCG@10 than this is not worth its time."""


@dataclass(frozen=True, slots=True, eq=False)
class FittingSet:
    """Validation queries with their candidates: all that fitting and ablations need."""

    tests: TestSet
    table: CandidateTable
    relevant: Bool[np.ndarray, "query candidate"]
    units: Int64[np.ndarray, "item"]

    @classmethod
    def of(cls, tests: TestSet, table: CandidateTable, snapshot: Snapshot) -> "FittingSet":
        """Mark which candidates answer their query."""
        rows = [tests.rows[tests.positives(query)] for query in range(len(tests))]
        relevant = np.stack([np.isin(candidates, own) for candidates, own in zip(table.rows, rows, strict=True)])
        return cls(tests, table, relevant, np.arange(len(snapshot)))

    def values(self, scores: Float[np.ndarray, "query candidate"]) -> Float[np.ndarray, "query"]:
        """NDCG@10 of every query, by item, when its candidates are ordered by these scores."""
        ranked, _ = best_candidates(self.table.rows, scores, MEASURE.k)
        return MEASURE.of(judge(ranked, self.tests, self.units, depth=MEASURE.k))


def fitting_queries(data: Path, snapshot: Snapshot) -> TestSet:
    """Queries that training did not learn from: those marked `valid`, or the tenth that training holds out.

    At most five hundred: a handful of weights needs no more.
    """
    try:
        tests = read_tests(data, snapshot, split="valid", task="search")
    except DataError:
        tests = _as_tests(read_pairs(data, snapshot.ids, need_training=False).valid, snapshot)
    return some_queries(tests, MOST_QUERIES) if len(tests) > MOST_QUERIES else tests


def _as_tests(pairs: Pairs, snapshot: Snapshot) -> TestSet:
    order = np.lexsort((pairs.item, pairs.text))
    numbers, first = np.unique(pairs.text[order], return_index=True)
    rows = pairs.item[order]
    return TestSet(
        split="held out of train",
        source="",
        snapshot_hash=snapshot.hash,
        ids=tuple(map(str, numbers.tolist())),
        texts=tuple(pairs.texts[number] for number in numbers.tolist()),
        first=np.append(first, len(rows)).astype(np.int64),
        rows=rows.astype(np.int64),
        grades=np.ones(len(rows)),
        trained=np.zeros(len(rows), np.int64),
    )


def collect(retriever: Retriever, tests: TestSet, *, parts: Sequence[str], options: SearchOptions) -> FittingSet:
    """Candidates of many queries, a batch at a time, from every part."""
    snapshot, tables = retriever.snapshot, []
    settled = replace(options, mode="hybrid").settled("search")
    with progress("Collecting candidates", total=len(tests)) as advance:
        for start in range(0, len(tests), _BATCH):
            texts = list(tests.texts[start : start + _BATCH])
            heads = retriever.heads if HEADS in parts else None
            tables.append(collect_candidates(retriever.generator, snapshot, texts, settled, parts=parts, heads=heads))
            advance(len(texts))
    return FittingSet.of(tests, _joined(tables), snapshot)


def _joined(tables: Sequence[CandidateTable]) -> CandidateTable:
    """Tables of several batches as one."""
    widest = max(table.rows.shape[1] for table in tables)

    def padded(arrays: list[np.ndarray], filler: Any) -> np.ndarray:
        return np.concatenate(
            [np.pad(part, ((0, 0), (0, widest - part.shape[1])), constant_values=filler) for part in arrays]
        )

    return CandidateTable(
        padded([table.rows for table in tables], -1),
        {part: padded([table.scores[part] for table in tables], -np.inf) for part in tables[0].scores},
        {part: padded([table.proposed[part] for table in tables], False) for part in tables[0].proposed},
        padded([_new(table) for table in tables], False),
    )


def _new(table: CandidateTable) -> Bool[np.ndarray, "query candidate"]:
    return np.zeros(table.rows.shape, bool) if table.new is None else table.new


def listwise_weights(
    features: Float[np.ndarray, "query candidate part"],
    among: Bool[np.ndarray, "query candidate"],
    relevant: Bool[np.ndarray, "query candidate"],
) -> Float[np.ndarray, "part"]:
    """Weights, none below 0, under which a softmax over each query's candidates is nearest to its relevant ones.

    The loss is convex: mean cross-entropy to the uniform distribution over relevant candidates, with a small penalty on
    squares. Queries without a relevant candidate, or without another one, teach nothing and are left out.
    """
    relevant = relevant & among
    useful = relevant.any(axis=1) & (among & ~relevant).any(axis=1)
    features, among, relevant = features[useful], among[useful], relevant[useful]
    parts = features.shape[-1]
    if not len(features) or not features.any():
        return np.zeros(parts)
    target = relevant / relevant.sum(axis=1, keepdims=True)
    blocked = np.where(among, 0.0, -np.inf)

    wanted = np.einsum("qc,qcp->p", target, features)
    flat = features.reshape(-1, parts)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        scores = (flat @ weights).reshape(among.shape) + blocked
        top = scores.max(axis=1, keepdims=True)
        odds = np.exp(scores - top)
        mass = odds.sum(axis=1, keepdims=True)
        value = (float((top + np.log(mass)).sum()) - float(wanted @ weights)) / len(features)
        gradient = ((odds / mass).ravel() @ flat - wanted) / len(features)
        return value + _PENALTY * float(weights @ weights), gradient + 2 * _PENALTY * weights

    result = minimize(loss, np.ones(parts), jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * parts)
    return np.where(result.x > 1e-6, result.x, 0.0)


def fit_on(part: FittingSet, parts: Sequence[str], rows: Int64[np.ndarray, "_"] | None = None) -> dict[str, float]:
    """Weights of these parts by some of the queries, or by all."""
    features, among = part.table.features(parts)
    chosen = slice(None) if rows is None else rows
    weights = listwise_weights(features[chosen], among[chosen], part.relevant[chosen])
    return dict(zip(parts, map(float, weights), strict=True))


def cross_validated(part: FittingSet, parts: Sequence[str]) -> Float[np.ndarray, "query"]:
    """NDCG@10 of every query under weights that other queries chose."""
    fold = np.arange(len(part.tests)) % FOLDS
    scores = np.full(part.table.rows.shape, -np.inf)
    for number in range(min(FOLDS, len(part.tests))):
        weights = fit_on(part, parts, np.flatnonzero(fold != number))
        if any(weights.values()):
            scores[fold == number] = part.table.fused(weights)[fold == number]
    return part.values(scores)


def available_parts(retriever: Retriever) -> list[str]:
    """Parts that a hybrid search of this retriever can have."""
    heads = [HEADS] if retriever.heads is not None else []
    return [GENERATOR, *heads, *(companion.name for companion in retriever.snapshot.companions)]


def add_parts(retriever: Retriever, names: Sequence[str] = (), *, notify: Notify) -> None:
    """Give a retriever the parts by these names, or all that can be made here; says which cannot, and why.

    Args:
        retriever: loaded from the folder of its model.
        names: of parts; one of them that cannot be made is an error.
        notify: receives a sentence about every part that is left out.
    """
    known = (GENERATOR, HEADS, *COMPANIONS)
    for name in names:
        if name not in known:
            raise ConfigError(f"Unknown part {name!r} of a hybrid search. Known: {', '.join(known)}.")
    if retriever.source is None:
        raise ConfigError("Parts are made from the folders of a model; load the retriever from its folder.")
    folder = retriever.source.parent
    if HEADS in names or (not names and (folder / HEADS_FOLDER).is_dir()):
        retriever.heads = KeptHeads.load(folder, retriever.snapshot)
    made: list[Companion] = []
    for name in COMPANIONS:
        if names and name not in names:
            continue
        try:
            retriever.set_companions([name])
        except RestdError as error:
            if names:
                raise
            notify(f"Without {name}: {error}")
            continue
        made += retriever.snapshot.companions
    retriever.set_companions(made)


def fit_fusion(
    retriever: Retriever,
    tests: TestSet,
    *,
    options: SearchOptions | None = None,
    notify: Notify,
) -> Fusion:
    """Fit the weights of a hybrid search; parts that gain nothing are dropped.

    Args:
        retriever: with its companions, and with its heads where they are to be a part.
        tests: validation queries: neither training nor the final evaluation may use them.
        options: how the model searches.
        notify: receives progress messages.
    """
    parts = available_parts(retriever)
    if not len(tests):
        notify("There are no validation queries to choose weights by; fixed ones are used")
        return Fusion.fixed(parts)
    return fit_collected(
        retriever, collect(retriever, tests, parts=parts, options=options or SearchOptions()), notify=notify
    )


def fit_collected(retriever: Retriever, fitting: FittingSet, *, notify: Notify) -> Fusion:
    """Fit the weights on candidates that were collected before.

    Args:
        retriever: whose candidates they are.
        fitting: validation queries with the candidates of every part.
        notify: receives progress messages.
    """
    parts, tests = list(fitting.table.scores), fitting.tests
    single = {
        part: float(fitting.values(fitting.table.fused({part: 1.0})).mean())
        for part in parts
        if part in _lists(fitting)
    }
    if len(tests) < 2 or not any(fit_on(fitting, parts).values()):
        notify(
            f"{len(tests)} validation {'query' if len(tests) == 1 else 'queries'} with these candidates cannot choose "
            "weights; fixed ones are used"
        )
        return Fusion.fixed(parts)
    kept = _eliminated(fitting, parts)
    weights = fit_on(fitting, kept)
    report = {
        "queries": len(tests),
        "measure": str(MEASURE),
        "cross_validated": float(cross_validated(fitting, kept).mean()),
        "folds": min(FOLDS, len(tests)),
        "parts": single,
        "dropped": [part for part in parts if part not in kept],
    }
    return replace(Fusion(weights), layout=retriever.index.layout(), model=retriever.model_hash, report=report)


def _lists(fitting: FittingSet) -> set[str]:
    """Parts that propose items of their own."""
    return {part for part, proposed in fitting.table.proposed.items() if proposed.any()}


def _eliminated(fitting: FittingSet, parts: Sequence[str]) -> list[str]:
    """Drop parts one after another, the least important first, as long as rankings lose nothing by it.

    A handful of weights does not overfit hundreds of queries, so the same queries choose; what the result is worth is
    cross-validated afterwards.
    """
    kept = list(parts)
    score = float(fitting.values(fitting.table.fused(fit_on(fitting, kept))).mean())
    while len(kept) > 1:
        without = {}
        for part in kept:
            rest = [other for other in kept if other != part]
            if _lists(fitting) & set(rest) and any((weights := fit_on(fitting, rest)).values()):
                without[part] = float(fitting.values(fitting.table.fused(weights)).mean())
        if not without:
            break
        least = max(without, key=lambda part: (without[part], part))
        if without[least] < score - _WORTH:
            break
        kept.remove(least)
        score = without[least]
    return kept
