"""The commands, and how they end: 0 success, 2 bad input or environment, 130 or 143 interrupted."""

import logging
import sys
from typing import Annotated

import typer

from restd._version import __version__
from restd.cli import (
    analyze,
    bench,
    compare,
    data,
    doctor,
    evaluate,
    fit,
    index,
    listing,
    quickstart,
    recommend,
    search,
    train,
)
from restd.cli.command import MainGroup, add_command, add_moved
from restd.cli.console import fail, show, warn
from restd.errors import Interrupted, RestdError

_INTERRUPTED = 130
_BUILD, _MODEL, _MEASURE, _LOOK = "Data and index", "Models", "Measuring", "This installation"

app = typer.Typer(cls=MainGroup, no_args_is_help=True, pretty_exceptions_enable=False)
add_command(app, "quickstart", quickstart.quickstart, panel=_BUILD)
app.add_typer(data.app, name="data", rich_help_panel=_BUILD)
app.add_typer(index.app, name="index", rich_help_panel=_BUILD)
add_command(app, "train", train.train, panel=_MODEL)
add_command(app, "fit", fit.fit, panel=_MODEL)
add_command(app, "search", search.search, panel=_MODEL)
add_command(app, "recommend", recommend.recommend, panel=_MODEL)
add_command(app, "evaluate", evaluate.evaluate, panel=_MEASURE)
add_command(app, "compare", compare.compare, panel=_MEASURE)
add_command(app, "analyze", analyze.analyze, panel=_MEASURE)
add_command(app, "report", analyze.report, panel=_MEASURE)
add_command(app, "bench", bench.bench, panel=_MEASURE)
add_command(app, "list", listing.list_parts, panel=_LOOK)
add_command(app, "doctor", doctor.doctor, panel=_LOOK)
for name, function in (("inspect", index.inspect), ("add", index.add), ("remove", index.remove)):
    add_moved(app, name, function, f"restd index {name}")


class _LogHandler(logging.Handler):
    """Prints log records of the library as warnings of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def _print_version(value: bool) -> None:
    if value:
        show(f"restd {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Semantic-ID retrieval and recommendation with residual trajectory distillation.

    Start with restd data shop --out shop, then restd index --catalog shop --out index, then restd train.
    """
    logger = logging.getLogger("restd")
    logger.handlers = [_LogHandler(level=logging.WARNING)]
    logger.propagate = False


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="restd")
    except Interrupted as error:
        fail(str(error))
        sys.exit(error.exit_code)
    except RestdError as error:
        fail(str(error))
        sys.exit(2)
    except OSError as error:
        path = error.filename or "no path was reported"
        fail(f"{error.strerror or error}: {path}. Check the path, its permissions and the free disk space.")
        sys.exit(2)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            fail("interrupted. Finished stages are saved; repeat the command to continue.")
        raise
