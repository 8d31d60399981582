"""Scoreboards of every cell of a study, averaged over seeds and compared with the base objective."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from restd.analyses.labels import BASE, label
from restd.analyses.result import Figure, Table, best_of_columns
from restd.evaluate import CONDITIONAL, Difference, Scoreboard, Spread, holm_grid, paired_difference
from restd.evaluate.cold_start import ON_NEW
from restd.evaluate.scoreboard import HYBRID, LEXICAL_AND_DENSE, MEASURES, WITHOUT
from restd.search.candidates import GENERATOR, HEADS

MEASURE_NAMES = tuple(map(str, MEASURES))
FIRST = MEASURE_NAMES[0]
NAMES = {
    "bm25": "BM25",
    "dense": "dense",
    "latent": "latent",
    HEADS: "heads",
    GENERATOR: "generator",
    LEXICAL_AND_DENSE: "BM25 + dense, fitted",
    HYBRID: "hybrid",
    ON_NEW[LEXICAL_AND_DENSE]: "BM25 + dense, fitted on new",
    ON_NEW[HYBRID]: "hybrid, fitted on new",
}
"""Rankers in the order of the tables; other companions stand behind the first five under their own names."""
Differences = Mapping[str, Mapping[str, Mapping[str, Difference]]]
"""From the base's ranker of the same name, by objective, ranker and measure."""
_ALPHA = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class BoardGrid:
    """One scoreboard per cell, all of the same queries.

    Args:
        boards: by objective and seed.
        objectives: in the order of the tables; the base among them.
        seeds: of every objective.
    """

    boards: Mapping[tuple[str, int], Scoreboard]
    objectives: tuple[str, ...]
    seeds: tuple[int, ...]

    def of_seeds(self, objective: str, ranker: str, measure: str) -> list[Float[np.ndarray, "query"]] | None:
        """Values of every query, seed by seed; None where some seed has no such ranker.

        A hybrid search without a part that it has no weight for is the hybrid search.
        """
        values = []
        for seed in self.seeds:
            board = self.boards[objective, seed]
            name = ranker
            if ranker.startswith(WITHOUT) and not board.weights[HYBRID].get(ranker.removeprefix(WITHOUT)):
                name = HYBRID
            if name not in board.values:
                return None
            values.append(board.values[name][measure])
        return values

    def mean(self, objective: str, ranker: str, measure: str) -> Float[np.ndarray, "query"] | None:
        """Every query's value, averaged over seeds."""
        values = self.of_seeds(objective, ranker, measure)
        return None if values is None else np.mean(values, axis=0)

    def spread(self, objective: str, ranker: str, measure: str) -> Spread | None:
        """Mean over queries, and its standard deviation over seeds."""
        values = self.of_seeds(objective, ranker, measure)
        return None if values is None else Spread.of([float(value.mean()) for value in values])

    def gap(self, ours: tuple[str, str], theirs: tuple[str, str], measure: str) -> Difference | None:
        """Paired difference of two rankers, each named by objective and ranker; None where one is missing."""
        one, other = self.mean(*ours, measure), self.mean(*theirs, measure)
        return None if one is None or other is None else paired_difference(one, other)

    def against_base(self, rankers: Sequence[str]) -> Differences:
        """Differences from the base's ranker of the same name, as one family of Holm's correction."""
        grid: dict[str, dict[str, Difference]] = {}
        for objective in self.objectives:
            for ranker in rankers if objective != BASE else ():
                for measure in MEASURE_NAMES:
                    if (gap := self.gap((objective, ranker), (BASE, ranker), measure)) is not None:
                        grid.setdefault(objective, {})[f"{ranker}\n{measure}"] = gap
        nested: dict[str, dict[str, dict[str, Difference]]] = {}
        for objective, by_name in holm_grid(grid).items():
            for name, gap in by_name.items():
                ranker, _, measure = name.partition("\n")
                nested.setdefault(objective, {}).setdefault(ranker, {})[measure] = gap
        return nested

    def rankers(self) -> list[str]:
        """Every ranker that some cell has, in the order of the tables, without ablations."""
        names = {name for board in self.boards.values() for name in board.values if not name.startswith(WITHOUT)}
        return ordered(names)

    def only(self, queries: Bool[np.ndarray, "query"]) -> "BoardGrid":
        """The same for some of the queries."""
        boards = {
            cell: Scoreboard(
                {
                    ranker: {measure: values[queries] for measure, values in by_measure.items()}
                    for ranker, by_measure in board.values.items()
                },
                board.weights,
            )
            for cell, board in self.boards.items()
        }
        return BoardGrid(boards, self.objectives, self.seeds)


def ordered(names: Iterable[str]) -> list[str]:
    """Names of rankers in the order of the tables.

    >>> ordered({"hybrid", "bm25", "popularity", "without heads", "generator"})
    ['bm25', 'generator', 'popularity', 'hybrid', 'without heads']
    """
    order = list(NAMES)

    def place(name: str) -> float:
        if name in order:
            return float(order.index(name))
        return order.index(HYBRID if name.startswith(WITHOUT) else GENERATOR) + 0.5

    return sorted(names, key=lambda name: (place(name), name))


def is_of_model(ranker: str) -> bool:
    """Whether a ranker depends on the trained model, and so differs from cell to cell.

    >>> is_of_model("heads"), is_of_model("hybrid_on_new"), is_of_model("bm25_dense")
    (True, True, False)
    """
    return ranker in (GENERATOR, HEADS, HYBRID, ON_NEW[HYBRID]) or ranker.startswith(WITHOUT)


def shown(ranker: str) -> str:
    """Name of a ranker in a table.

    >>> shown("without heads"), shown("bm25")
    ('hybrid without heads', 'BM25')
    """
    return f"{HYBRID} {ranker}" if ranker.startswith(WITHOUT) else NAMES.get(ranker, ranker)


def with_interval(gap: Difference | None) -> str:
    """A difference with its interval, and a dagger where it survives the correction; a dash where there is none."""
    if gap is None:
        return "–"
    mark = "†" if gap.adjusted is not None and gap.adjusted < _ALPHA else ""
    return f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]{mark}"


def score_tables(grid: BoardGrid, rankers: Sequence[str], differences: Differences, *, title: str) -> list[Table]:
    """One table per measure: what every ranker of every objective is worth."""
    tables = []
    for measure in MEASURE_NAMES:
        rows, means = [], []
        for objective in grid.objectives:
            spreads = [grid.spread(objective, ranker, measure) for ranker in rankers]
            gaps = [differences.get(objective, {}).get(ranker, {}).get(measure) for ranker in rankers]
            rows.append((label(objective), *map(_score, spreads, gaps)))
            means.append([None if spread is None else spread.mean for spread in spreads])
        notes = [
            f"{'Mean ± sample standard deviation over seeds' if len(grid.seeds) > 1 else 'One seed'}, by item. "
            f"† differs from {label(BASE)}'s ranker of the same column after Holm's correction over all objectives, "
            f"rankers and measures (permutation test, 5 %), {CONDITIONAL}."
        ]
        if any("*" in row[0] for row in rows):
            notes.append("* beyond the paper.")
        columns = ("Training objective", *map(shown, rankers))
        name = f"scores-{measure.lower()}"
        tables.append(Table(name, f"{measure}, {title}", columns, tuple(rows), tuple(notes), best_of_columns(means)))
    return tables


def gain_tables(differences: Differences, rankers: Sequence[str], *, title: str) -> list[Table]:
    """One table per measure: differences from the base, with intervals; none where there is the base alone."""
    notes = (
        f"Points over {label(BASE)}'s ranker of the same column, averaged over seeds, with 95 % intervals of a paired "
        f"bootstrap over queries; † after Holm's correction over all objectives, rankers and measures; {CONDITIONAL}.",
    )
    columns = ("Training objective", *map(shown, rankers))
    return [
        Table(
            f"gains-{measure.lower()}",
            f"Differences from {label(BASE)} in {measure}, {title}",
            columns,
            tuple(
                (label(objective), *(with_interval(by_ranker.get(ranker, {}).get(measure)) for ranker in rankers))
                for objective, by_ranker in differences.items()
            ),
            notes,
        )
        for measure in (MEASURE_NAMES if differences else ())
    ]


def gain_figure(differences: Differences, rankers: Sequence[str], *, name: str, title: str) -> Figure | None:
    """Differences from the base by ranker, with intervals; None where there is the base alone."""
    series = {
        shown(ranker): [
            {"label": label(objective), **by_ranker[ranker][FIRST].to_dict()}
            for objective, by_ranker in differences.items()
            if ranker in by_ranker
        ]
        for ranker in rankers
    }
    series = {ranker: entries for ranker, entries in series.items() if entries}
    if not series:
        return None
    base = label(BASE)
    return Figure(
        name,
        f"Difference from {base} in {FIRST}, {title}",
        "intervals",
        {"series": series, "xlabel": f"points over {base} (95 % interval over queries)"},
        "An interval that crosses the line is not distinguishable from zero on these queries.",
    )


def grid_numbers(grid: BoardGrid, rankers: Sequence[str], differences: Differences) -> dict[str, Any]:
    """Every mean, spread and difference as plain values, by objective and ranker."""
    numbers: dict[str, Any] = {}
    for objective in grid.objectives:
        for ranker in rankers:
            spreads = {measure: grid.spread(objective, ranker, measure) for measure in MEASURE_NAMES}
            entry: dict[str, Any] = {
                measure: {"mean": spread.mean, "deviation": spread.deviation, "seeds": spread.seeds}
                for measure, spread in spreads.items()
                if spread is not None
            }
            if gaps := differences.get(objective, {}).get(ranker):
                entry["against_base"] = {measure: gap.to_dict() for measure, gap in gaps.items()}
            if entry:
                numbers.setdefault(objective, {})[ranker] = entry
    return numbers


def _score(spread: Spread | None, gap: Difference | None) -> str:
    if spread is None:
        return "–"
    return f"{spread}{'†' if gap is not None and gap.adjusted is not None and gap.adjusted < _ALPHA else ''}"
