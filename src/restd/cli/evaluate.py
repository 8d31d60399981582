"""`restd evaluate`: what a model, a baseline or a ranking file is worth on judged queries."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import note, notify, show, show_json, show_table
from restd.cli.device import use_device
from restd.cli.fit import add_parts
from restd.cli.options import (
    HEAD_WEIGHT,
    Beam,
    CategoryWidth,
    Graded,
    HeadMode,
    HeadWeight,
    Json,
    Measures,
    OptionalIndex,
    RankerSettings,
    ScoreNorm,
    SearchDevice,
    Seen,
    Split,
    Where,
    search_options,
)
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.data import Task
    from restd.evaluate import Evaluation, Measure, Ranking, Scoreboard, TestSet
    from restd.rankers import Ranker
    from restd.search import SearchOptions
    from restd.snapshot import Snapshot


def read_measures(text: str, task: str) -> "tuple[Measure, ...]":
    """Read measures separated by commas; an empty text stands for the paper's measures of the task."""
    from restd.evaluate import NEXT, PAPER, Measure

    if text:
        return tuple(Measure.parse(part) for part in text.split(","))
    return PAPER if task == "search" else NEXT


def evaluate(
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a run (restd train), or a bundle (restd quickstart, Retriever.save)."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="A baseline to evaluate instead of a model; dense:ENCODER is dense search by another encoder."
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="A TREC run file to evaluate instead of a model.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with items and judgments or histories. Default: the one the model was trained with."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="search or recommend. Default: the model's task, or what the data allows.")
    ] = None,
    index: OptionalIndex = None,
    split: Split = "test",
    measures: Measures = "",
    graded: Graded = False,
    beam: Beam = None,
    seen: Seen = True,
    score_norm: ScoreNorm = "full_vocab",
    category_width: CategoryWidth = 3,
    mode: Annotated[
        str,
        typer.Option(
            help="generative: the model alone, as in the paper; or hybrid: with the weights that restd fit chose."
        ),
    ] = "generative",
    head_mode: HeadMode = None,
    head_weight: HeadWeight = HEAD_WEIGHT,
    where: Where = None,
    settings: RankerSettings = None,
    ablate: Annotated[
        bool,
        typer.Option(
            "--ablate",
            help="Show the hybrid search beside each of its parts, and without each of them, with intervals.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the result: protocol card, values per query, run.trec and qrels.trec."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Folder of an earlier --out: show paired differences from that result.")
    ] = None,
    device: SearchDevice = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model, a baseline or a TREC run: Recall, NDCG and MRR by Semantic ID (as in the paper) and by item.

    Pass exactly one of --model, --baseline and --run.
    """
    from restd.evaluate import read_tests
    from restd.snapshot import Snapshot
    from restd.train import run_sources

    device = use_device(device)
    if sum(source is not None for source in (model, baseline, run)) != 1:
        raise ConfigError("Pass exactly one of --model, --baseline and --run.")
    sections = _baseline_settings(settings or [], baseline)
    known = run_sources(model) if model is not None else {}
    index_folder, data_folder = index or known.get("index"), data or known.get("catalog")
    if index_folder is None or data_folder is None:
        missing = "--index" if index_folder is None else "--data"
        raise ConfigError(f"{missing} is missing. Only a model knows its own.")
    doing = _task(task, model, data_folder)
    options = search_options(
        beam=beam,
        score_norm=score_norm,
        category_width=category_width,
        seen=seen,
        mode=mode,
        head_mode=head_mode,
        head_weight=head_weight,
        where=where,
    )
    snapshot = Snapshot.load(index_folder)
    tests = read_tests(data_folder, snapshot, split=split, task=doing)
    protocol = _Protocol(index_folder, data_folder, snapshot, tests, read_measures(measures, doing), graded)
    for sentence in tests.notes():
        note(sentence)
    notify(f"{len(tests):,} {split} {'queries' if doing == 'search' else 'users'}, {len(snapshot):,} items")
    if ablate:
        _ablate(model, protocol, options, device, as_json=as_json)
        return
    if model is not None:
        evaluation, ranking = _evaluate_model(model, protocol, options, device)
    elif baseline is not None:
        evaluation, ranking = _evaluate_baseline(baseline, protocol, out, seen=seen, settings=sections)
    else:
        assert run is not None
        evaluation, ranking = _evaluate_run(run, protocol)
    summary = {"name": evaluation.name, **evaluation.summary(), "card": evaluation.card.to_dict()}
    if against is not None:  # before anything is written: both may be the same folder
        summary["against"] = _compared(evaluation, against)
    if out is not None:
        _save(out, evaluation, ranking, protocol)
    show_json(summary) if as_json else _show(evaluation, summary, out)


def _task(task: str | None, model: Path | None, data: Path) -> "Task":
    from restd.data import task_in
    from restd.models import task_of

    if model is not None:
        own = task_of(model)
        if task not in (None, own):
            raise ConfigError(f"{model} is a model to {own}, but --task {task} was passed.")
        return own
    if task is None:
        return task_in(data)
    if task not in ("search", "recommend"):
        raise ConfigError(f"--task must be search or recommend, got {task!r}.")
    return task


@dataclass(frozen=True, slots=True, eq=False)
class _Protocol:
    """Test queries, the items to rank, and how rankings are judged."""

    index_folder: Path
    data_folder: Path
    snapshot: "Snapshot"
    tests: "TestSet"
    measures: "tuple[Measure, ...]"
    graded: bool

    def evaluate(
        self, ranker: "Ranker", name: str, decoding: dict[str, Any], *, seeds: tuple[int, ...] = ()
    ) -> "tuple[Evaluation, Ranking]":
        """Rank every test query and judge the rankings."""
        from restd.evaluate import evaluate as evaluate_ranker

        rules = {"measures": self.measures, "graded": self.graded, "decoding": decoding}
        return evaluate_ranker(ranker, self.tests, self.snapshot, name=name, seeds=seeds, **rules)


def _evaluate_model(
    model: Path, protocol: _Protocol, options: "SearchOptions", device: str | None
) -> "tuple[Evaluation, Ranking]":
    from restd.artifacts import read_manifest
    from restd.models.store import model_folder
    from restd.search import Retriever, RetrieverRanker

    retriever = Retriever.load(
        model,
        protocol.index_folder,
        protocol.data_folder,
        keep_heads=options.heads is not None,
        hybrid=options.mode == "hybrid",
        device=device,
    )
    ranker = RetrieverRanker(retriever, options)
    manifest = read_manifest(model_folder(model))
    card = options.card(task=protocol.tests.task, routes=retriever.backbone.routes)
    if options.mode == "hybrid":
        card["weights"] = dict(retriever.fusion_of(retriever.snapshot).weights)
    seed = manifest.settings.get("told", {}).get("train", {}).get("seed")
    return protocol.evaluate(ranker, model.resolve().name, card, seeds=() if seed is None else (seed,))


def _ablate(
    model: Path | None, protocol: _Protocol, options: "SearchOptions", device: str | None, *, as_json: bool
) -> None:
    """Print the hybrid search of a model beside its parts and without each of them."""
    from restd.evaluate.ablation import ablation_board
    from restd.search import Retriever

    if model is None:
        raise ConfigError("--ablate takes the hybrid search of a model apart; pass --model.")
    retriever = Retriever.load(model, protocol.index_folder, protocol.data_folder, hybrid=True, device=device)
    if retriever.fusion is None:
        raise ConfigError(f"The hybrid search of {model} was not fitted yet; run restd fit --model {model} first.")
    add_parts(retriever, [])
    board = ablation_board(retriever, protocol.tests, options=options)
    if as_json:
        show_json(board.to_dict())
    else:
        show_board(board, f"{model.resolve().name}, {len(protocol.tests):,} {protocol.tests.split} queries (%)")


def show_board(board: "Scoreboard", title: str) -> None:
    """Print a hybrid search beside its parts."""
    from restd.evaluate.scoreboard import MEASURES, board_rows

    columns = ("", *map(str, MEASURES), f"hybrid's lead in {MEASURES[0]}")
    show_table(title, columns, board_rows(board))
    show("By item. Brackets: 95 % interval of the paired difference. Weights were chosen on validation queries.")


def _baseline_settings(settings: list[str], baseline: str | None) -> dict[str, dict[str, Any]]:
    """Sections of a baseline; others are refused."""
    from restd.config import parse_settings

    sections = parse_settings(settings)
    if sections:
        from restd.rankers import refuse_unread_settings

        refuse_unread_settings(sections, [] if baseline is None else [baseline])
    return sections


def _evaluate_baseline(
    name: str,
    protocol: _Protocol,
    out: Path | None,
    *,
    seen: bool,
    settings: dict[str, dict[str, Any]],
) -> "tuple[Evaluation, Ranking]":
    from restd.rankers import RankerContext, decoding_of, make_ranker

    trained = None if out is None else out / "baselines"
    context = RankerContext(
        protocol.snapshot,
        protocol.data_folder,
        protocol.index_folder,
        protocol.tests.task,
        trained,
        seen,
        settings=settings,
        notify=notify,
    )
    return protocol.evaluate(make_ranker(name, context), name, decoding_of(name, context))


def _evaluate_run(path: Path, protocol: _Protocol) -> "tuple[Evaluation, Ranking]":
    from restd.data.trec import read_run
    from restd.evaluate import judge_ranking, read_ranking

    ranking, sentences = read_ranking(read_run(path), protocol.tests, protocol.snapshot, path=str(path))
    for sentence in sentences:
        note(sentence)
    decoding = {"ranker": path.name, "search": "unknown: read from a TREC run"}
    rules = {"measures": protocol.measures, "graded": protocol.graded, "decoding": decoding}
    return judge_ranking(ranking, protocol.tests, protocol.snapshot, name=path.stem, **rules), ranking


def _save(out: Path, evaluation: "Evaluation", ranking: "Ranking", protocol: _Protocol) -> None:
    """Write the result as an artefact, and beside it the two files every other tool reads."""
    import pyarrow as pa

    from restd.data.trec import write_qrels, write_run
    from restd.evaluate import ranking_table

    evaluation.save(out / "evaluation")
    tests, ids = protocol.tests, protocol.snapshot.ids
    write_run(ranking_table(ranking, tests, ids), out / "run.trec", tag="restd")
    query_ids = [
        name for number, name in enumerate(tests.ids) for _ in range(*tests.positives(number).indices(1 << 62)[:2])
    ]
    qrels = {"query_id": query_ids, "item": ids.take(pa.array(tests.rows)), "grade": tests.grades}
    write_qrels(pa.table(qrels), out / "qrels.trec")


def _compared(evaluation: "Evaluation", folder: Path) -> dict[str, Any]:
    from restd.evaluate import CONDITIONAL, Evaluation, holm_grid, paired_difference, refuse_incomparable

    other = Evaluation.load(folder / "evaluation" if (folder / "evaluation").is_dir() else folder)
    refuse_incomparable(evaluation, other)
    ours, theirs = evaluation.values["sid"], other.values["sid"]
    common = [measure for measure in ours if measure in theirs]
    if not common:
        raise ConfigError(f"{folder} has none of the measures {', '.join(ours)}. Pass --measures {','.join(theirs)}.")
    grid = {"all": {name: paired_difference(ours[name], theirs[name]) for name in common}}
    return {
        "name": other.name,
        "statistics": CONDITIONAL,
        "rules_that_differ": evaluation.card.differences(other.card),
        "differences": {name: difference.to_dict() for name, difference in holm_grid(grid)["all"].items()},
    }


def _show(evaluation: "Evaluation", summary: dict[str, Any], out: Path | None) -> None:
    names, card = list(evaluation.values["sid"]), evaluation.card
    rows = [(f"by {level}", *(f"{summary[level][name]:.2f}" for name in names)) for level in ("sid", "item")]
    rows += [
        (f"{group}: {values['queries']:,} queries", *(f"{values[name]:.2f}" for name in names))
        for group, values in summary["groups"].items()
        if values["queries"]
    ]
    show_table(f"{evaluation.name}, {card.queries['judged']:,} {card.split} queries (%)", ("", *names), rows)
    show(f"Relevance {card.relevance}. Seen, mixed, unseen: training names all, some or none of the positives.")
    if "against" in summary:
        comparison = summary["against"]
        rows = [
            (name, f"{gap['mean']:+.2f}", f"[{gap['low']:+.2f}, {gap['high']:+.2f}]", f"{gap['adjusted']:.4f}")
            for name, gap in comparison["differences"].items()
        ]
        title = f"Difference from {comparison['name']}, in points"
        show_table(title, ("", "difference", "95 % interval", "p (Holm)"), rows)
        show(f"Paired bootstrap and permutation test, {comparison['statistics']}.")
        if comparison["rules_that_differ"]:
            show(f"Decoding differs: {'; '.join(comparison['rules_that_differ'])}.")
    if out is not None:
        show(f"Written to {out}: evaluation/, run.trec, qrels.trec")
