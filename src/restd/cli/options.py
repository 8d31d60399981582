"""Options that several commands share, so that they have the same name and help everywhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.search import SearchOptions

HEAD_WEIGHT = 0.4
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ColumnMap = Annotated[
    list[str] | None,
    typer.Option("--map", help="Name of a column in your table, as OURS=YOURS: id=asin (repeatable)."),
]
TextColumns = Annotated[
    str | None, typer.Option("--text", help="Columns to encode, in this order: title,brand. Default: all text columns.")
]
IndexFolder = Annotated[Path, typer.Option("--index", help="Path of the index folder.")]
DataFolder = Annotated[
    Path,
    typer.Option("--data", help="Folder with items and judgments or histories: made by restd data, or your own."),
]
Recipe = Annotated[
    str | None, typer.Option("--recipe", help="Name of a recipe inside the package, or path of your own .toml file.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, as SECTION.NAME=VALUE: train.epochs=20, distill.horizon=2 (repeatable)."),
]
Task = Annotated[str | None, typer.Option("--task", help="search or recommend. Default: what the backbone is for.")]
Backbone = Annotated[str | None, typer.Option("--backbone", help="Network to train (compact).")]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Passes over the training pairs.")]
Updates = Annotated[int | None, typer.Option("--updates", help="Optimiser steps, instead of --epochs.")]
ProbeEpochs = Annotated[
    int, typer.Option("--probe-epochs", help="Epochs of the short runs that compare learning rates, 1 to 5.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="Where to run: cpu, cuda, cuda:1 or mps. Default: an accelerator, if there is one."),
]
SearchDevice = Annotated[
    str | None, typer.Option("--device", help="Where the model runs: cpu, cuda, cuda:1 or mps. Default: cpu.")
]
Model = Annotated[
    Path, typer.Option("--model", help="Folder of a run (restd train), or one written by Retriever.save.")
]
OptionalIndex = Annotated[
    Path | None, typer.Option("--index", help="Path of the index folder. Default: the one the model was trained with.")
]
OptionalItems = Annotated[
    Path | None, typer.Option("--catalog", help="Table of the items. Default: the one the model was trained with.")
]
Hits = Annotated[int, typer.Option("-k", help="Number of results.")]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", help="Keep only items that match: category=Home, price<=50 (repeatable)."),
]
Deny = Annotated[list[str] | None, typer.Option("--deny", help="Id of an item to leave out (repeatable).")]
Allow = Annotated[
    list[str] | None, typer.Option("--allow", help="Id of an item to allow; all others are left out (repeatable).")
]
Explain = Annotated[
    str | None,
    typer.Option("--explain", help="Id of an item: also show, level by level, how the beam kept or lost it."),
]
HeadMode = Annotated[
    str | None,
    typer.Option(
        "--head-mode",
        help="Use the heads that a ResTD run saved: rerank, fuse, look-ahead or one-shot (not in the paper).",
    ),
]
HeadWeight = Annotated[float, typer.Option("--head-weight", help="Weight of the heads' scores, with --head-mode.")]
ScoreNorm = Annotated[
    str,
    typer.Option(
        "--score-norm", help="What code probabilities sum to one over: full_vocab, level_codes, trie_children."
    ),
]
CategoryWidth = Annotated[
    int, typer.Option("--category-width", help="Categories that a CaLIR model searches; 0 for the whole catalogue.")
]
Split = Annotated[str, typer.Option("--split", help="Queries to evaluate on: test, valid or train.")]
Measures = Annotated[
    str,
    typer.Option("--measures", help="Metrics, separated by commas: Recall@10,NDCG@10,MRR@100. Default: the paper's."),
]
Graded = Annotated[bool, typer.Option("--graded", help="Use grades as gains, instead of 1 for every positive.")]
Beam = Annotated[
    int | None, typer.Option("--beam", help="Prefixes kept at each level. Default: 100 to search, 20 to recommend.")
]
Seen = Annotated[
    bool,
    typer.Option("--seen/--unseen", help="Whether items of the history may be recommended again (the paper: yes)."),
]


def search_options(
    *,
    head_mode: str | None = None,
    head_weight: float = HEAD_WEIGHT,
    where: list[str] | None = None,
    deny: list[str] | None = None,
    **values: Any,
) -> "SearchOptions":
    """Turn the options of a command into `SearchOptions`; those that a command does not have keep their defaults."""
    from restd.search import HEAD_MODES, HeadUse, SearchOptions

    if head_mode is not None and head_mode not in HEAD_MODES:
        raise ConfigError(f"--head-mode must be one of {', '.join(HEAD_MODES)}; got {head_mode!r}.")
    heads = None if head_mode is None else HeadUse(head_mode, head_weight)
    return SearchOptions.of(heads=heads, where=where or (), deny=deny or (), **values)


def read_numbers(text: str, option: str) -> tuple[float, ...]:
    """Read numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"{option} must be numbers separated by commas, such as 0.01,0.001; got {text!r}.") from error


def read_seeds(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(
            f"--seeds must be whole numbers separated by commas, such as 42,2027,2028; got {text!r}."
        ) from error
