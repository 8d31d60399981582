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
    mcp,
    quickstart,
    recommend,
    search,
    serve,
    train,
)
from restd.cli.command import MainGroup, add_command, add_moved, examples
from restd.cli.console import fail, show, warn
from restd.errors import Interrupted, RestdError

_INTERRUPTED = 130
_BUILD, _MODEL, _MEASURE, _LOOK = "Data and index", "Models", "Measuring", "This installation"

app = typer.Typer(cls=MainGroup, no_args_is_help=True, pretty_exceptions_enable=False)
add_command(
    app,
    "quickstart",
    quickstart.quickstart,
    panel=_BUILD,
    epilog=examples(
        "restd quickstart items.csv queries.csv --out my-search",
        "restd quickstart items.csv --map id=sku --map title=name --minutes 10",
        "restd data shop --items 5000 --out shop && restd quickstart shop",
    ),
)
app.add_typer(data.app, name="data", rich_help_panel=_BUILD)
app.add_typer(index.app, name="index", rich_help_panel=_BUILD)
add_command(
    app,
    "train",
    train.train,
    panel=_MODEL,
    epilog=examples(
        "restd train --index my-index --data my-data --out base",
        "restd train --index my-index --data my-data --out better --init base --objective restd",
        "restd train --index my-index --data my-data --out short --epochs 3 --set compact.width=128",
        "restd train --task recommend --index my-index --data my-data --out recommender",
    ),
)
add_command(
    app,
    "fit",
    fit.fit,
    panel=_MODEL,
    epilog=examples("restd fit --model better", "restd fit --model better --parts generator,bm25,dense"),
)
add_command(
    app,
    "search",
    search.search,
    panel=_MODEL,
    epilog=examples(
        'restd search --model better "quiet mouse for the office" -k 5',
        'restd search --model better "quiet mouse" --where "price<=30" --where "category=Electronics"',
        'restd search --model better "quiet mouse" --explain B00X',
        "restd search --model better --queries queries.txt --json",
    ),
)
add_command(
    app,
    "recommend",
    recommend.recommend,
    panel=_MODEL,
    epilog=examples(
        "restd recommend --model recommender --history B00X --history B00Y -k 5",
        "restd recommend --model recommender --histories histories.csv --json",
    ),
)
add_command(
    app,
    "serve",
    serve.serve,
    panel=_MODEL,
    epilog=examples(
        "restd serve --model better",
        "restd serve --model better --beside base --port 9000",
        "restd serve --model better --host 0.0.0.0 --api-key-file keys.txt --reload next=better-2",
    ),
)
add_command(
    app,
    "mcp",
    mcp.mcp,
    panel=_MODEL,
    epilog=examples("restd mcp --model better", "restd mcp --model recommender --max-k 50"),
)
add_command(
    app,
    "evaluate",
    evaluate.evaluate,
    panel=_MEASURE,
    epilog=examples(
        "restd evaluate --model better --out result",
        "restd evaluate --model better --ablate",
        "restd evaluate --baseline bm25 --index my-index --data my-data --against result",
    ),
)
add_command(
    app,
    "compare",
    compare.compare,
    panel=_MEASURE,
    epilog=examples(
        "restd compare --index my-index --data my-data --init base --out study --objectives base,restd",
        "restd compare --index my-index --data my-data --out study --objectives matched --baselines bm25",
    ),
)
add_command(
    app,
    "analyze",
    analyze.analyze,
    panel=_MEASURE,
    epilog=examples("restd analyze cases study", "restd analyze all study"),
)
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
    """Search and recommendation with Semantic IDs, and training with residual trajectory distillation (ResTD).

    With tables of your own, start with restd quickstart items.csv queries.csv.

    Without, make a generated shop: restd data shop --out shop, then restd quickstart shop.
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
