"""Evaluations of a study: computed once, and reused while nothing they depend on has changed."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from restd.artifacts import hash_json, read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.data.dataset import items_hash
from restd.distill.heads import FOLDER as HEADS
from restd.errors import ConfigError
from restd.evaluate import Evaluation, TestSet, evaluate, fit_fusion, fitting_queries
from restd.evaluate.fitting import add_parts
from restd.experiments.comparison import Comparison
from restd.models import CachedRoutes, kind_of, open_model
from restd.progress import Notify
from restd.rankers import Ranker, RankerContext, decoding_of, make_ranker
from restd.search import Retriever, RetrieverRanker
from restd.search.fusion import FOLDER as FUSION
from restd.snapshot import Snapshot

EVALUATIONS, BASELINES = "evaluations", "baselines"
START = "start"
"""Name of the checkpoint that all cells continue from, beside the baselines."""
NO_HEADS = "none: this objective trains no heads"
"""What a card says of a cell that is searched without heads in a study that uses them."""
WEIGHTS, FITTED = "weights", "fitted"
"""What the card of a hybrid search says of its own fusion; it differs from cell to cell."""


def evaluation_folder(comparison: Comparison, name: str) -> Path:
    """Where the evaluation of a cell, a baseline or the initial checkpoint is kept."""
    return comparison.out / EVALUATIONS / f"{file_name(name)}-{comparison.split}"


def file_name(name: str) -> str:
    """A name that any file system takes, as it is where it is one already; hub ids and folders are none.

    >>> file_name("bm25"), file_name("dense:BAAI/bge-m3")
    ('bm25', 'dense-BAAI-bge-m3-99868437')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return plain if plain == name else f"{plain}-{hash_json(name)[:8]}"


def evaluate_model(
    comparison: Comparison,
    name: str,
    model: Path,
    tests: TestSet,
    snapshot: Snapshot,
    *,
    seeds: tuple[int, ...],
    notify: Notify,
) -> Evaluation:
    """Evaluate a trained model, or load its evaluation if nothing it depends on has changed.

    A hybrid search is fitted on the validation queries first. Where heads are used, a model whose objective trained
    none is searched without, and its card says so.
    """
    manifest = read_manifest(model)
    kind = kind_of(manifest.settings["backbone"])
    options, hybrid = comparison.decoding, comparison.decoding.mode == "hybrid"
    decoding = options.card(task=kind.task, routes=kind.routes)
    if kind.routes:
        decoding["router"] = comparison.router
    if options.heads is not None and not (model.parent / HEADS).is_dir():
        options, decoding["heads"] = replace(options, heads=None), NO_HEADS
        notify(f"{name} is searched without heads: its objective trains none")

    def ranker() -> tuple[Ranker, dict[str, Any]]:
        uses_heads = options.heads is not None
        retriever = Retriever.load(
            model, comparison.index, comparison.data, keep_heads=uses_heads, device=comparison.device
        )
        fitted = _fit(comparison, name, retriever, notify) if hybrid else {}
        return RetrieverRanker(retriever, options, _routes(comparison, tests)), fitted

    parents = {"model": manifest.content}
    if options.where or hybrid:
        parents |= item_sources(comparison, snapshot)
    if (options.heads is not None or hybrid) and (model.parent / HEADS).is_dir():
        parents["heads"] = read_manifest(model.parent / HEADS).content
    return _evaluated(comparison, name, ranker, tests, snapshot, decoding=decoding, parents=parents, seeds=seeds)


def evaluate_baseline(
    comparison: Comparison, name: str, tests: TestSet, snapshot: Snapshot, *, notify: Notify
) -> Evaluation:
    """Evaluate a baseline, or load its evaluation if nothing it depends on has changed."""
    trained, seen = comparison.out / BASELINES, bool(comparison.decoding.settled(comparison.task).seen)
    context = RankerContext(
        snapshot,
        comparison.data,
        comparison.index,
        comparison.task,
        trained,
        seen,
        settings=comparison.baseline_settings,
        notify=notify,
    )

    def ranker() -> tuple[Ranker, dict[str, Any]]:
        notify(f"Baseline {name}")
        return make_ranker(name, context), {}

    decoding = decoding_of(name, context)
    parents = item_sources(comparison, snapshot)
    return _evaluated(comparison, name, ranker, tests, snapshot, decoding=decoding, parents=parents)


def _fit(comparison: Comparison, name: str, retriever: Retriever, notify: Notify) -> dict[str, Any]:
    """Fit a model's hybrid search on the validation queries and keep it beside the model; what the card says of it.

    That of the initial checkpoint is kept in the study: its own folder is not the study's to write to.
    """
    assert retriever.source is not None
    add_parts(retriever, notify=notify)
    valid = fitting_queries(comparison.data, retriever.snapshot)
    notify(f"Fitting the hybrid search of {name} on {len(valid):,} validation queries")
    fusion = fit_fusion(retriever, valid, options=comparison.decoding, notify=notify)
    fusion.save((comparison.out / BASELINES / START if name == START else retriever.source.parent) / FUSION)
    retriever.fusion = fusion
    return {WEIGHTS: dict(fusion.weights), FITTED: fusion.is_fitted}


def item_sources(comparison: Comparison, snapshot: Snapshot) -> dict[str, str]:
    """What is read beside judgments or histories and the snapshot: texts and columns of items, and embeddings."""
    sources = {"items": items_hash(comparison.data), "embeddings": snapshot.embeddings}
    return {source: content for source, content in sources.items() if content is not None}


def _evaluated(
    comparison: Comparison,
    name: str,
    ranker: Callable[[], tuple[Ranker, dict[str, Any]]],
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
    made, fitted = ranker()
    evaluation, _ = evaluate(
        made,
        tests,
        snapshot,
        name=name,
        measures=comparison.measures,
        graded=comparison.graded,
        decoding={**decoding, **fitted},
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
