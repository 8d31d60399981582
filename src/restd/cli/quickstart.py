"""`restd quickstart`: from one's own tables to a search, or a recommender, that is measured and ready to use."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.columns import column_pairs
from restd.cli.console import note, notify, show, show_json
from restd.cli.device import use_device
from restd.cli.evaluate import show_board
from restd.cli.fit import fit_and_collect, show_fusion
from restd.cli.options import ColumnMap, Device, Json
from restd.cli.quickstart_steps import (
    BUNDLE,
    SUMMARY,
    Plan,
    build,
    chosen_epochs,
    list_results,
    train_job,
    write_report,
)
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.evaluate import FittingSet, Scoreboard
    from restd.search import Fusion, Retriever

DATA = "data"
_EPOCHS = 12
"""Most passes over the pairs, however much time there is."""
_NO_PSEUDO = "pseudo_queries=0"
"""Where all queries are made up, the data set has them, and those of held-out items must not be drawn again."""


def quickstart(
    items: Annotated[
        Path,
        typer.Argument(help="Table of items (.csv, .tsv, .jsonl or .parquet), or a folder made by restd data."),
    ],
    queries: Annotated[
        Path | None,
        typer.Argument(
            help="Table of queries or clicks, with one query and one item per row; or of histories, with one user and "
            "one item per row, for a recommender. Without it, queries are generated from the items' own words."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for all results; repeat the command to continue.")] = Path(
        "my-search"
    ),
    minutes: Annotated[
        float, typer.Option(help="About how many minutes to train. Encoding and measuring take additional time.")
    ] = 4.0,
    column_map: ColumnMap = None,
    query_map: Annotated[
        list[str] | None,
        typer.Option(
            "--map-query",
            help="Name of a column of the second table, as OURS=YOURS: query=term, user=customer (repeatable).",
        ),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Encoder of items and queries. Default: auto, which chooses by language.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of weights, batches and dropout.")] = 42,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Make a search engine from your own tables, and compare it with BM25 and dense search.

    It builds an index, trains a model, fits a hybrid search, measures it, and writes a bundle that restd search opens.
    From a table of histories it makes a recommender instead, and compares it with simpler ones.

    A table of items is enough. Columns are guessed and the guesses printed; --map and --map-query correct them.
    """
    from restd.analyses.scoreboards import scoreboard_result
    from restd.cli.quickstart_histories import quickstart_histories
    from restd.search import Retriever

    device = use_device(device)
    start = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    data = _data(items, queries, out, column_pairs(column_map), column_pairs(query_map))
    plan = Plan(data, out, minutes=minutes, seed=seed, device=device, encoder=encoder)
    if has_histories_only(data):
        quickstart_histories(plan, start=start, as_json=as_json)
        return
    settings = [_NO_PSEUDO] if not items.is_dir() and queries is None else []
    index = build(plan, "product-index", [f"align.{setting}" for setting in settings])
    job = chosen_epochs(plan, "product", [f"train.{setting}" for setting in settings], index, most=_EPOCHS)
    train_job(job)
    retriever = Retriever.load(job.out, index, data)
    fusion, valid = fit_and_collect(retriever)
    if not as_json:
        show_fusion(fusion)
    board, count = _measure(retriever, fusion, valid, data)
    retriever.save(out / BUNDLE)
    summary = _summary(board, seconds=time.monotonic() - start)
    (out / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    page = write_report(scoreboard_result(board, queries=count, split="test"), out)
    if as_json:
        show_json(summary)
        return
    show_board(board, f"{count:,} test queries (%)")
    list_results(page, out)
    show(f'Search it: restd search --model {out / BUNDLE} "your query"')
    show(f"Serve it:  restd serve --model {out / BUNDLE}")


def has_histories_only(data: Path) -> bool:
    """Whether a data folder is for a recommender; one that has judgments too is searched."""
    from restd.data.dataset import EVIDENCE, optional_table

    return optional_table(data, EVIDENCE["search"]) is None and optional_table(data, EVIDENCE["recommend"]) is not None


def _data(items: Path, queries: Path | None, out: Path, columns: dict[str, str], query_columns: dict[str, str]) -> Path:
    """A folder with items and judgments: the one that was given, or one made of the user's tables."""
    from restd.artifacts.manifest import MANIFEST
    from restd.data import write_dataset
    from restd.data.own_tables import own_tables_source

    if items.is_dir():
        if queries is not None:
            raise ConfigError(f"{items} is a data folder and has its own judgments; leave {queries} out.")
        return items
    folder = out / DATA
    if (folder / MANIFEST).is_file():
        notify(f"Kept the data in {folder}; delete the folder to read the tables again")
        return folder
    source = own_tables_source(items, queries, columns=columns, query_columns=query_columns)
    written = write_dataset(source, folder)
    for sentence in written.notes:
        note(sentence)
    return folder


def _measure(
    retriever: "Retriever", fusion: "Fusion", valid: "FittingSet | None", data: Path
) -> "tuple[Scoreboard, int]":
    """The fitted search beside its parts, on test queries that nothing was chosen by."""
    from restd.evaluate import collect, read_tests, score_board
    from restd.evaluate.fitting import available_parts
    from restd.evaluate.scoreboard import DEEPEST
    from restd.search import SearchOptions

    if valid is None:
        raise ConfigError(f"{data} has no validation queries, so the parts cannot be weighed; mark some as valid.")
    tests = read_tests(data, retriever.snapshot, split="test")
    notify(f"Measuring on {len(tests):,} test queries")
    deep = SearchOptions(k=DEEPEST)
    return score_board(fusion, valid, collect(retriever, tests, parts=available_parts(retriever), options=deep)), len(
        tests
    )


def _summary(board: "Scoreboard", *, seconds: float) -> dict[str, Any]:
    """Figures for machines: `ndcg10`, `recall10` and `recall100` of every ranker, and the hybrid's lead."""
    from restd.evaluate.scoreboard import HYBRID, LEXICAL_AND_DENSE, MEASURES

    keys = {str(measure): str(measure).lower().replace("@", "") for measure in MEASURES}
    rankers = {
        name: {keys[measure]: value for measure, value in values.items()} for name, values in board.means().items()
    }
    summary: dict[str, Any] = {"rankers": rankers, "seconds": round(seconds, 1)}
    if LEXICAL_AND_DENSE in rankers:
        gaps = {measure: board.difference(HYBRID, LEXICAL_AND_DENSE, measure) for measure in keys}
        summary["hybrid_over_bm25_dense"] = {keys[name]: [gap.mean, gap.low, gap.high] for name, gap in gaps.items()}
    return summary
