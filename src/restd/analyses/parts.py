"""What training with each objective brings to a hybrid search, part by part."""

from typing import Any

import numpy as np

from restd.analyses.board_grid import (
    FIRST,
    MEASURE_NAMES,
    BoardGrid,
    gain_figure,
    gain_tables,
    grid_numbers,
    is_of_model,
    score_tables,
    shown,
    with_interval,
)
from restd.analyses.labels import BASE, label
from restd.analyses.result import AnalysisResult, Figure, Table, best_of_columns
from restd.analyses.slices import Slices, sliced
from restd.evaluate import Difference, TestSet, holm_grid
from restd.evaluate.scoreboard import HYBRID, LEXICAL_AND_DENSE, WITHOUT
from restd.experiments.comparison import cell_name
from restd.experiments.hybrid_cells import HybridCells
from restd.search.candidates import GENERATOR, HEADS

_RANKERS = (GENERATOR, HEADS, f"{WITHOUT}{HEADS}", HYBRID, f"{WITHOUT}{GENERATOR}")
"""What the tables show of every objective: with and without heads as a feature of the fusion."""
_IN_SLICES = (GENERATOR, f"{WITHOUT}{HEADS}", HYBRID)


def parts_result(cells: HybridCells) -> AnalysisResult:
    """Tables of all cells, averaged over seeds, with paired differences from the base."""
    comparison, tests = cells.study.comparison, cells.study.tests
    grid = BoardGrid(cells.boards, comparison.objectives, comparison.seeds)
    title = f"{len(tests):,} {tests.split} queries (%)"
    differences, worth = grid.against_base(_RANKERS), _worth(grid)
    slices = training_slices(tests)
    tables = [
        *score_tables(grid, _RANKERS, differences, title=title),
        *gain_tables(differences, _RANKERS, title=title),
        _beside_table(grid, title),
        _worth_table(grid, worth),
        _weights_table(grid),
        *_slice_tables(grid, slices),
    ]
    figure = gain_figure(differences, _RANKERS, name="parts", title=f"{len(tests):,} queries")
    fixed = [ranker for ranker in grid.rankers() if not is_of_model(ranker)]
    data = {
        "queries": len(tests),
        "seeds": list(comparison.seeds),
        "objectives": grid_numbers(grid, _RANKERS, differences),
        "beside": grid_numbers(grid, fixed, {})[BASE],
        "over_lexical_and_dense": {
            objective: {
                measure: gap.to_dict()
                for measure in MEASURE_NAMES
                if (gap := grid.gap((objective, HYBRID), (objective, LEXICAL_AND_DENSE), measure)) is not None
            }
            for objective in grid.objectives
        },
        "worth": {
            objective: {part: gap.to_dict() for part, gap in by_part.items()} for objective, by_part in worth.items()
        },
        "weights": {cell_name(*cell): dict(board.weights[HYBRID]) for cell, board in cells.boards.items()},
        "slices": _slice_numbers(grid, slices),
    }
    says = _says(grid, worth)
    figures: tuple[Figure, ...] = () if figure is None else (figure,)
    return AnalysisResult("parts", "Parts of the hybrid search", says, tuple(tables), figures, data)


def training_slices(tests: TestSet) -> Slices:
    """Queries by the mean number of training pairs of their positives: none at all, and two halves of the rest."""
    return sliced(np.add.reduceat(tests.trained, tests.first[:-1]) / np.diff(tests.first), parts=2)


def _worth(grid: BoardGrid) -> dict[str, dict[str, Difference]]:
    """What the hybrid search loses without each of its parts, by objective; one family of comparisons."""
    parts = dict.fromkeys(
        part for board in grid.boards.values() for part, weight in board.weights[HYBRID].items() if weight
    )
    worth: dict[str, dict[str, Difference]] = {}
    for objective in grid.objectives:
        for part in parts:
            gap = grid.gap((objective, HYBRID), (objective, f"{WITHOUT}{part}"), FIRST)
            if gap is not None and _has_weight(grid, objective, part):
                worth.setdefault(objective, {})[part] = gap
    return holm_grid(worth)


def _has_weight(grid: BoardGrid, objective: str, part: str) -> bool:
    return any(grid.boards[objective, seed].weights[HYBRID].get(part) for seed in grid.seeds)


def _worth_table(grid: BoardGrid, worth: dict[str, dict[str, Difference]]) -> Table:
    parts = list(dict.fromkeys(part for by_part in worth.values() for part in by_part))
    rows = tuple(
        (label(objective), *(with_interval(worth.get(objective, {}).get(part)) for part in parts))
        for objective in grid.objectives
    )
    notes = (
        f"Points of {FIRST} that the hybrid search has over the same search without a part, whose weights are fitted "
        "anew; averaged over seeds, 95 % intervals over queries, † after Holm's correction over the table. A dash: the "
        "part has no weight with any seed.",
    )
    title = f"What each part is worth inside the hybrid search ({FIRST})"
    return Table("worth", title, ("Training objective", *map(shown, parts)), rows, notes)


def _beside_table(grid: BoardGrid, title: str) -> Table:
    """Rankers that no training changes, and how far the hybrid search of each objective is ahead of them."""
    rankers = [ranker for ranker in grid.rankers() if not is_of_model(ranker)]
    rows, means = [], []
    for ranker in rankers:
        spreads = [grid.spread(BASE, ranker, measure) for measure in MEASURE_NAMES]
        values = [None if spread is None else spread.mean for spread in spreads]
        leads = (grid.gap((objective, HYBRID), (objective, ranker), FIRST) for objective in grid.objectives)
        cells = ("–" if value is None else f"{value:.2f}" for value in values)
        rows.append((shown(ranker), *cells, *map(with_interval, leads)))
        means.append(values)
    columns = ("", *MEASURE_NAMES, *(f"hybrid's lead, {label(objective)}" for objective in grid.objectives))
    notes = (f"By item. Leads are points of {FIRST}, averaged over seeds, with 95 % intervals over queries.",)
    return Table("beside", f"Rankers without a model, {title}", columns, tuple(rows), notes, best_of_columns(means))


def _weights_table(grid: BoardGrid) -> Table:
    """Shares of the weights of every cell's hybrid search."""
    boards = grid.boards
    parts = list(dict.fromkeys(part for board in boards.values() for part in board.weights[HYBRID]))
    rows = []
    for objective, seed in boards:
        weights = boards[objective, seed].weights[HYBRID]
        total = sum(weights.values())
        rows.append((f"{label(objective)}, seed {seed}", *(_share(weights.get(part, 0.0), total) for part in parts)))
    title = "Shares of the weights of every cell's hybrid search"
    notes = ("Fitted on validation queries, cell by cell. A dash: dropped, or not a part of this cell.",)
    return Table("weights", title, ("Cell", *map(shown, parts)), tuple(rows), notes)


def _share(weight: float, total: float) -> str:
    return f"{weight / total:.0%}" if weight else "–"


def _slice_tables(grid: BoardGrid, slices: Slices) -> list[Table]:
    """The same differences for queries whose answers training names often, seldom, and never."""
    tables = []
    for measure in (MEASURE_NAMES[0], MEASURE_NAMES[-1]):
        rows = []
        for number, pairs in enumerate(slices.names):
            inside = slices.of == number
            part = grid.only(inside)
            for objective in grid.objectives:
                cells = (_slice_cell(part, objective, ranker, measure) for ranker in _IN_SLICES)
                rows.append((pairs, f"{int(inside.sum()):,}", label(objective), *cells))
        notes = (
            f"Mean over seeds; in parentheses the difference from {label(BASE)} with its 95 % interval over the "
            "queries of the slice, not corrected for the number of slices.",
        )
        columns = ("Training pairs of the positives (mean)", "queries", "Training objective", *map(shown, _IN_SLICES))
        title = f"{measure} by training pairs of the positives"
        tables.append(Table(f"slices-{measure.lower()}", title, columns, tuple(rows), notes))
    return tables


def _slice_cell(grid: BoardGrid, objective: str, ranker: str, measure: str) -> str:
    spread = grid.spread(objective, ranker, measure)
    if spread is None:
        return "–"
    gap = None if objective == BASE else grid.gap((objective, ranker), (BASE, ranker), measure)
    return f"{spread.mean:.2f}" + ("" if gap is None else f" ({with_interval(gap)})")


def _slice_numbers(grid: BoardGrid, slices: Slices) -> list[dict[str, Any]]:
    """Means and differences by slice; each slice is a family of comparisons of its own."""
    numbers = []
    for number, pairs in enumerate(slices.names):
        inside = slices.of == number
        part = grid.only(inside)
        objectives = grid_numbers(part, _IN_SLICES, part.against_base(_IN_SLICES))
        numbers.append({"pairs": pairs, "queries": int(inside.sum()), "objectives": objectives})
    return numbers


def _says(grid: BoardGrid, worth: dict[str, dict[str, Difference]]) -> str:
    best = max(grid.objectives, key=lambda objective: _mean(grid, objective))
    sentences = [
        f"{'Averages over ' + str(len(grid.seeds)) + ' seeds' if len(grid.seeds) > 1 else 'One seed'}. The hybrid "
        f"search of {label(best)} has the highest {FIRST}: {_mean(grid, best):.2f}; that of {label(BASE)} has "
        f"{_mean(grid, BASE):.2f}."
    ]
    if best != BASE and (gap := grid.gap((best, HYBRID), (BASE, HYBRID), FIRST)) is not None:
        sentences.append(f"The difference is {with_interval(gap)}, before any correction.")
    for objective, by_part in worth.items():
        if HEADS in by_part:
            sentences.append(
                f"Heads are worth {with_interval(by_part[HEADS])} to the hybrid search of {label(objective)}."
            )
    return " ".join(sentences)


def _mean(grid: BoardGrid, objective: str) -> float:
    spread = grid.spread(objective, HYBRID, FIRST)
    assert spread is not None, "every cell has a hybrid search"
    return spread.mean
