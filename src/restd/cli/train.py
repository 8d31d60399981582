"""`restd train`: from an index and judgments, or histories, to a model that searches or recommends."""

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
    from restd.config import merge, parse_settings, read_recipe
    from restd.models import default_backbone
    from restd.train.configure import configure_run

    if task not in (None, "search", "recommend"):
        raise ConfigError(f"--task must be search or recommend, got {task!r}.")
    if task == "recommend" and backbone is None:
        backbone = default_backbone("recommend")
    model_options = {"backbone": backbone, "objective": objective}
    sections = merge(
        read_recipe(recipe) if recipe else {},
        parse_settings(settings),
        {"model": {name: value for name, value in model_options.items() if value is not None}},
    )
    train_options = {name: value for name, value in (options or {}).items() if value is not None}
    return configure_run(sections, options=train_options, task=task, continued_from=continued_from)
