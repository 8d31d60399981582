"""`restd compare --systems`: whole systems on one data set under one budget, and the paper's main table of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from restd.cli.analyze import show_result
from restd.cli.console import notify, show, show_json
from restd.cli.device import use_device
from restd.cli.evaluate import read_measures
from restd.cli.options import read_seeds
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.search import SearchOptions


def refuse_with_systems(options: Mapping[str, Any]) -> None:
    """Refuse options that a system decides itself."""
    for name, value in options.items():
        if value:
            raise ConfigError(
                f"{name} cannot be combined with --systems: every system has its own index, backbone and training, "
                "under one --budget, and is judged as a generator alone. Leave it out."
            )


def compare_systems(
    systems: str,
    data: Path,
    out: Path,
    *,
    budget: str,
    settings: list[str],
    lengths: Mapping[str, int | None],
    objectives: str,
    seeds: str,
    baselines: str,
    split: str,
    measures: str,
    graded: bool,
    decoding: "SearchOptions",
    jobs: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Compare systems as the options of `restd compare` say, and print the tables."""
    from restd.analyses import systems_result
    from restd.experiments import ALL, BASE, SystemComparison, parse_objectives, plan_systems
    from restd.experiments import compare_systems as run_study
    from restd.systems import SYSTEMS, read_budget

    device = use_device(device)
    shared = read_budget(budget).with_settings(settings).with_lengths(**lengths)
    names, more = _names(systems), _names(baselines)
    if not names:
        raise ConfigError(f"--systems names none. Known: {', '.join(SYSTEMS)}; all is every one of them.")
    plans = plan_systems(
        names, shared, objectives=parse_objectives(objectives), seeds=read_seeds(seeds), baselines=more
    )
    comparison = SystemComparison(
        data=data,
        out=out,
        budget=shared,
        plans=plans,
        split=split,
        measures=read_measures(measures, "search"),
        graded=graded,
        decoding=decoding,
        device=device,
    )
    laid_over = ", ".join(name for name in parse_objectives(objectives) if name != BASE)
    for name, resolved in comparison.resolved.items():
        if laid_over and resolved.spec.generates and not resolved.takes_restd:
            notify(f"{laid_over}: not laid over {name}, as {resolved.refusal}")
    everything = [name for name in SYSTEMS if name not in names] if ALL in names else []
    summary = run_study(comparison, everything=everything, workers=jobs, notify=notify)
    if as_json:
        show_json(summary)
    else:
        show_result(systems_result(summary))
        show(f"{out}/comparison.json has every number; restd report {out} makes a page of it.")
    if failed := summary["failed"]:
        raise ConfigError(
            f"{', '.join(failed)} failed and {'is' if len(failed) == 1 else 'are'} not in the table: "
            f"{' '.join(failed.values())} Repeat the command to try again."
        )


def _names(text: str) -> list[str]:
    return list(filter(None, (name.strip() for name in text.split(","))))
