"""Printing: results to standard output, everything else to standard error."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 140
"""Width of tables, in characters, where standard output is a file or a pipe."""
_out = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
_err = Console(stderr=True, highlight=False)


def notify(sentence: str) -> None:
    """Report what a long job is doing."""
    _err.print(sentence, style="dim", markup=False, soft_wrap=True)


def note(sentence: str) -> None:
    """Print a remark about a result."""
    _err.print(f"Note: {sentence}", markup=False, soft_wrap=True)


def warn(sentence: str) -> None:
    """Print a warning."""
    _err.print(f"Warning: {sentence}", style="yellow", markup=False, soft_wrap=True)


def fail(sentence: str) -> None:
    """Print the error that ends the command."""
    _err.print(f"restd: {sentence}", style="red", markup=False, soft_wrap=True)


def show(text: str) -> None:
    """Print a line of the result."""
    _out.print(text, markup=False, soft_wrap=True)


def show_json(value: Any) -> None:
    """Print one JSON value and nothing else, so that it can be piped."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> None:
    """Print a table; the first column is text, the others are numbers unless `numbers` is False."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and number else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # not markup: a cell may contain brackets
    _out.print(table)
