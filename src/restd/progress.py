"""One progress bar for the whole library: on a terminal, on the first process, and silent everywhere else."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[..., None]
"""Call with the number of finished units; keywords are shown behind the bar (`advance(1, error=0.12)`)."""


_hidden = ContextVar("hidden", default=False)


def is_shown() -> bool:
    """Whether a person is watching: standard error is a terminal and this is not a worker of a larger job."""
    return sys.stderr.isatty() and os.environ.get("RANK", "0") == "0" and not _hidden.get()


@contextmanager
def hidden() -> Iterator[None]:
    """Show nothing: for work that somebody else shows.

    >>> with hidden():
    ...     is_shown()
    False
    """
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


@contextmanager
def progress(description: str, *, total: int | None) -> Iterator[Advance]:
    """Show how far a job is.

    >>> with progress("Counting", total=3) as advance:
    ...     for _ in range(3):
    ...         advance(1)
    """
    if not is_shown():
        yield lambda count=1, **fields: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, said="")

        def advance(count: int = 1, **fields: Any) -> None:
            said = "  ".join(f"{name} {_short(value)}" for name, value in fields.items())
            bar.advance(task, count)
            if said:
                bar.update(task, said=said)

        yield advance


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
