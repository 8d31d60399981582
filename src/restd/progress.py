"""One progress bar for the whole library: shown on a terminal by the first process, and silent elsewhere."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Notify = Callable[[str], None]
"""Receives one sentence at a time about what a long job is doing; the command line prints them."""

Advance = Callable[..., None]
"""Call with the number of finished units; keywords are shown after the bar (`advance(1, error=0.12)`)."""


_hidden = ContextVar("hidden", default=False)


def is_shown() -> bool:
    """Return whether to show progress: standard error is a terminal, and this is not a worker of a larger job."""
    return sys.stderr.isatty() and os.environ.get("RANK", "0") == "0" and not _hidden.get()


@contextmanager
def hidden() -> Iterator[None]:
    """Show no progress inside the block, for work whose caller shows its own.

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
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, status="")

        def advance(count: int = 1, **fields: Any) -> None:
            status = "  ".join(f"{name} {_short(value)}" for name, value in fields.items())
            bar.advance(task, count)
            if status:
                bar.update(task, status=status)

        yield advance


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
