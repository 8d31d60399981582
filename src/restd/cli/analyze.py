"""`restd analyze` and `restd report`: what a study says beside its scores."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restd.cli.console import note, show, show_json, show_table, tell
from restd.errors import ConfigError, RestdError

if TYPE_CHECKING:
    from restd.study import Finding
    from restd.study.opened import Study

NAMES = {
    "learning": "losses and validations by epoch, and how much distillation weighed",
    "probes": "what frozen decoder states know of current and later levels",
    "slices": "scores by how often training names the answers, and by length",
    "disagreement": "gains by how much the positives' teachers differ",
    "variation": "how different teachers of one code and one entropy are",
    "transitions": "what teachers know of next items that stored codes do not say",
    "conflicts": "how often stored codes contradict the residual's preference",
    "correction": "sweep of the correction floor",
    "sensitivity": "sweeps of λ, τ and ρ",
    "overhead": "what an update costs",
    "cases": "two models side by side, where they differ most",
    "beam": "where beams lose positives, and the gap to exact scoring",
}


def analyze(
    name: Annotated[str, typer.Argument(help=f"{', '.join(NAMES)}; or all that need no training: all.")],
    study: Annotated[Path, typer.Option(help="The folder restd compare wrote.")],
    ours: Annotated[
        str, typer.Option(help="The objective that is looked at (slices, disagreement, beam, cases, sweeps).")
    ] = "restd",
    theirs: Annotated[str, typer.Option(help="What it is held against (slices, beam, cases).")] = "base",
    queries: Annotated[int, typer.Option(help="Queries to follow through the beam.")] = 200,
    count: Annotated[int, typer.Option(help="Cases to show.")] = 4,
    seeds: Annotated[str, typer.Option(help="Seeds of a sweep, separated by commas (the study's).")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Analyse a finished comparison; JSON, tables and figures go to STUDY/analyses, and into the next report."""
    from restd.report import ANALYSES, write_finding
    from restd.study import comparison_identity, read_comparison
    from restd.study.opened import Study

    held = Study.open(study)
    makers = _makers(held, ours=ours, theirs=theirs, queries=queries, count=count, seeds=seeds)
    if name not in (*makers, "all"):
        raise ConfigError(f"Analysis {name!r} is unknown; wanted one of {', '.join(makers)}, or all.")
    chosen = [name] if name != "all" else [held for held in makers if held not in ("correction", "sensitivity")]
    identity = comparison_identity(read_comparison(study))
    found = []
    for entry in chosen:
        tell(f"{entry}: {NAMES[entry]}")
        try:
            finding = replace(makers[entry](), of=identity)
        except RestdError as error:
            if name != "all":
                raise
            note(f"{entry} was left out: {error}")
            continue
        write_finding(finding, study / ANALYSES)
        found.append(finding)
        if not as_json:
            show_finding(finding)
    if as_json:
        show_json(found[0].to_dict() if name != "all" else [finding.to_dict() for finding in found])
    else:
        show(f"Written to {study / ANALYSES}; restd report {study} puts it on the page.")


def _makers(
    study: "Study", *, ours: str, theirs: str, queries: int, count: int, seeds: str
) -> "dict[str, Callable[[], Finding]]":
    from restd.cli.compare import read_seeds
    from restd.study import beams, probes, sweeps, teachers
    from restd.study.disagreement import disagreement
    from restd.study.learning import learning
    from restd.study.overhead import overhead
    from restd.study.slices import slices
    from restd.study.transitions import transitions

    distill = study.comparison.config.distill
    chosen = read_seeds(seeds) if seeds else None
    around = sweeps.sensitivity(0.1 if distill.weight is None else distill.weight)

    def swept(axes: dict[str, sweeps.Axis], name: str, title: str) -> "Finding":
        return sweeps.sweep(study, axes, name=name, title=title, objective=ours, seeds=chosen, tell=tell)

    return {
        "learning": lambda: learning(study),
        "probes": lambda: probes.probes(study),
        "slices": lambda: slices(study, ours=ours, theirs=theirs),
        "disagreement": lambda: disagreement(study, ours=ours),
        "variation": lambda: teachers.variation(study.index, distill),
        "transitions": lambda: transitions(study),
        "conflicts": lambda: teachers.conflicts(study.index, distill),
        "beam": lambda: beams.beam(study, queries=queries, objectives=(theirs, ours)),
        "cases": lambda: beams.cases(study, ours=ours, theirs=theirs, count=count),
        "overhead": lambda: overhead(study, tell=tell),
        "correction": lambda: swept(sweeps.CORRECTION, "correction", "Sensitivity to collision-aware correction"),
        "sensitivity": lambda: swept(around, "sensitivity", "Sensitivity to λ, τ and ρ"),
    }


def show_finding(finding: "Finding") -> None:
    """Print a finding."""
    for table in finding.tables:
        show_table(table.title, table.columns, table.rows)
        for sentence in table.notes:
            note(sentence)
    show(finding.says)


def report(
    study: Annotated[Path, typer.Argument(help="The folder restd compare wrote.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report (STUDY/report).")] = None,
    title: Annotated[str, typer.Option(help="What stands at its head.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the list of files as JSON.")] = False,
) -> None:
    """Make one self-contained HTML page of a study; Markdown, and every table and figure as files beside it."""
    from restd.report import stale_analyses, write_report

    folder = out or study / "report"
    written = write_report(study, folder, title=title)
    for name in stale_analyses(study):
        note(f"{name} was made of another comparison and is left out; run restd analyze {name} again")
    if as_json:
        show_json({"page": str(written[0]), "files": [str(path) for path in written]})
        return
    show_summary(study)
    show(f"Report: {written[0]} ({len(written) - 1:,} other files beside it)")


def show_summary(study: Path) -> None:
    """Print what a study gained, whatever it is: scores beside the baselines, and differences with their intervals."""
    from restd.study import comparison_finding, read_comparison

    finding = comparison_finding(read_comparison(study))
    for table in finding.tables:
        if table.name in ("overall", "gains"):
            show_table(table.title, table.columns, table.rows)
    show(finding.says)
