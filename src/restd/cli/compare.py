"""`restd compare`: objectives over paired seeds, and the paper's tables of them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from restd.cli.analyze import show_finding
from restd.cli.console import show, show_json, tell
from restd.cli.evaluate import WIDTHS, Measures, Seen, Width, read_measures
from restd.cli.train import configure, read_numbers
from restd.errors import ConfigError


def compare(
    index: Annotated[Path, typer.Option(help="The folder restd index made.")],
    data: Annotated[Path, typer.Option(help="Judgments or histories, and items.")],
    out: Annotated[Path, typer.Option(help="Folder of the study; the same command again goes on from there.")],
    init: Annotated[
        Path | None, typer.Option(help="The checkpoint all go on from; without it, all are trained from the start.")
    ] = None,
    objectives: Annotated[
        str, typer.Option(help="matched, controls, beyond, all, or names: base,rbd,restd,shuffled.")
    ] = "base,rbd,restd",
    seeds: Annotated[str, typer.Option(help="Paired seeds, separated by commas.")] = "42,2027,2028",
    baselines: Annotated[
        str,
        typer.Option(
            help="Beside them: bm25,dense,hybrid,popularity; "
            "to recommend: sasrec,sasrec-bce,popularity,co-occurrence,neighbours."
        ),
    ] = "",
    split: Annotated[str, typer.Option(help="Whose queries are asked: test, valid or train.")] = "test",
    measures: Measures = "",
    graded: Annotated[bool, typer.Option("--graded", help="A positive gains its grade instead of 1.")] = False,
    width: Width = None,
    seen: Seen = True,
    category_width: Annotated[int, typer.Option(help="Categories a CaLIR model searches; 0 for all.")] = 3,
    router: Annotated[
        str, typer.Option(help="Who chooses a CaLIR model's categories: own, or start (the checkpoint of --init).")
    ] = "own",
    task: Annotated[str | None, typer.Option(help="search or recommend; by the backbone.")] = None,
    backbone: Annotated[str | None, typer.Option(help="compact, t5, calir or tiger, where there is no --init.")] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe's name or your own .toml file.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of restd train, for all cells (repeatable).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training pairs.")] = None,
    updates: Annotated[int | None, typer.Option(help="Optimiser steps, instead of epochs.")] = None,
    rates: Annotated[
        str, typer.Option(help="Learning rates each objective chooses among by validation: 0.01,0.005,0.001,0.0005.")
    ] = "",
    probe_epochs: Annotated[int, typer.Option(help="Length of the runs that choose a rate, 1 to 5.")] = 2,
    jobs: Annotated[int, typer.Option(help="Runs trained side by side, each with its share of the cores.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Train objectives over paired seeds, judge them all, and print the paper's tables with their significance."""
    from restd.config import read_section
    from restd.study import Comparison, Decoding, comparison_finding, objectives_named
    from restd.study import compare as compared
    from restd.train import Job

    given: dict[str, Any] = {"epochs": epochs, "updates": updates}
    model, config = configure(recipe, settings or [], task=task, backbone=backbone, continued_from=init, given=given)
    doing = Job(index, data, out, model, config, init).task
    options = {
        "width": WIDTHS[doing] if width is None else width,
        "category_width": category_width,
        "router": router,
        "seen": seen,
    }
    held = compared(
        Comparison(
            index=index,
            data=data,
            out=out,
            model=model,
            config=config,
            init=init,
            objectives=objectives_named(objectives),
            seeds=read_seeds(seeds),
            split=split,
            measures=read_measures(measures, doing),
            graded=graded,
            decoding=read_section(Decoding, options, section="decoding"),
            baselines=tuple(filter(None, (name.strip() for name in baselines.split(",")))),
            rates=read_numbers(rates, "--rates"),
            probe_epochs=probe_epochs,
        ),
        at_once=jobs,
        tell=tell,
    )
    if as_json:
        show_json(held)
        return
    finding = comparison_finding(held)
    show_finding(finding)
    show(f"{out}/comparison.json has every number; restd report {out} makes a page of it.")


def read_seeds(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"--seeds {text!r} is no list of whole numbers; wanted 42,2027,2028 or such.") from error
