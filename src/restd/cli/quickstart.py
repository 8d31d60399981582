"""`restd quickstart`: from one's own tables to a search that is fitted, measured and ready to use."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.columns import column_pairs
from restd.cli.console import note, notify, show, show_json
from restd.cli.device import use_device
from restd.cli.evaluate import show_board
from restd.cli.fit import fit_and_collect, show_fusion
from restd.cli.options import ColumnMap, Device, Json
from restd.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from restd.evaluate import FittingSet, Scoreboard
    from restd.search import Fusion, Retriever
    from restd.train import Job

DATA, INDEX, MODEL, BUNDLE, REPORT, SUMMARY = "data", "index", "model", "bundle", "report", "summary.json"
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
            help="Table of queries or clicks, with one query and one item per row. Without it, queries are generated "
            "from the items' own words."
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
        typer.Option("--map-query", help="Name of a column of the queries, as OURS=YOURS: query=term (repeatable)."),
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

    A table of items is enough. Columns are guessed and the guesses printed; --map and --map-query correct them.
    """
    from restd.search import Retriever

    device = use_device(device)
    start = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    data = _data(items, queries, out, column_pairs(column_map), column_pairs(query_map))
    made_up = not items.is_dir() and queries is None
    index = _index(data, out, encoder, device, made_up=made_up)
    job = _job(data, index, out, minutes=minutes, seed=seed, device=device, made_up=made_up)
    _train(job)
    retriever = Retriever.load(job.out, index, data)
    fusion, valid = fit_and_collect(retriever)
    if not as_json:
        show_fusion(fusion)
    board, count = _measure(retriever, fusion, valid, data)
    retriever.save(out / BUNDLE)
    summary = _summary(board, seconds=time.monotonic() - start)
    (out / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    page = _report(board, count, out)
    if as_json:
        show_json(summary)
        return
    show_board(board, f"{count:,} test queries (%)")
    for path, what in ((page, "report"), (out / SUMMARY, "figures"), (out / BUNDLE, "model, index and items")):
        if path is not None:
            show(f"{path}: {what}")
    show(f'Search it: restd search --model {out / BUNDLE} "your query"')


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


def _index(data: Path, out: Path, encoder: str | None, device: str | None, *, made_up: bool) -> Path:
    from restd.cli.index_settings import index_config
    from restd.data import Catalog
    from restd.index import build_index

    catalog = Catalog(data)
    count = len(catalog.ids())
    codes = min(256, 1 << max(1, (count // 4).bit_length() - 1))  # a codebook needs several items per code
    options: dict[str, Any] = {} if encoder is None else {"encoder": encoder}
    settings = [f"align.{_NO_PSEUDO}"] if made_up else []
    config = index_config("product-index", settings, options, levels=None, codes=str(codes), dim=None, seed=None)
    build_index(catalog, out / INDEX, config, judgments=data, device=device, notify=notify)
    return out / INDEX


def _job(data: Path, index: Path, out: Path, *, minutes: float, seed: int, device: str | None, made_up: bool) -> "Job":
    """The training run, as long as the time allows; what was chosen the first time stays."""
    from restd.cli.train import configure
    from restd.train import Job
    from restd.train.estimate import estimate_cost
    from restd.train.run import make_loop

    if not minutes > 0:
        raise ConfigError(f"--minutes must be above 0, got {minutes:g}.")
    settings = [f"train.{_NO_PSEUDO}"] if made_up else []
    model, config = configure("product", settings, options={"seed": seed})
    job = Job(index, data, out / MODEL, model, config, None, None, device)
    chosen = out / "epochs.json"
    if chosen.is_file():
        epochs = int(json.loads(chosen.read_text(encoding="utf-8"))["epochs"])
    else:
        loop = make_loop(job, notify=notify)
        epoch = loop.plan.updates_per_epoch * estimate_cost(loop).seconds
        epochs = max(1, min(_EPOCHS, int(60 * minutes / epoch)))
        chosen.write_text(json.dumps({"epochs": epochs}) + "\n", encoding="utf-8")
    notify(f"Training for {epochs} {'epoch' if epochs == 1 else 'epochs'}; the limit is about {minutes:g} minutes")
    return replace(job, config=replace(config, train=replace(config.train, epochs=epochs)))


def _train(job: "Job") -> None:
    from restd.evaluate import ranked_validation
    from restd.train import train_retriever

    train_retriever(job, notify=notify, validate=ranked_validation(job))


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


def _report(board: "Scoreboard", count: int, out: Path) -> Path | None:
    """A page with table and picture; needs the extra `report`, and says so where it is missing."""
    from restd.analyses.scoreboards import scoreboard_result
    from restd.report.page import write_page

    result = scoreboard_result(board, queries=count, split="test")
    try:
        return write_page([result], out / REPORT, title=f"ResTD: {out.resolve().name}")
    except MissingExtraError as error:
        notify(f"No report: {error}")
        return None
