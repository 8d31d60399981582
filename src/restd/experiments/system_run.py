"""Running a comparison of systems: encode once, make every index, train and evaluate whatever is not finished."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from restd.artifacts import hash_json, read_manifest, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.errors import ArtifactError, ConfigError, Interrupted, RestdError
from restd.evaluate import Evaluation
from restd.experiments.comparison import cell_name
from restd.experiments.costs import Cost, cost_file, is_finished, read_cost
from restd.experiments.evaluations import evaluation_folder
from restd.experiments.parallel_runs import STOPPED
from restd.experiments.processes import Piece, refuse_bad_count, run_pieces
from restd.experiments.system_checks import check_systems
from restd.experiments.system_comparison import SystemComparison, cell_label
from restd.experiments.system_file import continue_systems, save_systems, sources
from restd.experiments.system_stages import (
    EMBEDDINGS,
    Stage,
    encode_items,
    judge_cell,
    make_and_judge_ranker,
    make_index,
    train_cell,
)
from restd.index.sid_index import FOLDER as INDEX
from restd.models.store import model_folder
from restd.progress import Notify

logger = logging.getLogger(__name__)
ENCODE, MAKE, TRAIN, JUDGE = "encode", "index", "train", "query"
Cell = tuple[str, str, int]
"""System, objective and seed; a ranker has no objective, and the seed 0."""


@dataclass(frozen=True, slots=True, eq=False)
class FinishedSystems:
    """A comparison of systems with everything that its folder has.

    Args:
        comparison: what was compared.
        cells: the evaluation of every cell.
        failed: systems of which a stage failed, with the reason; they have no cells.
    """

    comparison: SystemComparison
    cells: Mapping[Cell, Evaluation]
    failed: Mapping[str, str]

    def cost(self, stage: str, name: str) -> Cost | None:
        """What a stage cost, where it was measured."""
        return read_cost(cost_file(self.comparison.out, stage, name))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of work, and the systems that cannot go on without it."""

    name: str
    work: Callable[[Notify], Any]
    systems: tuple[str, ...]


@dataclass(eq=False)
class _Runner:
    """Does pieces of work, and remembers which systems failed."""

    comparison: SystemComparison
    workers: int
    isolate: bool
    notify: Notify
    failed: dict[str, str] = field(default_factory=dict)

    def stage(self, kind: str, name: str, key: str = "") -> Stage:
        return Stage(cost_file(self.comparison.out, kind, name), key, self.isolate)

    def going_on(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.failed]

    def run(self, title: str, pieces: list[_Piece]) -> None:
        reasons = self._isolated(title, pieces) if self.isolate else self._here(title, pieces)
        for piece in pieces:
            if piece.name in reasons:
                for system in piece.systems:
                    self.failed.setdefault(system, f"{title.lower()} {piece.name}: {reasons[piece.name]}")

    def _isolated(self, title: str, pieces: list[_Piece]) -> dict[str, str]:
        work = [Piece(piece.name, piece.work) for piece in pieces]
        return run_pieces(work, workers=self.workers, notify=self.notify, title=title, stopped=STOPPED)

    def _here(self, title: str, pieces: list[_Piece]) -> dict[str, str]:
        reasons: dict[str, str] = {}
        for number, piece in enumerate(pieces, start=1):
            self.notify(f"{title} [{number}/{len(pieces)}] {piece.name}")
            try:
                piece.work(self.notify)
            except Interrupted:
                raise
            except RestdError as error:
                self.notify(f"{piece.name}: {error}")
                reasons[piece.name] = str(error)
        return reasons


def run_systems(
    comparison: SystemComparison,
    *,
    everything: Iterable[str] = (),
    workers: int = 1,
    isolate: bool = True,
    notify: Notify = logger.info,
) -> FinishedSystems:
    """Do every stage that is not finished, and read the evaluations of everything that the folder has.

    Args:
        comparison: what to compare.
        everything: systems that may be left out where the data lacks something they need.
        workers: number of stages at a time.
        isolate: give every stage a process of its own, so that its memory can be measured; without it, everything runs
            in this process, one after another.
        notify: receives one sentence at a time about the progress.
    """
    refuse_bad_count(workers)
    if workers > 1 and not isolate:
        raise ConfigError("Stages side by side need processes of their own; leave isolate=True, or take one worker.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("A comparison cannot run under torchrun; train single cells with torchrun instead.")
    comparison = check_systems(comparison, everything=everything, notify=notify)
    comparison.out.mkdir(parents=True, exist_ok=True)
    with sole_writer(comparison.out):
        comparison = continue_systems(comparison)
        save_systems(comparison)
        runner = _Runner(comparison, workers, isolate, notify)
        tables = hash_json(sources(comparison.data))
        _encode(runner, tables)
        _make_indexes(runner, tables)
        _train(runner)
        _judge(runner, tables)
        failed = runner.failed
        if not runner.going_on(comparison.plans):
            raise ConfigError(f"Every system failed. {' '.join(f'{name}: {why}' for name, why in failed.items())}")
        return FinishedSystems(comparison, _evaluations(comparison.without(failed)), failed)


def _encode(runner: _Runner, tables: str) -> None:
    comparison = runner.comparison
    users = tuple(name for name, resolved in comparison.resolved.items() if resolved.encodes)
    if not users:
        return
    name, seed = comparison.encoder
    key = hash_json({"sources": tables, "encoder": [name, seed]})
    stage = runner.stage(ENCODE, "items", key)
    if is_finished(stage.cost, key=key) and (comparison.out / EMBEDDINGS / MANIFEST).is_file():
        return
    work = partial(encode_items, stage, comparison.data, comparison.out, name, seed, comparison.device)
    runner.run("Encoding", [_Piece("items", work, users)])


def _make_indexes(runner: _Runner, tables: str) -> None:
    comparison = runner.comparison
    users: dict[Path, list[str]] = {}
    for name in runner.going_on(comparison.resolved):
        if comparison.resolved[name].index is not None:
            users.setdefault(comparison.index_folder(name), []).append(name)
    embeddings = comparison.out / EMBEDDINGS
    pieces = []
    for folder, systems in users.items():
        stage = runner.stage(MAKE, folder.name, tables)
        if is_finished(stage.cost, key=tables) and (folder / INDEX / MANIFEST).is_file():
            continue
        config = comparison.resolved[systems[0]].index
        assert config is not None
        work = partial(make_index, stage, comparison.data, folder, config, embeddings, comparison.device)
        pieces.append(_Piece(folder.name, work, tuple(systems)))
    runner.run("Indexing", pieces)


def _train(runner: _Runner) -> None:
    comparison = runner.comparison.without(runner.failed)
    pieces = []
    for system, objective, seed in comparison.cells():
        job, name = comparison.job(system, objective, seed), cell_label(system, objective, seed)
        stage = runner.stage(TRAIN, name)
        if _is_trained(job.out, job.identity(processes=1)) and is_finished(stage.cost):
            continue
        pieces.append(_Piece(name, partial(train_cell, stage, job), (system,)))
    runner.run("Training", pieces)


def _is_trained(run: Path, identity: str) -> bool:
    """Whether a run's folder has its model; a model of other settings is an error."""
    folder = model_folder(run)
    if not (folder / MANIFEST).is_file():
        return False
    if read_manifest(folder).settings["identity"] != identity:
        raise ArtifactError(
            f"{folder} was trained with other settings than this version of the system has; choose another --out, or "
            f"delete {run}."
        )
    return True


def _judge(runner: _Runner, tables: str) -> None:
    comparison = runner.comparison.without(runner.failed)
    rules = {
        "sources": tables,
        "split": comparison.split,
        "measures": list(map(str, comparison.measures)),
        "graded": comparison.graded,
        "decoding": comparison.decoding.card(task="search", routes=True),
    }
    pieces = []
    for name in comparison.rankers:
        study, encodes = comparison.study(name), comparison.resolved[name].encodes
        embeddings = read_manifest(comparison.out / EMBEDDINGS).content if encodes else None
        made_from = {"sources": tables, "embeddings": embeddings, "settings": study.baseline_settings}
        making = runner.stage(TRAIN, study.out.name, hash_json(made_from))
        stage = runner.stage(JUDGE, study.out.name, hash_json({**rules, **made_from}))
        ranker = comparison.resolved[name].spec.ranker
        if not _is_judged(stage, evaluation_folder(study, ranker)):
            work = partial(make_and_judge_ranker, making, stage, study, ranker)
            pieces.append(_Piece(study.out.name, work, (name,)))
    for system, objective, seed in comparison.cells():
        study, name = comparison.study(system), cell_name(objective, seed)
        contents = {
            "model": read_manifest(model_folder(study.run(objective, seed))).content,
            "index": read_manifest(study.index / INDEX).content,
        }
        stage = runner.stage(JUDGE, cell_label(system, objective, seed), hash_json({**rules, **contents}))
        if not _is_judged(stage, evaluation_folder(study, name)):
            work = partial(judge_cell, stage, study, name, study.run(objective, seed), seed)
            pieces.append(_Piece(cell_label(system, objective, seed), work, (system,)))
    runner.run("Evaluating", pieces)


def _is_judged(stage: Stage, folder: Path) -> bool:
    return is_finished(stage.cost, key=stage.key) and (folder / MANIFEST).is_file()


def _evaluations(comparison: SystemComparison) -> dict[Cell, Evaluation]:
    """All evaluations, which must be of the same queries under the same rules."""
    cells: dict[Cell, Evaluation] = {}
    for name in comparison.rankers:
        ranker = comparison.resolved[name].spec.ranker
        cells[name, "", 0] = Evaluation.load(evaluation_folder(comparison.study(name), ranker))
    for system, objective, seed in comparison.cells():
        folder = evaluation_folder(comparison.study(system), cell_name(objective, seed))
        cells[system, objective, seed] = Evaluation.load(folder)
    refuse_different_rules(cells)
    return cells


def refuse_different_rules(cells: Mapping[Cell, Evaluation]) -> None:
    """Refuse evaluations of other queries, judgments, items or labels; Semantic IDs may differ."""
    first = next(iter(cells.values()))
    for cell, evaluation in cells.items():
        one, other = shared_rules(first), shared_rules(evaluation)
        conflicts = [name for name in one if one[name] != other[name]]
        if evaluation.queries != first.queries:
            conflicts.append("queries")
        if conflicts:
            raise ArtifactError(
                f"{'+'.join(filter(None, cell[:2]))} was measured under other rules than {first.name} "
                f"({', '.join(conflicts)}), so they cannot stand in one table. Delete its folder among the study's "
                "systems, and run the same command again."
            )


def shared_rules(evaluation: Evaluation) -> dict[str, Any]:
    """What the cards of all systems must say alike: everything but Semantic IDs and decoding."""
    card = asdict(evaluation.card)
    return {
        **{name: card[name] for name in ("split", "judgments", "queries", "relevance")},
        "items": card["catalogue"]["items"],
    }
