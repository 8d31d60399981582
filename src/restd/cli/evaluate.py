"""`restd evaluate`: what a model, a baseline or a ranking file is worth on judged queries."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import note, show, show_json, show_table, tell
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.data import Task
    from restd.evaluate import Evaluation, Measure, Ranking, TestSet
    from restd.index import SidIndex
    from restd.search import Ranker

Measures = Annotated[
    str, typer.Option(help="Metrics and cut-offs, separated by commas: Recall@10,NDCG@10,MRR@100 (the paper's).")
]
Width = Annotated[
    int | None, typer.Option(help="Prefixes the beam keeps at every level; 100 to search, 20 to recommend.")
]
Seen = Annotated[
    bool, typer.Option("--seen/--unseen", help="May a recommendation name what the history holds (the paper's: yes).")
]
WIDTHS = {"search": 100, "recommend": 20}
"""The paper's beams."""


def read_measures(text: str, task: str) -> "tuple[Measure, ...]":
    """Read measures separated by commas; none are the paper's for the task."""
    from restd.evaluate import NEXT, PAPER, Measure

    if text:
        return tuple(Measure.parse(part) for part in text.split(","))
    return PAPER if task == "search" else NEXT


def evaluate(
    model: Annotated[Path | None, typer.Option(help="A run of restd train, or a folder Retriever.save wrote.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Instead of a model: bm25, dense, popularity, hybrid; "
            "to recommend: sasrec, sasrec-bce, popularity, co-occurrence, neighbours."
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="A TREC run file, instead of a model.")] = None,
    data: Annotated[Path | None, typer.Option(help="Judgments or histories, and items; a model knows its own.")] = None,
    task: Annotated[
        str | None, typer.Option(help="search or recommend; by the model, or by the tables the data has.")
    ] = None,
    index: Annotated[Path | None, typer.Option(help="The folder restd index made; a model knows its own.")] = None,
    split: Annotated[str, typer.Option(help="Whose queries are asked: test, valid or train.")] = "test",
    measures: Measures = "",
    graded: Annotated[bool, typer.Option("--graded", help="A positive gains its grade instead of 1.")] = False,
    width: Width = None,
    seen: Seen = True,
    score_norm: Annotated[
        str, typer.Option(help="Over what probabilities sum to one: full_vocab, level_codes or trie_children.")
    ] = "full_vocab",
    category_width: Annotated[int, typer.Option(help="Categories a CaLIR model searches; 0 for all.")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Keep the result here: card, every query's values, run.trec, qrels.trec.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Hold it against a result that --out kept, query by query.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Judge a ranker on a data set's queries: Recall, NDCG and MRR by Semantic ID (the paper's way) and by item."""
    from restd.evaluate import read_tests
    from restd.index import SidIndex
    from restd.search.places import places

    if sum(given is not None for given in (model, baseline, run)) != 1:
        raise ConfigError("Exactly one of --model, --baseline and --run is wanted.")
    known = places(model) if model is not None else {}
    home, source = index or known.get("index"), data or known.get("catalog")
    if home is None or source is None:
        missing = "--index" if home is None else "--data"
        raise ConfigError(f"{missing} is wanted: nothing else says where the {missing[2:]} is.")
    doing = _task(task, model, source)
    asked = read_measures(measures, doing)
    held = SidIndex.load(home)
    question = _Question(home, source, held, read_tests(source, held.table.ids, split=split, task=doing), asked, graded)
    for sentence in question.tests.sentences():
        note(sentence)
    tell(f"{len(question.tests):,} {split} {'queries' if doing == 'search' else 'users'}, {len(held):,} items")
    if model is not None:
        options = {
            "width": WIDTHS[doing] if width is None else width,
            "score_norm": score_norm,
            "category_width": category_width,
            "seen": seen,
        }
        found, ranking = _judge_model(model, question, options)
    elif baseline is not None:
        found, ranking = _judge_baseline(baseline, question, out, seen=seen)
    else:
        assert run is not None
        found, ranking = _judge_run(run, question)
    said = {"name": found.name, **found.summary(), "card": found.card.to_dict()}
    if against is not None:  # before anything is kept: it may be kept in the same place
        said["against"] = _held_against(found, against)
    if out is not None:
        _keep(out, found, ranking, question)
    show_json(said) if as_json else _show(found, said, out)


def _task(given: str | None, model: Path | None, data: Path) -> "Task":
    from restd.artifacts import read_manifest
    from restd.data import task_in
    from restd.models.store import model_folder, task_of

    if model is not None:
        own = task_of(read_manifest(model_folder(model)).settings["backbone"]["body"])
        if given not in (None, own):
            raise ConfigError(f"{model} is a model to {own}, and --task {given} was asked for.")
        return own
    if given is None:
        return task_in(data)
    if given not in ("search", "recommend"):
        raise ConfigError(f"--task {given!r} is unknown; wanted search or recommend.")
    return given


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """What is asked, of which items, and how answers are judged."""

    home: Path
    source: Path
    index: "SidIndex"
    tests: "TestSet"
    measures: "tuple[Measure, ...]"
    graded: bool

    def put(
        self, ranker: "Ranker", name: str, decoding: dict[str, Any], *, seeds: tuple[int, ...] = ()
    ) -> "tuple[Evaluation, Ranking]":
        """Let a ranker answer."""
        from restd.evaluate import evaluate as judged

        rules = {"measures": self.measures, "graded": self.graded, "decoding": decoding}
        return judged(ranker, self.tests, self.index, name=name, seeds=seeds, **rules)


def _judge_model(model: Path, asked: _Question, options: dict[str, Any]) -> "tuple[Evaluation, Ranking]":
    from restd.artifacts import read_manifest
    from restd.models.store import model_folder
    from restd.search import Retriever
    from restd.study.comparison import Decoding, Searched

    decoding = Decoding(**options)
    ranker = Searched(Retriever.load(model, asked.home, asked.source), decoding)
    manifest = read_manifest(model_folder(model))
    card = decoding.card(manifest.settings["backbone"])
    seed = manifest.settings.get("told", {}).get("train", {}).get("seed")
    return asked.put(ranker, model.resolve().name, card, seeds=() if seed is None else (seed,))


def _judge_baseline(name: str, asked: _Question, out: Path | None, *, seen: bool) -> "tuple[Evaluation, Ranking]":
    from restd.baselines import Place, baseline_named, decoding_of

    trained = None if out is None else out / "baselines"
    place = Place(asked.home, asked.source, asked.index, asked.tests.task, trained, seen)
    return asked.put(baseline_named(name, place), name, decoding_of(name, place))


def _judge_run(path: Path, asked: _Question) -> "tuple[Evaluation, Ranking]":
    from restd.data.trec import read_run
    from restd.evaluate import judge_ranking, read_ranking

    ranking, said = read_ranking(read_run(path), asked.tests, asked.index, path=str(path))
    for sentence in said:
        note(sentence)
    decoding = {"ranker": path.name, "search": "unknown: read from a TREC run"}
    rules = {"measures": asked.measures, "graded": asked.graded, "decoding": decoding}
    return judge_ranking(ranking, asked.tests, asked.index, name=path.stem, **rules), ranking


def _keep(out: Path, found: "Evaluation", ranking: "Ranking", asked: _Question) -> None:
    """The result as an artefact, and beside it the two files every other tool reads."""
    import pyarrow as pa

    from restd.data.trec import write_qrels, write_run
    from restd.evaluate import ranking_table

    found.save(out / "evaluation")
    tests, ids = asked.tests, asked.index.table.ids
    write_run(ranking_table(ranking, tests, ids), out / "run.trec", tag="restd")
    query = [
        name for number, name in enumerate(tests.ids) for _ in range(*tests.positives(number).indices(1 << 62)[:2])
    ]
    qrels = {"query_id": query, "item": ids.take(pa.array(tests.rows)), "grade": tests.grades}
    write_qrels(pa.table(qrels), out / "qrels.trec")


def _held_against(found: "Evaluation", folder: Path) -> dict[str, Any]:
    from restd.evaluate import CONDITIONAL, Evaluation, holm_grid, paired_difference, refuse_incomparable

    other = Evaluation.load(folder / "evaluation" if (folder / "evaluation").is_dir() else folder)
    refuse_incomparable(found, other)
    common = [measure for measure in found.values["sid"] if measure in other.values["sid"]]
    if not common:
        raise ConfigError(f"{folder} has none of the measures {', '.join(found.values['sid'])}; ask for the same.")
    grid = {"all": {name: paired_difference(found.values["sid"][name], other.values["sid"][name]) for name in common}}
    differences = {name: held.to_dict() for name, held in holm_grid(grid)["all"].items()}
    return {
        "name": other.name,
        "statistics": CONDITIONAL,
        "rules_that_differ": found.card.differences(other.card),
        "differences": differences,
    }


def _show(found: "Evaluation", said: dict[str, Any], out: Path | None) -> None:
    names = list(found.values["sid"])
    rows = [(f"by {level}", *(f"{said[level][name]:.2f}" for name in names)) for level in ("sid", "item")]
    rows += [
        (f"{group}: {held['queries']:,} queries", *(f"{held[name]:.2f}" for name in names))
        for group, held in said["groups"].items()
        if held["queries"]
    ]
    show_table(f"{found.name}, {found.card.queries['judged']:,} {found.card.split} queries (%)", ("", *names), rows)
    show(f"Relevance {found.card.relevance}. Seen, mixed, unseen: training names all, some or none of the positives.")
    if "against" in said:
        held = said["against"]
        rows = [
            (name, f"{gap['mean']:+.2f}", f"[{gap['low']:+.2f}, {gap['high']:+.2f}]", f"{gap['adjusted']:.4f}")
            for name, gap in held["differences"].items()
        ]
        show_table(f"Over {held['name']}, in points", ("", "difference", "95 % interval", "p (Holm)"), rows)
        show(f"Paired bootstrap and permutation test, {held['statistics']}.")
        if held["rules_that_differ"]:
            show(f"Decoding differs: {'; '.join(held['rules_that_differ'])}.")
    if out is not None:
        show(f"Kept in {out}: evaluation/, run.trec, qrels.trec")
