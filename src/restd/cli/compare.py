"""`restd compare`: objectives over paired seeds, and the paper's tables of them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from restd.cli.analyze import show_result
from restd.cli.console import notify, show, show_json
from restd.cli.device import use_device
from restd.cli.evaluate import read_measures
from restd.cli.options import (
    HEAD_WEIGHT,
    Backbone,
    Beam,
    CategoryWidth,
    DataFolder,
    Device,
    Epochs,
    Graded,
    HeadMode,
    HeadWeight,
    IndexFolder,
    Json,
    Measures,
    ProbeEpochs,
    ScoreNorm,
    Seen,
    Settings,
    Split,
    Task,
    TrainRecipe,
    Updates,
    Where,
    read_numbers,
    read_seeds,
    search_options,
    split_settings,
)
from restd.cli.train import configure
from restd.errors import ConfigError


def compare(
    index: IndexFolder,
    data: DataFolder,
    out: Annotated[
        Path, typer.Option(help="Folder of the study; repeat the command to continue an interrupted study.")
    ],
    init: Annotated[
        Path | None, typer.Option(help="Run that all others continue from. Default: train each from new weights.")
    ] = None,
    objectives: Annotated[
        str,
        typer.Option(
            help="Objectives, separated by commas, or a set of them: matched, controls, beyond, all. base is always in."
        ),
    ] = "base,rbd,restd",
    seeds: Annotated[
        str, typer.Option(help="Random seeds, separated by commas. Every objective is trained with each of them.")
    ] = "42,2027,2028",
    baselines: Annotated[
        str,
        typer.Option(
            help="Baselines to evaluate too, separated by commas; dense:ENCODER is dense search by another encoder."
        ),
    ] = "",
    split: Split = "test",
    measures: Measures = "",
    graded: Graded = False,
    beam: Beam = None,
    seen: Seen = True,
    score_norm: ScoreNorm = "full_vocab",
    category_width: CategoryWidth = 3,
    mode: Annotated[
        str,
        typer.Option(help="generative (the paper's), or hybrid: every cell fits its own on the validation queries."),
    ] = "generative",
    head_mode: HeadMode = None,
    head_weight: HeadWeight = HEAD_WEIGHT,
    where: Where = None,
    router: Annotated[
        str,
        typer.Option(
            help="Which model chooses the categories that a CaLIR model searches: own, or start (that of --init)."
        ),
    ] = "own",
    task: Task = None,
    backbone: Backbone = None,
    recipe: TrainRecipe = None,
    settings: Settings = None,
    epochs: Epochs = None,
    updates: Updates = None,
    learning_rates: Annotated[
        str,
        typer.Option(
            help="Learning rates to try in short runs, separated by commas; validation picks one per objective."
        ),
    ] = "",
    probe_epochs: ProbeEpochs = 2,
    jobs: Annotated[int, typer.Option(help="Number of runs trained in parallel; they share the cores equally.")] = 1,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Compare training objectives: train each with every seed, evaluate all, and print tables with significance tests.

    Runs of the same seed start from the same weights and see the same batches and the same dropout.
    """
    from restd.analyses import comparison_result
    from restd.experiments import Comparison, parse_objectives
    from restd.experiments import compare as run_study
    from restd.train import Job

    device = use_device(device)
    lengths: dict[str, Any] = {"epochs": epochs, "updates": updates}
    settings, baseline_settings = split_settings(settings or [])
    model, config = configure(recipe, settings, task=task, backbone=backbone, continued_from=init, options=lengths)
    doing = Job(index, data, out, model, config, init).task
    if router not in ("own", "start"):
        raise ConfigError(f"--router must be own or start, got {router!r}.")
    summary = run_study(
        Comparison(
            index=index,
            data=data,
            out=out,
            model=model,
            config=config,
            init=init,
            objectives=parse_objectives(objectives),
            seeds=read_seeds(seeds),
            split=split,
            measures=read_measures(measures, doing),
            graded=graded,
            decoding=search_options(
                beam=beam,
                score_norm=score_norm,
                category_width=category_width,
                seen=seen,
                mode=mode,
                head_mode=head_mode,
                head_weight=head_weight,
                where=where,
            ),
            router=router,
            baselines=tuple(filter(None, (name.strip() for name in baselines.split(",")))),
            baseline_settings=baseline_settings,
            rates=read_numbers(learning_rates, "--learning-rates"),
            probe_epochs=probe_epochs,
            device=device,
        ),
        workers=jobs,
        notify=notify,
    )
    if as_json:
        show_json(summary)
        return
    show_result(comparison_result(summary))
    show(f"{out}/comparison.json has every number; restd report {out} makes a page of it.")
