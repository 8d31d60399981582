"""Stages of a comparison of systems: functions that a process of its own can run, with their results left on disk."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from restd.artifacts.link import link_artifact
from restd.artifacts.manifest import MANIFEST
from restd.data import Catalog
from restd.data.dataset import optional_table
from restd.encode import Embeddings, encode_catalog
from restd.evaluate import TestSet, beam_negatives, ranked_validation, read_tests
from restd.experiments.comparison import Comparison
from restd.experiments.costs import is_finished, measure_cost
from restd.experiments.evaluations import BASELINES, evaluate_baseline, evaluate_model
from restd.index import IndexConfig, build_index
from restd.memory import peak_bytes
from restd.models.store import model_folder
from restd.progress import Notify
from restd.rankers import Ranker, RankerContext, make_ranker
from restd.search import Retriever, RetrieverRanker
from restd.snapshot import Snapshot
from restd.train import Job, train_retriever

EMBEDDINGS = "embeddings"
_WARM_UP, _TIMED, _HITS = 3, 50, 10


@dataclass(frozen=True, slots=True)
class Stage:
    """What every stage needs: where its cost is kept, what it is made from, and whether it has a process of its own."""

    cost: Path
    key: str = ""
    own_process: bool = True


def encode_items(
    stage: Stage, data: Path, out: Path, encoder: str, seed: int, device: str | None, notify: Notify
) -> None:
    """Encode the catalogue once for all systems."""

    def work() -> Mapping[str, Any]:
        notify(f"Encoding {data}")
        embeddings = encode_catalog(Catalog(data), out / EMBEDDINGS, encoder=encoder, device=device, seed=seed)
        return {"items": embeddings.items, "encoder": embeddings.settings["encoder"]["name"]}

    measure_cost(stage.cost, work, key=stage.key, own_process=stage.own_process)


def make_index(
    stage: Stage, data: Path, out: Path, config: IndexConfig, embeddings: Path, device: str | None, notify: Notify
) -> None:
    """Make the index of one or more systems from the embeddings that all share."""
    if not (out / EMBEDDINGS / MANIFEST).is_file():
        requested = Embeddings.open(embeddings).settings["requested"]
        if (requested["encoder"], requested["seed"]) == (config.encoder, config.section(config.quantizer).seed):
            link_artifact(embeddings, out / EMBEDDINGS)
    judgments = data if optional_table(data, "judgments") is not None else None

    def work() -> Mapping[str, Any]:
        index = build_index(Catalog(data), out, config, judgments=judgments, device=device, notify=notify)
        return {"unique_sids": index.table.unique, "sizes": list(index.sizes)}

    measure_cost(stage.cost, work, key=stage.key, own_process=stage.own_process)


def train_cell(stage: Stage, job: Job, notify: Notify) -> None:
    """Train one objective of one system with one seed."""

    def work() -> Mapping[str, Any]:
        validate, refresh = ranked_validation(job), beam_negatives(job)
        return {"updates": train_retriever(job, notify=notify, validate=validate, refresh=refresh).summary["updates"]}

    measure_cost(stage.cost, work, key=stage.key, own_process=stage.own_process)


def make_and_judge_ranker(making: Stage, stage: Stage, comparison: Comparison, name: str, notify: Notify) -> None:
    """Make a ranker, train it where it is trained, time single queries, and evaluate it."""
    snapshot = items_snapshot(comparison.data, comparison.index / EMBEDDINGS)
    tests = _tests(comparison, snapshot)
    context = RankerContext(
        snapshot,
        comparison.data,
        comparison.index,
        comparison.task,
        comparison.out / BASELINES,
        settings=comparison.baseline_settings,
        notify=notify,
    )
    ranker: list[Ranker] = []

    def make() -> None:
        notify(f"Making {name}")
        ranker.append(make_ranker(name, context))

    if is_finished(making.cost, key=making.key):  # a trained ranker is opened, which would cost nothing
        make()
    else:
        measure_cost(making.cost, make, key=making.key, own_process=making.own_process)

    def judge() -> Mapping[str, Any]:
        figures = time_queries(ranker[0], tests)
        evaluate_baseline(comparison, name, tests, snapshot, notify=notify)
        return figures

    measure_cost(stage.cost, judge, key=stage.key, own_process=stage.own_process)


def judge_cell(stage: Stage, comparison: Comparison, name: str, run: Path, seed: int, notify: Notify) -> None:
    """Time single queries of a trained model, and evaluate it."""
    snapshot = Snapshot.load(comparison.index)
    tests = _tests(comparison, snapshot)

    def work() -> Mapping[str, Any]:
        retriever = Retriever.load(run, comparison.index, comparison.data, device=comparison.device)
        figures = time_queries(RetrieverRanker(retriever, comparison.decoding), tests)
        notify("Ranking")
        model = model_folder(run)
        evaluate_model(comparison, name, model, tests, snapshot, seeds=(seed,), notify=notify)
        return figures

    measure_cost(stage.cost, work, key=stage.key, own_process=stage.own_process)


def items_snapshot(data: Path, embeddings: Path) -> Snapshot:
    """The items of a data set, numbered, for rankers that need no Semantic IDs but may read texts and embeddings."""
    catalog = Catalog(data)
    numbered = Snapshot.numbered(catalog.ids(), catalog)
    if not (embeddings / MANIFEST).is_file():  # no system of the study needs them
        return numbered
    vectors = Embeddings.open(embeddings)
    origin = {"encoder": vectors.settings["encoder"], "reading": vectors.settings["reading"]}
    return replace(numbered, index=replace(numbered.index, origin=origin), embeddings=vectors.artifact.content)


def time_queries(ranker: Ranker, tests: TestSet) -> dict[str, Any]:
    """Median milliseconds of single queries, ten results each, and the memory that was needed until then."""
    texts = list(dict.fromkeys(tests.texts))
    warm_up = min(_WARM_UP, len(texts) - 1)
    for text in texts[:warm_up]:
        ranker.rank([text], _HITS)
    seconds = []
    for text in texts[warm_up : warm_up + _TIMED]:
        start = time.perf_counter()
        ranker.rank([text], _HITS)
        seconds.append(time.perf_counter() - start)
    return {"query_ms": 1_000 * median(seconds), "queries": len(seconds), "query_peak": peak_bytes()}


def _tests(comparison: Comparison, snapshot: Snapshot) -> TestSet:
    return read_tests(comparison.data, snapshot, split=comparison.split, task=comparison.task)
