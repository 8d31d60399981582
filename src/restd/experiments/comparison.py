"""What a comparison is: matched objectives over paired seeds, and how their models are searched and judged."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from restd.data import Task
from restd.errors import ConfigError, DataError
from restd.evaluate import PAPER, Measure
from restd.experiments.learning_rates import best_rate, read_rates, refuse_bad_rates
from restd.experiments.objective_sets import SEEDS
from restd.models import ModelConfig
from restd.rankers import find_ranker, refuse_unread_settings
from restd.search import SearchOptions
from restd.train import OBJECTIVES, Job, RunConfig

RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to compare, and where.

    Args:
        index: the folder `restd index` made.
        data: judgments or histories, and items.
        out: folder of the study; running the same comparison again continues there.
        model: backbone of objectives that are trained from scratch.
        config: settings shared by all cells; objective and seed are set cell by cell.
        init: the checkpoint that all cells continue from; None trains every cell from the same initial weights.
        objectives: names of objectives; the others are compared with `base`.
        seeds: paired seeds: one seed gives every objective the same batches and dropout.
        split: split whose queries are evaluated.
        measures: metrics and cut-offs.
        graded: use the grade of a positive as its gain, instead of 1.
        decoding: how models are searched; the paper's by default.
        router: which model chooses the categories of models that route: each its `own`, or the checkpoint all continue
            from (`start`), so that objectives are compared inside the same categories.
        baselines: names of rankers to evaluate beside the models.
        baseline_settings: sections of those baselines that are trained.
        rates: learning rates to choose from on validation, separately for each objective; empty keeps `train.lr`.
        probe_epochs: length of the runs that choose a learning rate.
        device: where models are trained and searched; by default Accelerate chooses where to train, and models are
            searched on the CPU. Not a part of the study.
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
    decoding: SearchOptions = field(default_factory=SearchOptions)
    router: Literal["own", "start"] = "own"
    baselines: tuple[str, ...] = ()
    baseline_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    probe_epochs: int = 2
    device: str | None = None

    def __post_init__(self) -> None:
        if "base" not in self.objectives:
            raise ConfigError("A comparison needs the objective 'base': the other objectives are compared with it.")
        for name in self.objectives:
            OBJECTIVES[name]  # raises for an unknown one
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ConfigError(f"Expected at least one seed, none twice and none below 0; got {list(self.seeds)}.")
        if self.rates:
            refuse_bad_rates(self.rates, self.probe_epochs)
        for name in self.baselines:
            find_ranker(name, self.task)
        refuse_unread_settings(self.baseline_settings, self.baselines)
        self._refuse_bad_hybrid()
        if self.router == "start" and self.init is None:
            raise ConfigError("Routing by the checkpoint needs a checkpoint, and there is none; give --init.")

    def _refuse_bad_hybrid(self) -> None:
        if self.decoding.mode != "hybrid":
            return
        if self.task != "search":
            raise ConfigError("A hybrid search reads texts, but these models recommend; leave --mode generative.")
        if self.decoding.heads is not None:
            raise ConfigError(
                "--head-mode changes a generative search; a hybrid search has the heads among its parts and weighs "
                "them itself. Leave one of --mode hybrid and --head-mode out."
            )
        if self.split == "valid":
            raise ConfigError(
                "The weights of a hybrid search are fitted on the validation queries, so these cannot judge it; pass "
                "--split test."
            )

    @property
    def task(self) -> Task:
        """Whether the models search or recommend."""
        return Job(self.index, self.data, self.out, self.model, self.config, self.init).task

    def rate(self, objective: str) -> float:
        """The learning rate of an objective: the study's own, or the best of its probes."""
        if not self.rates:
            return self.config.train.lr
        probes = read_rates(self.out).get(objective, {}).get("probes", {})
        best = best_rate({rate: scores for rate, scores in probes.items() if float(rate) in self.rates})
        if best is None:
            raise DataError(f"{self.out} has not chosen a learning rate for {objective} yet; run restd compare first.")
        return best

    def job(self, objective: str, seed: int) -> Job:
        """The training run of one cell."""
        train = replace(self.config.train, seed=seed, lr=self.rate(objective))
        config = replace(self.config, objective=objective, train=train)
        cache = None if self.init is not None else self.out / "cache"
        out = self.run(objective, seed)
        return Job(self.index, self.data, out, self.model, config, self.init, cache, self.device)

    def run(self, objective: str, seed: int) -> Path:
        """Folder of one cell's training run."""
        return self.out / RUNS / cell_name(objective, seed)


def cell_name(objective: str, seed: int) -> str:
    """Name of a cell's files."""
    return f"{objective}-{seed}"
