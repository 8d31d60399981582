"""A user's own table as it looks: names of columns, first values, and which column was taken for what."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal

import pyarrow as pa

from restd.data.catalog import text_values
from restd.data.readers import column_names, read_batches, table_format
from restd.data.schema import SPLITS, parse_grade
from restd.errors import DataError

TableKind = Literal["items", "judgments", "histories"]
Tiers = tuple[frozenset[str], ...]
"""Names that a column may have, the surest first; separators and case left out."""

SPLIT_NAMES: Final = {name: name for name in SPLITS} | {
    "training": "train",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "testing": "test",
    "eval": "test",
}
"""Words for a split, as people write them, and ours."""
GRADE_NAMES: Final = {"exact": "E", "substitute": "S", "complement": "C", "irrelevant": "I"}
"""Grades that are written out, and their labels."""

_SAMPLE_ROWS: Final = 5000
_SHORT: Final = 120
"""Most characters that half of all titles or queries have."""
_NUMBER = re.compile(r"[-+]?[\d.,]+([eE][-+]?\d+)?%?")
_DECIMAL = re.compile(r"[-+]?\d*[.,]\d+")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?\b.*|\d\d?[./]\d\d?[./]\d{2,4}\b.*")
_ADDRESS = re.compile(r"(https?://|www\.)\S+|\S+\.(jpe?g|png|gif|webp)", re.IGNORECASE)
_NOT_CODES: Final = (_DECIMAL, _DATE, _ADDRESS)
_WORDY = re.compile(r"\S\s+\S|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2}")


@dataclass(frozen=True, slots=True)
class GuessedColumns:
    """What the columns of a table mean, and why."""

    kind: TableKind
    """`histories` for a table of users and items without queries."""
    columns: Mapping[str, str]
    """Our name to the file's column; a name without a column is missing."""
    reasons: Mapping[str, str]
    """Our name to the reason in words; names that the user mapped have none."""
    remarks: tuple[str, ...] = ()
    """Sentences on what was not found or not used."""

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each guess, and the remarks.

        >>> GuessedColumns("items", {"id": "sku"}, {"id": "unique in all 3 rows"}).notes
        ('Guessed id = sku (unique in all 3 rows).',)
        """
        guesses = (f"Guessed {name} = {self.columns[name]} ({reason})." for name, reason in self.reasons.items())
        return (*guesses, *self.remarks)


@dataclass(frozen=True, slots=True)
class SampledTable:
    """The columns of a file and the filled values of its first rows, as text; nested columns have none."""

    path: Path
    option: str
    samples: dict[str, list[str]]
    rows: int

    @classmethod
    def look(cls, path: Path, *, option: str) -> "SampledTable":
        """Read the header and the first rows; `option` is how a user says what a column means."""
        names = column_names(path)
        if len(names) == 1 and table_format(path) == ".csv" and (found := re.search("[;\t|]", names[0])):
            raise DataError(
                f"{path}: the header has one column, {names[0]!r}, with {found[0]!r} inside. Expected commas between "
                "columns; save the file with commas, or with tabs as .tsv."
            )
        samples: dict[str, list[str]] = {name: [] for name in names}
        rows = 0
        batch = next(read_batches(path, rows=_SAMPLE_ROWS), None)
        if batch is not None:
            rows = batch.num_rows
            for name in names:
                samples[name] = [text for text in texts_in(batch.column(name)) if text]
        if not rows:
            raise DataError(f"{path} contains no rows. Expected a header and one record per line.")
        return cls(path, option, samples, rows)

    def listed(self) -> str:
        """Return the names of all columns."""
        return ", ".join(self.samples)

    def is_text(self, name: str) -> bool:
        """Return whether most values are neither numbers, dates nor addresses, and some have letters."""
        values = self.samples[name]
        odd = sum(any(kind.fullmatch(value) for kind in (_NUMBER, _DATE, _ADDRESS)) for value in values)
        return odd < len(values) / 2 and any(re.search(r"[^\W\d_]", value) for value in values)

    def is_wordy(self, name: str, share: float) -> bool:
        """Return whether it is short text, and this share of the values has more than one word."""
        values = self.samples[name]
        wordy = sum(bool(_WORDY.search(value)) for value in values)
        return self.is_text(name) and wordy >= share * len(values) and median(map(len, values)) <= _SHORT

    def is_title(self, name: str) -> bool:
        """Return whether values are mostly there, short, of several words, and differ."""
        values = self.samples[name]
        often_filled = len(values) >= self.rows / 2
        return often_filled and self.is_wordy(name, 0.5) and len(set(values)) >= 0.7 * len(values)

    def is_code(self, name: str) -> bool:
        """Return whether every row has a value without spaces, most of them with a digit."""
        values = self.samples[name]
        plain = not any(re.search(r"\s", value) or kind.fullmatch(value) for value in values for kind in _NOT_CODES)
        return len(values) == self.rows and plain and sum(bool(re.search(r"\d", v)) for v in values) * 2 >= len(values)

    def is_grade(self, name: str) -> bool:
        """Return whether all values are grades."""
        return bool(self.samples[name]) and all(read_grade(value) is not None for value in self.samples[name])

    def is_split(self, name: str) -> bool:
        """Return whether all values are names of splits."""
        return bool(self.samples[name]) and all(value.lower() in SPLIT_NAMES for value in self.samples[name])


class Guess:
    """Columns that were found so far; no column is taken twice."""

    def __init__(self, table: SampledTable, given: Mapping[str, str], *, known: tuple[str, ...]) -> None:
        self.table, self.columns, self.known = table, dict(given), known
        self.reasons: dict[str, str] = {}
        self.remarks: list[str] = []
        for name, column in given.items():
            if name not in known:
                expected = f"Expected one of: {', '.join(known)}."
                raise DataError(f"{table.option} {name}={column}: unknown name {name!r}. {expected}")
            if column not in table.samples:
                raise DataError(
                    f"{table.path} has no column {column!r} ({table.option} {name}={column}); it has: {table.listed()}."
                )

    def free(self) -> list[str]:
        """Return the columns that were not taken."""
        return [name for name in self.table.samples if name not in self.columns.values()]

    def take(self, name: str, column: str, reason: str) -> None:
        """Take a column."""
        self.columns[name], self.reasons[name] = column, reason

    def by_names(self, name: str, tiers: Tiers, *, fits: Callable[[str], bool] | None, needs: str = "") -> None:
        """Take the column whose name is in the first tier that any is in; of several, the only one that fits.

        With `needs`, a column that does not fit is never taken, and a remark says so.
        """
        for tier in () if name in self.columns else tiers:
            named = [column for column in self.free() if plain_name(column) in tier]
            if needs and fits:
                odd = [column for column in named if not fits(column)]
                self.remarks += [f"Column {column} was not taken for the {name}: it needs {needs}." for column in odd]
                named = [column for column in named if column not in odd]
            if len(named) > 1 and fits:
                named = [column for column in named if fits(column)] or named
            if len(named) > 1:
                raise self.ambiguous(name, named)
            if named:
                self.take(name, named[0], "by its name")
                return

    def by_content(self, name: str, candidates: Sequence[str], reason: str) -> None:
        """Take the only candidate; several are an error, and none is not."""
        if name in self.columns or not candidates:
            return
        if len(candidates) > 1:
            raise self.ambiguous(name, candidates)
        self.take(name, candidates[0], reason)

    def ambiguous(self, name: str, columns: Sequence[str]) -> DataError:
        """Return the error for several columns of which none is surer."""
        options = " or ".join(f"{self.table.option} {name}={_quoted(column)}" for column in columns)
        return DataError(
            f"{self.table.path}: {' and '.join(map(repr, columns))} could each be the {name}; the columns are: "
            f"{self.table.listed()}. Pass {options}."
        )

    def missing(self, name: str, why: str) -> DataError:
        """Return the error for a name that no column fits."""
        return DataError(
            f"{self.table.path}: no column was found for the {name}: {why} The columns are: {self.table.listed()}. "
            f"Pass {self.table.option} {name}=NAME."
        )

    def result(self, kind: TableKind) -> GuessedColumns:
        """Return what was found."""
        columns, reasons = (
            {name: values[name] for name in self.known if name in values} for values in (self.columns, self.reasons)
        )
        return GuessedColumns(kind, columns, reasons, tuple(self.remarks))


def plain_name(column: str) -> str:
    """Return a column's name in lower case, without separators.

    >>> plain_name("Product_Title "), plain_name("esci-label")
    ('producttitle', 'escilabel')
    """
    return re.sub(r"[\W_]+", "", column.lower())


def read_grade(text: str) -> float | None:
    """Return the grade of a number, a label or a written-out label; None if it is none.

    >>> read_grade("Exact"), read_grade("2"), read_grade("good")
    (3.0, 2.0, None)
    """
    try:
        return parse_grade(GRADE_NAMES.get(text.lower(), text), where="")
    except DataError:
        return None


def texts_in(values: pa.Array) -> list[str]:
    """Return a column as trimmed texts; all are empty if its type has none, such as a record's."""
    try:
        return text_values(values).to_pylist()
    except pa.ArrowException:
        return [""] * len(values)


def unique_columns(path: Path, columns: Collection[str]) -> tuple[list[str], int]:
    """Return the columns that have another value in every row, none of them empty, and the number of rows."""
    if not columns:
        return [], 0
    seen: dict[str, set[int]] = {column: set() for column in columns}
    rows = 0
    for batch in read_batches(path, rows=1 << 16, columns=list(columns)):
        rows += batch.num_rows
        for column in list(seen):
            texts = texts_in(batch.column(column))
            seen[column].update(map(hash, texts))  # hashes, because texts may be long
            if len(seen[column]) < rows or "" in texts:
                del seen[column]
    return list(seen), rows


def _quoted(column: str) -> str:
    return f'"{column}"' if re.search(r"\W", column) else column
