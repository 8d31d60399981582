"""What a study found, as values: tables and figures that any renderer can show, and the numbers behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["bars", "lines", "heatmap", "intervals", "trace"]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text, the first column naming the row; `best` and `underlined` list cells, as (row, column)."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: tuple[tuple[int, int], ...] = ()
    underlined: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture as data: the kind says how it is drawn, `says` what to see in it."""

    name: str
    title: str
    kind: Kind
    data: Mapping[str, Any]
    says: str = ""


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """The outcome of one analysis."""

    name: str
    title: str
    says: str
    """What was done, and what to make of it, in a few sentences."""
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """Every number, unrounded."""
    of: str = ""
    """Which comparison it was made of, as `comparison_identity` says."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AnalysisResult":
        """Read `to_dict` back, from JSON too."""
        tables = tuple(
            Table(
                entry["name"],
                entry["title"],
                tuple(entry["columns"]),
                tuple(map(tuple, entry["rows"])),
                tuple(entry["notes"]),
                tuple((row, column) for row, column in entry["best"]),
                # results from before there were underlined cells have no entry for them
                tuple((row, column) for row, column in entry.get("underlined", ())),
            )
            for entry in values["tables"]
        )
        figures = tuple(Figure(**entry) for entry in values["figures"])
        return cls(values["name"], values["title"], values["says"], tables, figures, values["data"], values["of"])


def best_of_columns(values: Sequence[Sequence[float | None]]) -> tuple[tuple[int, int], ...]:
    """Cells with the highest value of their column, ties included; column 0 of the values is column 1 of the table.

    >>> best_of_columns([[1.0, 5.0], [2.0, 5.0]])
    ((1, 1), (0, 2), (1, 2))
    """
    cells = []
    for column in range(len(values[0]) if values else 0):
        column_values = [row[column] for row in values]
        most = max((value for value in column_values if value is not None), default=None)
        cells += [
            (number, column + 1) for number, value in enumerate(column_values) if value is not None and value == most
        ]
    return tuple(cells)
