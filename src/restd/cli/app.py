"""The commands, and how they end: 0 done, 2 the input's fault, 130 or 143 interrupted."""

import logging
import sys
from typing import Annotated

import typer

from restd._version import __version__
from restd.cli import analyze, bench, compare, data, evaluate, index, recommend, search, train
from restd.cli.console import fail, show, warn
from restd.errors import Interrupted, RestdError

_INTERRUPTED = 130

app = typer.Typer(
    help="Semantic-ID retrieval and recommendation with residual trajectory distillation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data.app, name="data")
app.command("index")(index.index)
app.command("inspect")(index.inspect)
app.command("add")(index.add)
app.command("remove")(index.remove)
app.command("train")(train.train)
app.command("search")(search.search)
app.command("recommend")(recommend.recommend)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("analyze")(analyze.analyze)
app.command("report")(analyze.report)
app.command("bench")(bench.bench)


class _Told(logging.Handler):
    """Log records in the voice of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def _print_version(wanted: bool) -> None:
    if wanted:
        show(f"restd {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Semantic-ID retrieval and recommendation with residual trajectory distillation."""
    logger = logging.getLogger("restd")
    logger.handlers = [_Told(level=logging.WARNING)]
    logger.propagate = False


def main() -> None:
    """Run the command line."""
    try:
        app()
    except Interrupted as error:
        fail(str(error))
        sys.exit(error.exit_code)
    except RestdError as error:
        fail(str(error))
        sys.exit(2)
    except OSError as error:
        place = error.filename or "the system refused"
        fail(f"{error.strerror or error}: {place}; check the path, its rights and its disk.")
        sys.exit(2)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            fail("interrupted; what was finished is kept, and the same command goes on from there.")
        raise
