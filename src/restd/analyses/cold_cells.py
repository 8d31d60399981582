"""How well the searches of a whole study find items that were added after training."""

from collections.abc import Mapping, Sequence
from typing import Any

from restd.analyses.board_grid import (
    FIRST,
    MEASURE_NAMES,
    BoardGrid,
    Differences,
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
from restd.evaluate.cold_start import ON_NEW
from restd.evaluate.scoreboard import HYBRID, LEXICAL_AND_DENSE, WITHOUT
from restd.experiments.hybrid_cells import ColdCells
from restd.search.candidates import GENERATOR, HEADS

_RANKERS = (GENERATOR, HEADS, f"{WITHOUT}{HEADS}", HYBRID, ON_NEW[HYBRID])


def cold_cells_result(cells: ColdCells) -> AnalysisResult:
    """Tables of queries that new and known items answer: all objectives, averaged over seeds, against the base."""
    comparison = cells.study.comparison
    outcomes = cells.outcomes
    first = next(iter(outcomes.values()))
    grids = {
        "new": BoardGrid({cell: one.new for cell, one in outcomes.items()}, comparison.objectives, comparison.seeds),
        "known": BoardGrid(
            {cell: one.known for cell, one in outcomes.items()}, comparison.objectives, comparison.seeds
        ),
    }
    counts = {side: len(grid.boards[next(iter(outcomes))].values[HYBRID][FIRST]) for side, grid in grids.items()}
    data: dict[str, Any] = {
        "items": dict(first.items),
        "queries": {**counts, "only_new": int(first.only_new.sum())},
        "fitted_on": dict(first.fitted_on),
        "seeds": list(comparison.seeds),
    }
    tables: list[Table] = []
    figures: list[Figure] = []
    for side, grid in grids.items():
        rankers = [ranker for ranker in _RANKERS if any(grid.spread(name, ranker, FIRST) for name in grid.objectives)]
        title = f"{counts[side]:,} test queries for {side} items (%)"
        differences = grid.against_base(rankers)
        own = score_tables(grid, rankers, differences, title=title)
        own += [*gain_tables(differences, rankers, title=title), _beside_table(grid, title)]
        tables += [_named(table, side) for table in own]
        data[side] = _numbers(grid, rankers, differences)
        title = f"{counts[side]:,} queries for {side} items"
        if (figure := gain_figure(differences, rankers, name=f"cold-start-{side}", title=title)) is not None:
            figures.append(figure)
    tables.append(_weights_table(cells))
    return AnalysisResult("cold-start", "New items at once", _says(cells, grids), tuple(tables), tuple(figures), data)


def _named(table: Table, side: str) -> Table:
    return Table(f"{side}-{table.name}", table.title, table.columns, table.rows, table.notes, table.best)


def _numbers(grid: BoardGrid, rankers: Sequence[str], differences: Differences) -> dict[str, Any]:
    fixed = [ranker for ranker in grid.rankers() if not is_of_model(ranker)]
    leads = {
        objective: {
            ranker: gap.to_dict()
            for ranker in (GENERATOR, HEADS, HYBRID)
            if (gap := grid.gap((objective, ranker), (objective, LEXICAL_AND_DENSE), FIRST)) is not None
        }
        for objective in grid.objectives
    }
    return {
        "objectives": grid_numbers(grid, rankers, differences),
        "beside": grid_numbers(grid, fixed, {})[BASE],
        "over_lexical_and_dense": leads,
    }


def _beside_table(grid: BoardGrid, title: str) -> Table:
    """Rankers that no training changes, and how far heads and hybrid search of each objective are ahead of them."""
    rankers = [ranker for ranker in grid.rankers() if not is_of_model(ranker)]
    pairs = [
        (objective, ranker)
        for objective in grid.objectives
        for ranker in (HEADS, HYBRID)
        if grid.spread(objective, ranker, FIRST) is not None
    ]
    rows, means = [], []
    for ranker in rankers:
        spreads = [grid.spread(BASE, ranker, measure) for measure in MEASURE_NAMES]
        values = [None if spread is None else spread.mean for spread in spreads]
        cells = ("–" if value is None else f"{value:.2f}" for value in values)
        leads = (with_interval(grid.gap(pair, (pair[0], ranker), FIRST)) for pair in pairs)
        rows.append((shown(ranker), *cells, *leads))
        means.append(values)
    columns = ("", *MEASURE_NAMES, *(f"lead of {shown(ranker)}, {label(objective)}" for objective, ranker in pairs))
    notes = (f"By item. Leads are points of {FIRST}, averaged over seeds, with 95 % intervals over queries.",)
    return Table("beside", f"Rankers without a model, {title}", columns, tuple(rows), notes, best_of_columns(means))


def _weights_table(cells: ColdCells) -> Table:
    """Shares of the weights of every cell: as fitted on known items, and on new ones."""
    rows: list[tuple[str, ...]] = []
    fitted = {cell: one.new.weights for cell, one in cells.outcomes.items()}
    parts = list(
        dict.fromkeys(
            part for weights in fitted.values() for name in (HYBRID, ON_NEW[HYBRID]) for part in weights.get(name, {})
        )
    )
    for (objective, seed), weights in fitted.items():
        for name in (HYBRID, ON_NEW[HYBRID]):
            if name in weights:
                rows.append((f"{label(objective)}, seed {seed}, {shown(name)}", *_shares(weights[name], parts)))
    title = "Shares of the weights of every cell's hybrid search"
    return Table("weights", title, ("Cell", *map(shown, parts)), tuple(rows), ("A dash: no weight.",))


def _shares(weights: Mapping[str, float], parts: list[str]) -> list[str]:
    total = sum(weights.values())
    return [f"{weights[part] / total:.0%}" if weights.get(part) else "–" for part in parts]


def _says(cells: ColdCells, grids: Mapping[str, BoardGrid]) -> str:
    first, seeds = next(iter(cells.outcomes.values())), len(cells.study.comparison.seeds)
    sentences = [
        f"{first.items['new']:,} items were added to {first.items['known']:,} after training. {FIRST}, averaged over "
        f"{seeds} seed{'s' if seeds > 1 else ''}:"
    ]
    for side, grid in grids.items():
        scores = []
        for ranker in (GENERATOR, HEADS, HYBRID):
            spreads = {objective: grid.spread(objective, ranker, FIRST) for objective in grid.objectives}
            values = [f"{spread.mean:.2f} ({label(name)})" for name, spread in spreads.items() if spread is not None]
            if values:
                scores.append(f"{shown(ranker)} {', '.join(values)}")
        sentences.append(f"on queries for {side} items {'; '.join(scores)}.")
    return " ".join(sentences)
