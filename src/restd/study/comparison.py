"""Matched objectives over paired seeds: one base checkpoint, or one first weight, the same batches and dropout."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from restd.artifacts import hash_json, read_manifest, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.baselines import Place, baseline_named, decoding_of, refuse_unknown
from restd.data import Task
from restd.data.trec import write_atomically
from restd.errors import ArtifactError, ConfigError, DataError
from restd.evaluate import PAPER, Evaluation, Measure, TestSet, evaluate, index_identity, ranked_validation, read_tests
from restd.index import SidIndex
from restd.models import CachedRoutes, CalirBackbone, ModelConfig, open_model, task_of
from restd.models.store import model_folder
from restd.search import Ranker, Retriever
from restd.study.rates import best_rate, choose_rate, open_probes, read_rates, refuse_bad_rates
from restd.study.side_by_side import refuse_bad_count, train_side_by_side
from restd.train import Job, RunConfig, train_retriever
from restd.train.objectives import recipe_named

logger = logging.getLogger(__name__)
Tell = Callable[[str], None]

MATCHED = ("base", "rbd", "full-output-kd", "restd-h2", "restd", "rbd-future-hard", "hard", "shuffled")
MATCHED += ("nontarget-output",)
CONTROLS = ("codebook-only", "code-mean", "entropy-shuffle", "nontarget-permutation", "shape-swap")
BEYOND = ("restd-mean", "restd-trie", "restd-output", "output-mean")
SETS = {
    "matched": MATCHED,
    "controls": ("base", "restd", *CONTROLS),
    "beyond": ("base", "restd", *BEYOND),
    "all": (*MATCHED, *CONTROLS),
}
"""Lists of objectives by name: the paper's two tables, what lies beyond it, and both tables together."""
SEEDS = (42, 2027, 2028)
FILE, TOLD = "comparison.json", "study.json"
RUNS, EVALUATIONS, TRAINED = "runs", "evaluations", "baselines"
START = "start"
_PLACES = ("index", "data", "init")


@dataclass(frozen=True, slots=True)
class Decoding:
    """How models are searched; the paper's by default.

    Args:
        width: prefixes the beam keeps at every level.
        score_norm: over what probabilities sum to one.
        category_width: categories a CaLIR model searches; 0 for the whole catalogue.
        router: who chooses them: each model its `own`, or the checkpoint all went on from (`start`), so that
            objectives are compared inside the same categories.
        seen: whether a recommendation may name what the history holds; it may in the paper's protocol.
    """

    width: int = 100
    score_norm: str = "full_vocab"
    category_width: int = 3
    router: Literal["own", "start"] = "own"
    seen: bool = True

    def card(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """For the protocol card; only models that know categories, or recommend, have anything to say of those.

        Args:
            body: the model as its manifest describes it.
        """
        said = {"ranker": "restd", "search": "beam over the trie", "width": self.width, "score_norm": self.score_norm}
        if "calir" in body:
            return {**said, "category_width": self.category_width, "router": self.router}
        return {**said, "seen": self.seen} if task_of(body["body"]) == "recommend" else said


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to compare.

    Args:
        index: the folder `restd index` made.
        data: judgments or histories, and items.
        out: folder of the study; the same study again goes on from there.
        model: backbone of objectives that are trained from the start.
        config: settings that all cells share; objective and seed are set cell by cell.
        init: the checkpoint all cells go on from; None trains every cell from the same first weights.
        objectives: by name; `base` is what the others are held against.
        seeds: paired: a seed gives every objective the same batches and dropout.
        split: whose queries are asked.
        measures: metrics and cut-offs.
        graded: let a positive gain its grade.
        decoding: how models are searched.
        baselines: rankers beside them, by name.
        rates: learning rates to choose among by validation, each objective for itself; none keeps the study's own.
        probe_epochs: length of the runs that choose.
    """

    index: Path
    data: Path
    out: Path
    model: ModelConfig = field(default_factory=ModelConfig)
    config: RunConfig = field(default_factory=RunConfig)
    init: Path | None = None
    objectives: tuple[str, ...] = ("base", "restd")
    seeds: tuple[int, ...] = SEEDS
    split: str = "test"
    measures: tuple[Measure, ...] = PAPER
    graded: bool = False
    decoding: Decoding = Decoding()
    baselines: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    probe_epochs: int = 2

    def __post_init__(self) -> None:
        if "base" not in self.objectives:
            raise ConfigError("A comparison needs the objective 'base', which the others are held against.")
        for name in self.objectives:
            recipe_named(name)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ConfigError(f"Seeds {list(self.seeds)} were given; wanted at least one, none twice and none below 0.")
        if self.rates:
            refuse_bad_rates(self.rates, self.probe_epochs)
        for name in self.baselines:
            refuse_unknown(name, self.task)
        if self.decoding.router == "start" and self.init is None:
            raise ConfigError("Categories of the checkpoint were asked for, and there is none; give --init.")

    @property
    def task(self) -> Task:
        """What the models are asked."""
        return Job(self.index, self.data, self.out, self.model, self.config, self.init).task

    def rate(self, objective: str) -> float:
        """The learning rate of an objective: the study's, or the best of its probes."""
        if not self.rates:
            return self.config.train.lr
        probes = read_rates(self.out).get(objective, {}).get("probes", {})
        best = best_rate({name: held for name, held in probes.items() if float(name) in self.rates})
        if best is None:
            raise DataError(f"{self.out} has not chosen a learning rate for {objective} yet; run restd compare first.")
        return best

    def job(self, objective: str, seed: int) -> Job:
        """The training run of one cell."""
        train = replace(self.config.train, seed=seed, lr=self.rate(objective))
        config = replace(self.config, objective=objective, train=train)
        cache = None if self.init is not None else self.out / "cache"
        return Job(self.index, self.data, self.run(objective, seed), self.model, config, self.init, cache)

    def run(self, objective: str, seed: int) -> Path:
        """Folder of one cell's training run."""
        return self.out / RUNS / cell_name(objective, seed)


def cell_name(objective: str, seed: int) -> str:
    """How a cell is called on disk."""
    return f"{objective}-{seed}"


def objectives_named(text: str) -> tuple[str, ...]:
    """Read `matched`, `controls`, `beyond`, `all`, or names separated by commas; `base` is always there, first.

    >>> objectives_named("restd,rbd")
    ('base', 'restd', 'rbd')
    """
    found: list[str] = ["base"]
    for name in filter(None, (part.strip() for part in text.split(","))):
        found += SETS.get(name, (name,))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Every cell of a comparison, judged."""

    comparison: Comparison
    cells: Mapping[tuple[str, int], Evaluation]
    beside: Mapping[str, Evaluation]
    """Baselines, and the checkpoint the cells went on from (`start`)."""


def run_comparison(comparison: Comparison, *, at_once: int = 1, tell: Tell = logger.info) -> Compared:
    """Train and judge every cell that is not finished yet, `at_once` of them at a time."""
    refuse_bad_count(at_once)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("A comparison runs one cell at a time in one process; train single cells with torchrun.")
    comparison.out.mkdir(parents=True, exist_ok=True)
    index = SidIndex.load(comparison.index)
    tests = read_tests(comparison.data, index.table.ids, split=comparison.split, task=comparison.task)
    for sentence in tests.sentences():
        tell(sentence)
    with sole_writer(comparison.out):
        comparison = extended(comparison)
        beside = _beside(comparison, tests, index, tell)
        cells: dict[tuple[str, int], Evaluation] = {}
        total = len(comparison.objectives) * len(comparison.seeds)
        _probe(comparison, at_once, tell)
        order = [(objective, seed) for seed in comparison.seeds for objective in comparison.objectives]
        train_side_by_side([comparison.job(*cell) for cell in order], at_once=at_once, tell=tell)
        for objective, seed in order:
            tell(f"[{len(cells) + 1}/{total}] {objective}, seed {seed}")
            job = comparison.job(objective, seed)
            trained = train_retriever(job, tell=tell, validate=ranked_validation(job))
            cells[objective, seed] = judge_model(
                comparison, cell_name(objective, seed), trained.folder, tests, index, seeds=(seed,)
            )
        remember(comparison)
        return Compared(comparison, cells, beside)


def _probe(comparison: Comparison, at_once: int, tell: Tell) -> None:
    """Choose every objective's learning rate, where the comparison leaves a choice."""
    if not comparison.rates:
        return
    rates, folder, epochs = comparison.rates, comparison.out, comparison.probe_epochs
    jobs = [replace(comparison, rates=()).job(name, comparison.seeds[0]) for name in comparison.objectives]
    probes = [probe for job in jobs for probe in open_probes(job, rates, folder, epochs=epochs).values()]
    train_side_by_side(probes, at_once=at_once, tell=tell)
    for job in jobs:
        choose_rate(job, rates, folder, epochs=epochs, tell=tell)


def _beside(comparison: Comparison, tests: TestSet, index: SidIndex, tell: Tell) -> dict[str, Evaluation]:
    found: dict[str, Evaluation] = {}
    trained, seen = comparison.out / TRAINED, comparison.decoding.seen
    place = Place(comparison.index, comparison.data, index, comparison.task, trained, seen)
    for name in comparison.baselines:

        def ranker(name: str = name) -> Ranker:
            tell(f"Baseline {name}")
            return baseline_named(name, place)

        found[name] = _judged(comparison, name, ranker, tests, index, decoding=decoding_of(name, place), parents={})
    if comparison.init is not None:
        found[START] = judge_model(comparison, START, model_folder(comparison.init), tests, index, seeds=())
    return found


def judge_model(
    comparison: Comparison, name: str, model: Path, tests: TestSet, index: SidIndex, *, seeds: tuple[int, ...]
) -> Evaluation:
    """Judge a model, or take the judgment that is there if nothing it depends on has changed."""
    manifest = read_manifest(model)
    decoding = comparison.decoding.card(manifest.settings["backbone"])

    def ranker() -> Ranker:
        retriever = Retriever.load(model, comparison.index, comparison.data)
        return Searched(retriever, comparison.decoding, _routes(comparison, tests))

    parents = {"model": manifest.content}
    return _judged(comparison, name, ranker, tests, index, decoding=decoding, parents=parents, seeds=seeds)


def _judged(
    comparison: Comparison,
    name: str,
    ranker: Callable[[], Ranker],
    tests: TestSet,
    index: SidIndex,
    *,
    decoding: Mapping[str, Any],
    parents: Mapping[str, str],
    seeds: tuple[int, ...] = (),
) -> Evaluation:
    folder = comparison.out / EVALUATIONS / f"{name}-{comparison.split}"
    rules = {"measures": list(map(str, comparison.measures)), "graded": comparison.graded, "decoding": dict(decoding)}
    wanted = {**parents, "judgments": tests.source, "index": index_identity(index), "asked": hash_json(rules)}
    if (folder / MANIFEST).is_file() and read_manifest(folder).parents == wanted:
        return Evaluation.load(folder)
    asked = {"measures": comparison.measures, "graded": comparison.graded, "decoding": decoding}
    found, _ = evaluate(ranker(), tests, index, name=name, seeds=seeds, **asked)
    found.save(folder, parents=wanted)
    return found


def _routes(comparison: Comparison, tests: TestSet) -> CachedRoutes | None:
    """Categories of the checkpoint all cells went on from, where these were asked for."""
    decoding = comparison.decoding
    if decoding.router == "own" or not decoding.category_width or comparison.init is None:
        return None
    start, _ = open_model(comparison.init)
    if not isinstance(start, CalirBackbone):
        raise ConfigError(f"{comparison.init} knows no categories, so it cannot route queries; leave --router own.")
    return CachedRoutes.of(start.eval(), list(map(str, tests.texts)), width=decoding.category_width)


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """A retriever with its options fixed, as a ranker; the beam stays as wide as it was asked to be."""

    retriever: Retriever
    decoding: Decoding
    routes: CachedRoutes | None = None

    def rank(self, queries: Any, k: int) -> Any:
        """Rows and scores."""
        return self.retriever.rank(
            queries,
            k,
            width=self.decoding.width,
            widen=False,
            score_norm=self.decoding.score_norm,
            category_width=self.decoding.category_width,
            routes=self.routes,
            seen=self.decoding.seen,
        )


def remember(comparison: Comparison) -> None:
    """Write what a study was told beside its cells, with places relative to its folder, so that analyses find it."""
    near = comparison.out.resolve()
    said = TypeAdapter(Comparison).dump_python(comparison, mode="json")
    for name in _PLACES:
        place = getattr(comparison, name)
        said[name] = None if place is None else os.path.relpath(place.resolve(), near)
    said["out"] = "."
    write_atomically(comparison.out / TOLD, [json.dumps(said, indent=2).encode() + b"\n"])


def extended(comparison: Comparison) -> Comparison:
    """A comparison with the objectives and seeds its folder has already; other settings there are refused."""
    if not (comparison.out / TOLD).is_file():
        remember(comparison)
        return comparison
    known = recall_study(comparison.out)
    for name in (*_PLACES, "model", "config", "rates", "probe_epochs"):
        one, other = (getattr(held, name) for held in (known, comparison))
        if name in _PLACES:
            one, other = (None if place is None else place.resolve() for place in (one, other))
        if one != other:
            raise ArtifactError(
                f"{comparison.out} holds a study with other settings ({name}); choose another --out, or delete it."
            )
    return replace(
        comparison,
        objectives=tuple(dict.fromkeys([*known.objectives, *comparison.objectives])),
        seeds=tuple(dict.fromkeys([*known.seeds, *comparison.seeds])),
    )


def recall_study(folder: Path) -> Comparison:
    """Read what `remember` wrote."""
    path = folder / TOLD
    if not path.is_file():
        raise DataError(f"{folder} is no study: it has no {TOLD}; make one with restd compare --out {folder}.")
    said = json.loads(path.read_text(encoding="utf-8"))
    for name in _PLACES:
        said[name] = None if said[name] is None else (folder.resolve() / said[name]).resolve()
    return TypeAdapter(Comparison).validate_python({**said, "out": folder})
