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
    str | None,
    typer.Option(
        "--text", help="Columns to encode, separated by commas, in this order: title,brand. Default: all text columns."
    ),
]
IndexFolder = Annotated[Path, typer.Option("--index", help="Folder of the index, as restd index wrote it.")]
DataFolder = Annotated[
    Path,
    typer.Option(
        "--data",
        help="Folder with a table of items and one of judgments or histories: made by restd data, or your own.",
    ),
]
IndexRecipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="File of settings: product-index, paper-index, recommendation-index, or the path of your own .toml file.",
    ),
]
TrainRecipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="File of settings: product, few-pairs, shop, movies, dsi, dsi-qg, tiger-small, paper-esci-us, "
        "paper-esci-es or paper-esci-jp, or the path of your own .toml file.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any setting, as SECTION.NAME=VALUE: train.lr=0.001, distill.horizon=2 (repeatable). It overrides the "
        "recipe. Sections: train, distill, category, and one per backbone.",
    ),
]
RankerSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting of a baseline that is trained, as SECTION.NAME=VALUE: dpr.epochs=3 (repeatable). Sections: "
        "dpr, laser.",
    ),
]
Task = Annotated[str | None, typer.Option("--task", help="search or recommend. Default: the task of the backbone.")]
Backbone = Annotated[
    str | None, typer.Option("--backbone", help="Network to train. Default: compact, or tiger with --task recommend.")
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", help="Passes over the training pairs. Default: the backbone's.")
]
Updates = Annotated[
    int | None, typer.Option("--updates", help="Optimiser steps, instead of --epochs. Default: the backbone's.")
]
ProbeEpochs = Annotated[
    int, typer.Option("--probe-epochs", help="Epochs of the short runs of --learning-rates, 1 to 5.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="Where to run: cpu, cuda, cuda:1 or mps. Default: an accelerator, if there is one."),
]
SearchDevice = Annotated[
    str | None, typer.Option("--device", help="Where the model runs: cpu, cuda, cuda:1 or mps. Default: cpu.")
]
Model = Annotated[
    Path, typer.Option("--model", help="Folder of a run (restd train), or a bundle (restd quickstart, Retriever.save).")
]
OptionalIndex = Annotated[
    Path | None, typer.Option("--index", help="Folder of the index. Default: the one the model was trained with.")
]
OptionalItems = Annotated[
    Path | None,
    typer.Option("--catalog", help="Table of the items, or a data folder. Default: that of the model's training."),
]
Hits = Annotated[int, typer.Option("-k", help="Number of results.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="Keep only items that match a condition: category=Home, price<=50 (repeatable; all must hold). "
        "Operators: =, !=, <, <=, >, >= and ~ (contains).",
    ),
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
        help="Use the horizon heads that a ResTD run saved: rerank, fuse, look-ahead or one-shot (not in the paper). "
        "Default: not used.",
    ),
]
HeadWeight = Annotated[float, typer.Option("--head-weight", help="Weight of the heads' scores, with --head-mode.")]
ScoreNorm = Annotated[
    str,
    typer.Option(
        "--score-norm",
        help="Codes over which probabilities sum to one: full_vocab (all that the model knows), level_codes (those of "
        "the level) or trie_children (those that can follow).",
    ),
]
CategoryWidth = Annotated[
    int,
    typer.Option(
        "--category-width", help="How many categories a CaLIR model searches; 0 searches the whole catalogue."
    ),
]
Split = Annotated[str, typer.Option("--split", help="Queries to evaluate on: test, valid or train.")]
Measures = Annotated[
    str,
    typer.Option("--measures", help="Metrics, separated by commas: Recall@10,NDCG@10,MRR@100. Default: the paper's."),
]
Graded = Annotated[bool, typer.Option("--graded", help="Use grades as gains in NDCG, instead of 1 for every positive.")]
Beam = Annotated[
    int | None,
    typer.Option(
        "--beam",
        help="Beam width: prefixes kept at each level. Default: 100 to search (40 in hybrid mode), 20 to recommend.",
    ),
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


def split_settings(settings: list[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Tell the settings of a comparison's cells from those of its baselines, which are read into sections."""
    from restd.config import parse_settings
    from restd.rankers import ranker_sections

    sections = ranker_sections()
    own = [setting for setting in settings if setting.partition(".")[0].strip() in sections]
    return [setting for setting in settings if setting not in own], parse_settings(own)


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
