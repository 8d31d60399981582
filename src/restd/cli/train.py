"""`restd train`: from an index and judgments, or histories, to a model that searches or recommends."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import show, show_json, tell
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.models import ModelConfig
    from restd.train import RunConfig

_SECTIONS = ("model", "compact", "t5", "calir", "tiger", "train", "base", "continuation", "distill", "category")
"""[base] and [continuation] are [train] for runs without and with --init."""


def train(
    index: Annotated[Path, typer.Option(help="The folder restd index made.")],
    data: Annotated[
        Path, typer.Option(help="Judgments or histories, and items: a folder of restd data, or your own tables.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run; the same command again goes on from there.")],
    task: Annotated[
        str | None, typer.Option(help="search (words in) or recommend (what a user took in); by the backbone.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(help="compact (frozen sentence encoder, small decoder), t5 (T5, mT5), calir; tiger recommends."),
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="base, rbd, restd, restd-output, or a control; docs/training.md lists them.")
    ] = None,
    init: Annotated[
        Path | None, typer.Option(help="Go on from this run's model, as the paper's continuation does.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe's name or your own .toml file.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: train.epochs=20, distill.horizon=2 (repeatable).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training pairs.")] = None,
    updates: Annotated[int | None, typer.Option(help="Optimiser steps, instead of epochs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, batches and dropout.")] = None,
    rates: Annotated[
        str, typer.Option(help="Learning rates to choose among by validation: 0.01,0.005,0.001,0.0005.")
    ] = "",
    probe_epochs: Annotated[int, typer.Option(help="Length of the runs that choose a rate, 1 to 5.")] = 2,
    cache: Annotated[Path | None, typer.Option(help="Where states of a frozen encoder are kept between runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Train a generative model that searches or recommends: from scratch or on from a trained one, distilled or not."""
    from dataclasses import replace

    from restd.evaluate import ranked_validation
    from restd.study.rates import choose_rate
    from restd.train import Job, train_retriever

    model, config = configure(
        recipe,
        settings or [],
        task=task,
        backbone=backbone,
        objective=objective,
        continued_from=init,
        given={"epochs": epochs, "updates": updates, "seed": seed},
    )
    job = Job(index, data, out, model, config, init, cache)
    if rates:
        best = choose_rate(job, read_numbers(rates, "--rates"), out, epochs=probe_epochs, tell=tell)
        job = replace(job, config=replace(config, train=replace(config.train, lr=best)))
    done = train_retriever(job, tell=tell, validate=ranked_validation(job))
    if not leave_group():
        return
    if as_json:
        show_json({"model": str(done.folder), **done.summary})
        return
    show(f"Model: {done.folder} (objective {config.objective}, {done.summary['updates']:,} updates)")
    for name, value in done.summary.items():
        if name.startswith("category_recall"):
            show(f"Categories a query is routed to hold {value:.1f} % of its positives ({name}, validation queries)")


def read_numbers(text: str, option: str) -> tuple[float, ...]:
    """Read numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is no list of numbers; wanted 0.01,0.001 or such.") from error


def leave_group() -> bool:
    """Leave the group of processes torchrun started, if any; whether this is the one that speaks for all."""
    import torch.distributed as group

    if not group.is_initialized():
        return True
    first = group.get_rank() == 0
    group.destroy_process_group()
    return first


def configure(
    recipe: str | None,
    settings: list[str],
    *,
    task: str | None = None,
    backbone: str | None = None,
    objective: str | None = None,
    continued_from: Path | None = None,
    given: dict[str, Any] | None = None,
) -> "tuple[ModelConfig, RunConfig]":
    """Lay defaults of the backbone, the recipe, `--set` and options over one another, the last winning."""
    from restd.config import merge, parse_settings, read_recipe, read_section
    from restd.models import CalirConfig, CompactConfig, ModelConfig, T5Config, TigerConfig, task_of
    from restd.train import CategorySettings, DistillSettings, RunConfig, TrainConfig, default_training

    if task not in (None, "search", "recommend"):
        raise ConfigError(f"--task {task!r} is unknown; wanted search or recommend.")
    if task == "recommend" and backbone is None:
        backbone = "tiger"
    options = {name: value for name, value in (given or {}).items() if value is not None}
    named = {name: value for name, value in {"backbone": backbone, "objective": objective}.items() if value is not None}
    sections = merge(
        read_recipe(recipe) if recipe else {}, parse_settings(settings), {"train": options, "model": named}
    )
    for section in sections:
        if section not in _SECTIONS:
            raise ConfigError(f"Section [{section}] means nothing to restd train; it has: {', '.join(_SECTIONS)}.")
    wanted = {**sections.get("model", {})}
    name = wanted.pop("objective", "base")
    parts = {"compact": CompactConfig, "t5": T5Config, "calir": CalirConfig, "tiger": TigerConfig}
    nested = {part: read_section(kind, sections.get(part, {}), section=part) for part, kind in parts.items()}
    model = read_section(ModelConfig, {**wanted, **nested}, section="model")
    own = model.task if continued_from is None else task_of(_body_of(continued_from))
    if task not in (None, own):
        what = f"The backbone {model.backbone}" if continued_from is None else f"The model in {continued_from}"
        raise ConfigError(f"{what} is for {own}, not for {task}; tiger recommends.")
    mode = "base" if continued_from is None else "continuation"
    chosen = {**sections.get(mode, {}), **sections.get("train", {})}
    body = _body_of(continued_from) if continued_from is not None else model.body
    lengths = {length: 0 for length in ("epochs", "updates") if length not in chosen}
    defaults = default_training(body, continued=continued_from is not None)
    if "epochs" in options or "updates" in options:  # an option replaces whichever of the two a recipe has
        lengths = {length: 0 for length in ("epochs", "updates") if length not in options}
        chosen = {name: value for name, value in chosen.items() if name not in lengths}
    values = {**defaults, **(lengths if len(lengths) < 2 else {}), **chosen}
    config = RunConfig(
        objective=name,
        train=read_section(TrainConfig, values, section="train"),
        distill=read_section(DistillSettings, sections.get("distill", {}), section="distill"),
        category=read_section(CategorySettings, sections.get("category", {}), section="category"),
    )
    return model, config


def _body_of(folder: Path) -> str:
    """Which network a trained model is, without loading it."""
    from restd.artifacts import read_manifest
    from restd.models.store import model_folder

    return read_manifest(model_folder(folder)).settings["backbone"]["body"]
