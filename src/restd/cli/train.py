"""`restd train`: from an index and judgments, or histories, to a model that searches or recommends."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import notify, show, show_json
from restd.cli.device import use_device
from restd.cli.fit import fit_retriever, show_fusion
from restd.cli.options import (
    Backbone,
    DataFolder,
    Device,
    Epochs,
    IndexFolder,
    Json,
    ProbeEpochs,
    Settings,
    Task,
    TrainRecipe,
    Updates,
    read_numbers,
)
from restd.errors import ConfigError, RestdError

if TYPE_CHECKING:
    from restd.models import ModelConfig
    from restd.search import Fusion
    from restd.train import Job, RunConfig

_SECTIONS = ("model", "train", "base", "continuation", "distill", "category", "rank")
"""Besides one section per backbone; [base] and [continuation] are [train] for runs without and with --init."""


@dataclass(frozen=True, slots=True)
class _ModelSection:
    """The section [model]."""

    backbone: str = "compact"
    objective: str = "base"


def train(
    index: IndexFolder,
    data: DataFolder,
    out: Annotated[Path, typer.Option(help="Folder of the run; repeat the command to continue an interrupted run.")],
    task: Task = None,
    backbone: Backbone = None,
    objective: Annotated[str | None, typer.Option(help="What is added to the generation loss. Default: base.")] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="Run to continue from, as in the paper's continuation setting. Default: new weights."),
    ] = None,
    recipe: TrainRecipe = None,
    settings: Settings = None,
    epochs: Epochs = None,
    updates: Updates = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of weights, batches and dropout. Default: 42.")] = None,
    learning_rates: Annotated[
        str,
        typer.Option(
            help="Learning rates to try in short runs, separated by commas; validation picks one. Default: none, the "
            "backbone's own is used."
        ),
    ] = "",
    probe_epochs: ProbeEpochs = 2,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps the token states of a frozen encoder between runs. Default: cache/ in the run's "
            "folder, or in that of --init."
        ),
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit/--no-fit", help="Fit a hybrid search on validation queries when training is done.")
    ] = True,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train a generative model that searches or recommends, from scratch or from a trained one.

    --objective restd adds residual trajectory distillation.
    """
    from dataclasses import replace

    from restd.evaluate import beam_negatives, ranked_validation
    from restd.experiments.learning_rates import choose_rate
    from restd.train import Job, train_retriever

    device = use_device(device)
    model, config = configure(
        recipe,
        settings or [],
        task=task,
        backbone=backbone,
        objective=objective,
        continued_from=init,
        options={"epochs": epochs, "updates": updates, "seed": seed},
    )
    job = Job(index, data, out, model, config, init, cache, device)
    if learning_rates:
        rates = read_numbers(learning_rates, "--learning-rates")
        best = choose_rate(job, rates, out, epochs=probe_epochs, notify=notify)
        job = replace(job, config=replace(config, train=replace(config.train, lr=best)))
    validate, refresh = ranked_validation(job), beam_negatives(job)
    trained = train_retriever(job, notify=notify, validate=validate, refresh=refresh)
    if not leave_group():
        return
    fusion = _fitted(job) if fit and job.task == "search" else None
    if as_json:
        hybrid = {} if fusion is None else {"hybrid": dict(fusion.weights)}
        show_json({"model": str(trained.folder), **trained.summary, **hybrid})
        return
    show(f"Model: {trained.folder} (objective {config.objective}, {trained.summary['updates']:,} updates)")
    for name, value in trained.summary.items():
        if name.startswith("category_recall"):
            show(f"{name}: {value:.1f} % of the positives of validation queries are in the categories searched")
    if fusion is not None:
        show_fusion(fusion)


def _fitted(job: "Job") -> "Fusion | None":
    """Weights of the model's hybrid search; None, with the reason, where it cannot be fitted."""
    from restd.search import Fusion, Retriever
    from restd.search.fusion import FOLDER

    if (job.out / FOLDER).is_dir():
        return Fusion.load(job.out / FOLDER)
    try:
        return fit_retriever(Retriever.load(job.out, job.index, job.data))
    except RestdError as error:
        notify(f"The hybrid search was not fitted: {error}")
        return None


def leave_group() -> bool:
    """Leave the group of processes that torchrun started, if any; returns whether this process prints the result."""
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
    options: dict[str, Any] | None = None,
) -> "tuple[ModelConfig, RunConfig]":
    """Combine the backbone's defaults, the recipe, `--set` and the command's options; the last wins."""
    from restd.config import merge, parse_settings, read_recipe, read_section
    from restd.models import (
        BACKBONES,
        CategorySettings,
        ModelConfig,
        backbones_for,
        default_backbone,
        kind_of,
        read_description,
    )
    from restd.train import DistillSettings, RankSettings, RunConfig, TrainConfig, default_training

    if task not in (None, "search", "recommend"):
        raise ConfigError(f"--task must be search or recommend, got {task!r}.")
    if task == "recommend" and backbone is None:
        backbone = default_backbone("recommend")
    train_options = {name: value for name, value in (options or {}).items() if value is not None}
    model_options = {"backbone": backbone, "objective": objective}
    model_options = {name: value for name, value in model_options.items() if value is not None}
    sections = merge(
        read_recipe(recipe) if recipe else {},
        parse_settings(settings),
        {"train": train_options, "model": model_options},
    )
    for section in sections:
        if section not in (known := (*_SECTIONS, *BACKBONES)):
            raise ConfigError(f"Unknown section [{section}] for restd train. Known: {', '.join(known)}.")
    model_section = read_section(_ModelSection, sections.get("model", {}), section="model")
    model = ModelConfig.read(model_section.backbone, sections)
    saved = None if continued_from is None else read_description(continued_from)
    own = model.task if saved is None else kind_of(saved).task
    if task is not None and task != own:
        subject = f"The backbone {model.backbone}" if saved is None else f"The model in {continued_from}"
        others = ", ".join(backbones_for("recommend" if task == "recommend" else "search"))
        raise ConfigError(f"{subject} is for {own}, not for {task}. Backbones for {task}: {others}.")
    mode = "base" if continued_from is None else "continuation"
    train_values = {**sections.get(mode, {}), **sections.get("train", {})}
    body = model.body if saved is None else saved["body"]
    lengths = {length: 0 for length in ("epochs", "updates") if length not in train_values}
    defaults = default_training(body, continued=continued_from is not None)
    if "epochs" in train_options or "updates" in train_options:  # replaces whichever of the two the recipe has
        lengths = {length: 0 for length in ("epochs", "updates") if length not in train_options}
        train_values = {name: value for name, value in train_values.items() if name not in lengths}
    train_values = {**defaults, **(lengths if len(lengths) < 2 else {}), **train_values}
    config = RunConfig(
        objective=model_section.objective,
        train=read_section(TrainConfig, train_values, section="train"),
        distill=read_section(DistillSettings, sections.get("distill", {}), section="distill"),
        category=read_section(CategorySettings, sections.get("category", {}), section="category"),
        rank=read_section(RankSettings, sections.get("rank", {}), section="rank"),
    )
    return model, config
