"""`restd compare`: objectives over paired seeds on one index, or whole systems; and the paper's tables of them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from restd.cli.analyze import show_result
from restd.cli.compare_systems import compare_systems, refuse_with_systems
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
    data: DataFolder,
    out: Annotated[
        Path, typer.Option(help="Folder of the study; repeat the command to continue an interrupted study.")
    ],
    index: Annotated[
        Path | None,
        typer.Option(help="Folder of the index, as restd index wrote it; not with --systems, which make their own."),
    ] = None,
    systems: Annotated[
        str,
        typer.Option(
            help="Compare whole systems, separated by commas, or all: each with an index of its own, under one "
            "--budget."
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            help="What systems share: tiny, small, or the path of your own .toml file. Default, with --systems: small."
        ),
    ] = "",
    init: Annotated[
        Path | None, typer.Option(help="Run that all others continue from. Default: train each from new weights.")
    ] = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            help="Objectives, separated by commas, or a set of them: matched, controls, beyond, all. base is always "
            "in. Default: base,rbd,restd; base,restd with --systems, laid over every system that has residuals."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Random seeds, separated by commas. Every objective is trained with each of them. Default: "
            "42,2027,2028; 42 with --systems."
        ),
    ] = None,
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

    With --systems, compare whole systems instead: index, training and evaluation of each on one data set.
    """
    if systems:
        refuse_with_systems(
            {
                "--index": index, "--init": init, "--recipe": recipe, "--backbone": backbone, "--task": task,
                "--learning-rates": learning_rates, "--mode": mode != "generative", "--head-mode": head_mode,
                "--where": where, "--router": router != "own",
            }
        )  # fmt: skip
        compare_systems(
            systems,
            data,
            out,
            budget=budget or "small",
            settings=settings or [],
            lengths={"epochs": epochs, "updates": updates},
            objectives="base,restd" if objectives is None else objectives,
            seeds="42" if seeds is None else seeds,
            baselines=baselines,
            split=split,
            measures=measures,
            graded=graded,
            decoding=search_options(beam=beam, score_norm=score_norm, category_width=category_width, seen=seen),
            jobs=jobs,
            device=device,
            as_json=as_json,
        )
        return
    if index is None:
        raise ConfigError("--index is missing. Pass the folder of an index, or compare whole systems with --systems.")
    if budget:
        raise ConfigError("--budget belongs to --systems; objectives are compared with --recipe and --set.")
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
            objectives=parse_objectives("base,rbd,restd" if objectives is None else objectives),
            seeds=read_seeds("42,2027,2028" if seeds is None else seeds),
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
