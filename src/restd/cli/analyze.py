"""`restd analyze` and `restd report`: what a study says beside its scores."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restd.cli.command import described, warn_deprecated
from restd.cli.console import note, notify, show, show_json, show_table
from restd.cli.device import use_device
from restd.cli.options import Json, SearchDevice, read_seeds
from restd.errors import ConfigError, RestdError

if TYPE_CHECKING:
    from restd.analyses import AnalysisResult
    from restd.experiments import Study
    from restd.search import Retriever

ANALYSES = {
    "learning": "losses and validation scores by epoch, and the share of distillation in the loss",
    "probes": "what frozen decoder states know about current and later levels",
    "slices": "scores by how often training names the answers, and by length of the query or history",
    "disagreement": "gains by how much the positives' teachers differ",
    "variation": "how much teachers that share a code and an entropy differ",
    "transitions": "what teachers know about next items that stored codes do not say",
    "conflicts": "how often stored codes contradict the residual's preference",
    "correction": "sweep of the correction floor (trains models)",
    "sensitivity": "sweeps of λ (weight), τ (temperature) and ρ (discount) (trains models)",
    "overhead": "how long a training update takes with each kind of distillation",
    "cases": "queries on which two models differ most, side by side",
    "beam": "at which level the beam loses positives, and the gap to exact scoring",
    "parts": "the hybrid search of every cell beside its parts and without each of them; also of a single run",
    "cold-start": "how well searches find items that are added after training (--new); also of a single run",
}
_TRAINING = ("correction", "sensitivity")
"""Analyses that train models, and are not part of `all`."""

_OF_RUNS = ("parts", "cold-start")
"""Analyses that take the folder of a single run, too."""
_WITH_NEW = "cold-start"
"""The analysis that needs --new, and is not part of `all`."""


def analyze(
    name: Annotated[
        str, typer.Argument(help="Name of an analysis from the list above, or all: every one that trains no model.")
    ],
    study: Annotated[
        Path | None,
        typer.Argument(
            help="Folder written by restd compare; for parts and cold-start also one of restd train or "
            "restd quickstart.",
            show_default=False,
        ),
    ] = None,
    study_option: Annotated[Path | None, typer.Option("--study", hidden=True)] = None,
    ours: Annotated[
        str,
        typer.Option(help="Objective to analyse (slices, disagreement, beam, cases, correction, sensitivity)."),
    ] = "restd",
    theirs: Annotated[str, typer.Option(help="Objective to compare it with (slices, beam, cases).")] = "base",
    queries: Annotated[int, typer.Option(help="Number of queries to follow through the beam (beam).")] = 200,
    count: Annotated[int, typer.Option(help="Number of cases to show (cases).")] = 4,
    seeds: Annotated[
        str,
        typer.Option(
            help="Random seeds of a sweep, separated by commas (correction, sensitivity). Default: the study's."
        ),
    ] = "",
    new: Annotated[
        Path | None, typer.Option(help="Folder of new items and their judgments: OUT/new of restd data hold-out.")
    ] = None,
    device: SearchDevice = None,
    as_json: Json = False,
) -> None:
    """Analyse a finished comparison.

    JSON, tables and figures are written to STUDY/analyses, and restd report includes them.
    """
    from restd.experiments import Study, comparison_identity, read_comparison
    from restd.experiments.study_file import STUDY_FILE
    from restd.report import ANALYSES as FOLDER
    from restd.report import write_result

    device = use_device(device)
    if study_option is not None:
        warn_deprecated("--study STUDY", f"restd analyze {name} STUDY")
    if (study is None) == (study_option is None):
        raise ConfigError(f"Pass the folder of one study: restd analyze {name} STUDY.")
    folder = study or study_option
    assert folder is not None
    if name == _WITH_NEW and new is None:
        raise ConfigError("--new is missing: the folder of the new items, as restd data hold-out writes it to OUT/new.")
    if name != _WITH_NEW and new is not None:
        raise ConfigError(f"--new belongs to {_WITH_NEW}, not to {name}; leave it out.")
    if name in _OF_RUNS and not (folder / STUDY_FILE).is_file():
        _analyze_run(folder, new, device, as_json=as_json)
        return
    makers = _makers(
        Study.open(folder, device=device),
        new=new,
        ours=ours,
        theirs=theirs,
        queries=queries,
        count=count,
        seeds=seeds,
    )
    if name not in (*makers, "all"):
        raise ConfigError(f"Unknown analysis {name!r}. Known: {', '.join(makers)}, all.")
    names = [name] if name != "all" else [each for each in makers if each not in (*_TRAINING, _WITH_NEW)]
    identity = comparison_identity(read_comparison(folder))
    results = []
    for each in names:
        notify(f"{each}: {ANALYSES[each]}")
        try:
            result = replace(makers[each](), of=identity)
        except RestdError as error:
            if name != "all":
                raise
            note(f"{each} was left out: {error}")
            continue
        write_result(result, folder / FOLDER)
        results.append(result)
        if not as_json:
            show_result(result)
    if as_json:
        show_json(results[0].to_dict() if name != "all" else [result.to_dict() for result in results])
    else:
        show(f"Written to {folder / FOLDER}; restd report {folder} puts it on the page.")


analyze.__doc__ = described(analyze.__doc__, ANALYSES)


def _analyze_run(run: Path, new: Path | None, device: str | None, *, as_json: bool) -> None:
    """Analyse the hybrid search of a single run."""
    from restd.cli.fit import add_parts
    from restd.report import ANALYSES as FOLDER
    from restd.report import write_result
    from restd.search import Retriever

    retriever = Retriever.load(run, hybrid=True, device=device)
    if retriever.fusion is None or not retriever.fusion.is_fitted:
        raise ConfigError(f"The hybrid search of {run} was not fitted yet; run restd fit --model {run} first.")
    add_parts(retriever, [])
    result = _run_parts(retriever) if new is None else _run_cold_start(retriever, new)
    write_result(result, run / FOLDER)
    if as_json:
        show_json(result.to_dict())
        return
    show_result(result)
    show(f"Written to {run / FOLDER}; restd report {run} makes a page of it.")


def _run_parts(retriever: "Retriever") -> "AnalysisResult":
    """Judge a hybrid search beside its parts and without each of them."""
    from restd.analyses.scoreboards import scoreboard_result
    from restd.evaluate import read_tests
    from restd.evaluate.ablation import ablation_board

    assert retriever.data is not None, "parts were added, so the data are known"
    tests = read_tests(retriever.data, retriever.snapshot, task="search")
    result = scoreboard_result(ablation_board(retriever, tests), queries=len(tests), split=tests.split)
    return replace(result, name="parts", title="Parts of the hybrid search")


def _run_cold_start(retriever: "Retriever", new: Path) -> "AnalysisResult":
    """Add new items to a search and judge how well they are found."""
    from restd.analyses.cold_start import cold_start_result
    from restd.evaluate.cold_start import measure_cold_start
    from restd.evaluate.fitting import available_parts

    return cold_start_result(measure_cold_start(retriever, new, parts=available_parts(retriever), notify=notify))


def _makers(
    study: "Study", *, new: Path | None, ours: str, theirs: str, queries: int, count: int, seeds: str
) -> "dict[str, Callable[[], AnalysisResult]]":
    from restd.analyses import beams, probes, teachers
    from restd.analyses.cold_cells import cold_cells_result
    from restd.analyses.disagreement import disagreement
    from restd.analyses.learning import learning
    from restd.analyses.overhead import overhead_result
    from restd.analyses.parts import parts_result
    from restd.analyses.slices import slices
    from restd.analyses.sweeps import sweep_result
    from restd.analyses.transitions import transitions
    from restd.experiments import measure_cold_starts, measure_parts, measure_updates, run_sweep, sweeps

    distill = study.comparison.config.distill
    sweep_seeds = read_seeds(seeds) if seeds else None
    around = sweeps.sensitivity(0.1 if distill.weight is None else distill.weight)

    def cold_start() -> "AnalysisResult":
        assert new is not None, "refused before"
        return cold_cells_result(measure_cold_starts(study, new, notify=notify))

    def swept(axes: dict[str, sweeps.Axis], name: str, title: str) -> "AnalysisResult":
        cells = run_sweep(study, axes, objective=ours, seeds=sweep_seeds, notify=notify)
        return sweep_result(cells, name=name, title=title)

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
        "overhead": lambda: overhead_result(measure_updates(study, notify=notify), study.comparison.task),
        "parts": lambda: parts_result(measure_parts(study, notify=notify)),
        "cold-start": cold_start,
        "correction": lambda: swept(sweeps.CORRECTION, "correction", "Sensitivity to collision-aware correction"),
        "sensitivity": lambda: swept(around, "sensitivity", "Sensitivity to λ, τ and ρ"),
    }


def show_result(result: "AnalysisResult") -> None:
    """Print the tables and the conclusion of an analysis."""
    for table in result.tables:
        show_table(table.title, table.columns, table.rows)
        for sentence in table.notes:
            note(sentence)
    show(result.says)


def report(
    study: Annotated[Path, typer.Argument(help="Folder written by restd compare, or a run that was analysed.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report. Default: STUDY/report.")] = None,
    title: Annotated[
        str, typer.Option(help="Heading of the page. Default: ResTD and the name of the study's folder.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the list of files as JSON.")] = False,
) -> None:
    """Write one self-contained HTML page about a study, with every table and figure as files beside it."""
    from restd.report import stale_analyses, write_report
    from restd.report.page import read_run_results, write_page

    folder = out or study / "report"
    if results := read_run_results(study):
        page = write_page(results, folder, title=title or f"ResTD: {study.resolve().name}")
        show_json({"page": str(page), "files": [str(page)]}) if as_json else show(f"Report: {page}")
        return
    written = write_report(study, folder, title=title)
    for name in stale_analyses(study):
        note(f"{name} belongs to another comparison and is left out; run restd analyze {name} {study} again")
    if as_json:
        show_json({"page": str(written[0]), "files": [str(path) for path in written]})
        return
    _show_summary(study)
    show(f"Report: {written[0]} ({len(written) - 1:,} other files beside it)")


def _show_summary(study: Path) -> None:
    """Print the scores beside the baselines' and the differences with their intervals."""
    from restd.analyses import study_result
    from restd.experiments import read_comparison

    result = study_result(read_comparison(study))
    for table in result.tables:
        if table.name in ("overall", "gains", "main", "improvements"):
            show_table(table.title, table.columns, table.rows)
    show(result.says)
