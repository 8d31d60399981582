"""The hybrid search of every cell of a study: its parts, its ablations, and what it finds of new items."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from restd.artifacts import hash_file, hash_json, read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.data.dataset import find_table
from restd.distill.heads import FOLDER as HEADS
from restd.errors import ConfigError
from restd.evaluate import ColdStart, Scoreboard, fit_fusion, fitting_queries, measure_cold_start
from restd.evaluate.ablation import ablation_board
from restd.evaluate.fitting import add_parts, available_parts
from restd.evaluate.stored_boards import load_boards, save_boards
from restd.experiments.comparison import cell_name
from restd.experiments.evaluations import item_sources
from restd.experiments.study import Study
from restd.models.store import model_folder
from restd.progress import Notify
from restd.search import Retriever, SearchOptions
from restd.search.fusion import FOLDER as FUSION

PARTS, COLD_STARTS = "parts", "cold-starts"
"""Folders of a study for the results of single cells."""
Cell = tuple[str, int]
"""Objective and seed."""
_Boards = tuple[dict[str, Scoreboard], dict[str, Any]]
_TEST = "test"


@dataclass(frozen=True, slots=True, eq=False)
class HybridCells:
    """The scoreboard of every cell on the study's queries."""

    study: Study
    boards: Mapping[Cell, Scoreboard]


@dataclass(frozen=True, slots=True, eq=False)
class ColdCells:
    """What the search of every cell finds of new items."""

    study: Study
    outcomes: Mapping[Cell, ColdStart]


def measure_parts(study: Study, *, notify: Notify) -> HybridCells:
    """Judge the hybrid search of every cell, its parts and its ablations; a cell that is finished is kept.

    Weights are those that were fitted for the cell; a cell without any is fitted first, and its folder stays as it is.

    Args:
        study: a finished comparison of searches, judged by other than the validation queries.
        notify: receives one sentence at a time about the progress.
    """
    _refuse_unfit(study)

    def measured(cell: Cell) -> _Boards:
        retriever = _fitted_retriever(study, cell, notify)
        return {_TEST: ablation_board(retriever, study.tests, options=_options(study))}, {}

    made = _cells(study, PARTS, measured, {"judgments": study.tests.source}, notify)
    return HybridCells(study, {cell: boards[_TEST] for cell, (boards, _) in made.items()})


def measure_cold_starts(study: Study, new: Path, *, notify: Notify) -> ColdCells:
    """Add new items to the search of every cell and judge what it finds of them; a cell that is finished is kept.

    Args:
        study: a finished comparison of searches.
        new: folder of the new items and their judgments, as `restd data hold-out` writes it.
        notify: receives one sentence at a time about the progress.
    """
    _refuse_unfit(study)

    def measured(cell: Cell) -> _Boards:
        retriever = _fitted_retriever(study, cell, notify)
        parts = available_parts(retriever)
        outcome = measure_cold_start(retriever, new, parts=parts, notify=notify, options=_options(study))
        boards = {"new": outcome.new, "known": outcome.known, "before": outcome.before}
        facts = {"items": outcome.items, "fitted_on": outcome.fitted_on, "only_new": outcome.only_new.tolist()}
        return boards, facts

    sources = {table: hash_file(find_table(new, table)) for table in ("items", "judgments")}
    parents = {"judgments": study.tests.source, **{f"new {table}": content for table, content in sources.items()}}
    made = _cells(study, COLD_STARTS, measured, parents, notify)
    outcomes = {
        cell: ColdStart(
            **boards,
            only_new=np.array(facts["only_new"], bool),
            items=facts["items"],
            fitted_on=facts["fitted_on"],
        )
        for cell, (boards, facts) in made.items()
    }
    return ColdCells(study, outcomes)


def _refuse_unfit(study: Study) -> None:
    comparison = study.comparison
    if comparison.task != "search":
        raise ConfigError("A hybrid search reads texts, but the models of this study recommend.")
    if comparison.split == "valid":
        raise ConfigError(
            "The weights of a hybrid search are fitted on the validation queries, and this study is judged by these; "
            "run restd compare with --split test first."
        )


def _options(study: Study) -> SearchOptions:
    """How the study searches, for a hybrid search: heads are a part of it and need no mode of their own."""
    return replace(study.comparison.decoding, mode="hybrid", heads=None)


def _fitted_retriever(study: Study, cell: Cell, notify: Notify) -> Retriever:
    """The search of a cell with every part that can be made, and with weights."""
    comparison = study.comparison
    run = comparison.run(*cell)
    retriever = Retriever.load(run, comparison.index, comparison.data, hybrid=True, device=comparison.device)
    add_parts(retriever, notify=notify)
    if retriever.fusion is None or not retriever.fusion.is_fitted:
        tests = fitting_queries(comparison.data, retriever.snapshot)
        notify(f"Fitting the hybrid search of {cell_name(*cell)} on {len(tests):,} validation queries")
        retriever.fusion = fit_fusion(retriever, tests, options=_options(study), notify=notify)
    if not retriever.fusion.is_fitted:
        raise ConfigError(f"The validation queries of {comparison.data} cannot choose weights for {cell_name(*cell)}.")
    return retriever


def _cells(
    study: Study, folder: str, measured: Callable[[Cell], _Boards], parents: Mapping[str, str], notify: Notify
) -> dict[Cell, _Boards]:
    """Boards of every cell: those on disk where nothing that they depend on has changed, measured ones otherwise."""
    comparison = study.comparison
    order = [(objective, seed) for seed in comparison.seeds for objective in comparison.objectives]
    made: dict[Cell, _Boards] = {}
    for number, cell in enumerate(order, start=1):
        target = comparison.out / folder / cell_name(*cell)
        own = {**parents, **_cell_sources(study, cell)}
        if not (target / MANIFEST).is_file() or read_manifest(target).parents != own:
            notify(f"[{number}/{len(order)}] {cell[0]}, seed {cell[1]}")
            boards, facts = measured(cell)
            save_boards(target, boards, facts=facts, parents=own)
        made[cell] = load_boards(target)
    return made


def _cell_sources(study: Study, cell: Cell) -> dict[str, str]:
    """Hashes of all that the hybrid search of a cell is made from."""
    comparison = study.comparison
    model = model_folder(comparison.run(*cell))
    sources = {"model": read_manifest(model).content, "snapshot": study.snapshot.hash}
    for name in (HEADS, FUSION):
        if (model.parent / name / MANIFEST).is_file():
            sources[name] = read_manifest(model.parent / name).content
    rules = hash_json(_options(study).card(task="search"))
    return {**sources, **item_sources(comparison, study.snapshot), "rules": rules}
