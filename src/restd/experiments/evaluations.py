"""Evaluations of a study: computed once, and reused while nothing they depend on has changed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from restd.artifacts import hash_json, read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.data.dataset import items_hash
from restd.errors import ConfigError
from restd.evaluate import Evaluation, TestSet, evaluate
from restd.experiments.comparison import Comparison
from restd.models import CachedRoutes, kind_of, open_model
from restd.progress import Notify
from restd.rankers import Ranker, RankerContext, decoding_of, make_ranker
from restd.search import Retriever, RetrieverRanker
from restd.snapshot import Snapshot

EVALUATIONS, BASELINES = "evaluations", "baselines"
START = "start"
"""Name of the checkpoint that all cells continue from, beside the baselines."""


def evaluation_folder(comparison: Comparison, name: str) -> Path:
    """Where the evaluation of a cell, a baseline or the initial checkpoint is kept."""
    return comparison.out / EVALUATIONS / f"{name}-{comparison.split}"


def evaluate_model(
    comparison: Comparison, name: str, model: Path, tests: TestSet, snapshot: Snapshot, *, seeds: tuple[int, ...]
) -> Evaluation:
    """Evaluate a trained model, or load its evaluation if nothing it depends on has changed."""
    manifest = read_manifest(model)
    kind = kind_of(manifest.settings["backbone"])
    decoding = comparison.decoding.card(task=kind.task, routes=kind.routes)
    if kind.routes:
        decoding["router"] = comparison.router

    def ranker() -> Ranker:
        retriever = Retriever.load(model, comparison.index, comparison.data, device=comparison.device)
        return RetrieverRanker(retriever, comparison.decoding, _routes(comparison, tests))

    parents = {"model": manifest.content}
    return _evaluated(comparison, name, ranker, tests, snapshot, decoding=decoding, parents=parents, seeds=seeds)


def evaluate_baseline(
    comparison: Comparison, name: str, tests: TestSet, snapshot: Snapshot, *, notify: Notify
) -> Evaluation:
    """Evaluate a baseline, or load its evaluation if nothing it depends on has changed."""
    trained, seen = comparison.out / BASELINES, bool(comparison.decoding.settled(comparison.task).seen)
    context = RankerContext(snapshot, comparison.data, comparison.index, comparison.task, trained, seen)

    def ranker() -> Ranker:
        notify(f"Baseline {name}")
        return make_ranker(name, context)

    decoding = decoding_of(name, context)
    # what baselines read beside judgments or histories and the snapshot: texts, and embeddings
    sources = {"items": items_hash(comparison.data), "embeddings": snapshot.embeddings}
    parents = {source: content for source, content in sources.items() if content is not None}
    return _evaluated(comparison, name, ranker, tests, snapshot, decoding=decoding, parents=parents)


def _evaluated(
    comparison: Comparison,
    name: str,
    ranker: Callable[[], Ranker],
    tests: TestSet,
    snapshot: Snapshot,
    *,
    decoding: Mapping[str, Any],
    parents: Mapping[str, str],
    seeds: tuple[int, ...] = (),
) -> Evaluation:
    folder = evaluation_folder(comparison, name)
    rules = {"measures": list(map(str, comparison.measures)), "graded": comparison.graded, "decoding": dict(decoding)}
    parents = {**parents, "judgments": tests.source, "snapshot": snapshot.hash, "rules": hash_json(rules)}
    if (folder / MANIFEST).is_file() and read_manifest(folder).parents == parents:
        return Evaluation.load(folder)
    evaluation, _ = evaluate(
        ranker(),
        tests,
        snapshot,
        name=name,
        measures=comparison.measures,
        graded=comparison.graded,
        decoding=decoding,
        seeds=seeds,
    )
    evaluation.save(folder, parents=parents)
    return evaluation


def _routes(comparison: Comparison, tests: TestSet) -> CachedRoutes | None:
    """Categories chosen by the initial checkpoint, where `router` says so."""
    decoding = comparison.decoding
    if comparison.router == "own" or not decoding.category_width or comparison.init is None:
        return None
    start, _ = open_model(comparison.init, device=comparison.device)
    if not start.routes:
        raise ConfigError(f"{comparison.init} knows no categories, so it cannot route queries; leave --router own.")
    return CachedRoutes.of(start.eval(), list(map(str, tests.texts)), width=decoding.category_width)
