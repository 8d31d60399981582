"""What a comparison of systems is: which systems, under which budget, and the objective study that each of them is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from restd.artifacts import hash_json
from restd.config import plain
from restd.errors import ConfigError
from restd.evaluate import PAPER, Measure
from restd.experiments.comparison import Comparison, cell_name
from restd.experiments.evaluations import file_name
from restd.experiments.objective_sets import SEEDS
from restd.index import IndexConfig
from restd.index.config import IndexChoices
from restd.rankers import RANKERS, split_name
from restd.search import SearchOptions
from restd.systems import SYSTEMS, Budget, ResolvedSystem, SystemSpec, read_budget, resolve_system
from restd.train import OBJECTIVES, Job

BASE, ALL = "base", "all"
INDEXES, FOLDER, CACHE = "indexes", "systems", "cache"
_KEY = 8


@dataclass(frozen=True, slots=True)
class SystemPlan:
    """What is trained of one system.

    Args:
        objectives: of its rows: its own, and those that are laid over it; none for a ranker.
        seeds: every objective is trained with each of them; none for a ranker.
    """

    objectives: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    def joined(self, other: "SystemPlan") -> "SystemPlan":
        """Both together."""
        return SystemPlan(
            tuple(dict.fromkeys([*self.objectives, *other.objectives])),
            tuple(dict.fromkeys([*self.seeds, *other.seeds])),
        )


@dataclass(frozen=True)
class SystemComparison:
    """Systems on one data set under one protocol and one budget.

    Args:
        data: judgments and items.
        out: folder of the study; comparing again continues there, and adds to it.
        budget: what all systems share.
        plans: what is trained, by system; names that are no systems are rankers.
        split: split whose queries are evaluated.
        measures: metrics and cut-offs.
        graded: use the grade of a positive as its gain, instead of 1.
        decoding: how models are searched; the paper's by default.
        left_out: systems that cannot run on this data, with the reason.
        device: where models are trained and searched. Not a part of the study.
    """

    data: Path
    out: Path
    budget: Budget = field(default_factory=lambda: read_budget("small"))
    plans: Mapping[str, SystemPlan] = field(default_factory=dict)
    split: str = "test"
    measures: tuple[Measure, ...] = PAPER
    graded: bool = False
    decoding: SearchOptions = field(default_factory=SearchOptions)
    left_out: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None

    def __post_init__(self) -> None:
        for option, used in (
            ("--mode hybrid", self.decoding.mode != "generative"),
            ("--head-mode", self.decoding.heads is not None),
            ("--where", bool(self.decoding.where)),
        ):
            if used:
                raise ConfigError(
                    f"{option} is for studies of one index; systems are compared as generators and rankers alone. "
                    "Leave it out."
                )

    @cached_property
    def resolved(self) -> dict[str, ResolvedSystem]:
        """Every system under the budget, in the order of the registry; rankers without a system come first."""
        order = [*(name for name in self.plans if name not in SYSTEMS), *SYSTEMS]
        return {name: resolve_system(find_system(name), self.budget) for name in order if name in self.plans}

    def without(self, names: Iterable[str]) -> "SystemComparison":
        """The same without some of the systems."""
        gone = set(names)
        return replace(self, plans={name: plan for name, plan in self.plans.items() if name not in gone})

    @property
    def encoder(self) -> tuple[str, int]:
        """Name and seed of the encoder that all systems share."""
        name = self.budget.sections.get("index", {}).get("encoder", IndexConfig.encoder)
        return name, self.budget.sections.get("quantizer", {}).get("seed", 0)

    def index_folder(self, name: str) -> Path:
        """Folder of a system's index; systems with the same settings share it. For a ranker, that of the embeddings."""
        config = self.resolved[name].index
        return self.out if config is None else self.out / INDEXES / index_key(config)

    def study(self, name: str) -> Comparison:
        """The study of objectives that a system is, with an index of its own; for a ranker only where it is kept."""
        resolved, plan = self.resolved[name], self.plans[name]
        common: dict[str, Any] = {
            "index": self.index_folder(name),
            "data": self.data,
            "out": self.out / FOLDER / file_name(name),
            "split": self.split,
            "measures": self.measures,
            "graded": self.graded,
            "decoding": self.decoding,
            "device": self.device,
        }
        if resolved.spec.ranker:
            common |= {"baselines": (resolved.spec.ranker,), "baseline_settings": resolved.ranker_settings}
        if resolved.model is None or resolved.config is None:
            return Comparison(**common)
        objectives = tuple(dict.fromkeys([BASE, *plan.objectives]))
        return Comparison(
            **common, model=resolved.model, config=resolved.config, objectives=objectives, seeds=plan.seeds
        )

    def cells(self) -> list[tuple[str, str, int]]:
        """System, objective and seed of everything that is trained, the first seed of all systems first."""
        names = [name for name in self.resolved if self.resolved[name].spec.generates]
        most = max((len(self.plans[name].seeds) for name in names), default=0)
        return [
            (name, objective, self.plans[name].seeds[number])
            for number in range(most)
            for name in names
            if number < len(self.plans[name].seeds)
            for objective in self.plans[name].objectives
        ]

    def job(self, name: str, objective: str, seed: int) -> Job:
        """The training run of one cell; all share the states of the frozen encoder."""
        return replace(self.study(name).job(objective, seed), cache=self.out / CACHE)

    @property
    def rankers(self) -> list[str]:
        """Names of the systems that do not generate."""
        return [name for name in self.resolved if not self.resolved[name].spec.generates]


def index_key(config: IndexConfig) -> str:
    """Name of the folder of an index: quantiser, policy and a hash of all that decides it.

    >>> index_key(IndexConfig(quantizer="rqvae")) == index_key(IndexConfig(quantizer="rqvae", balanced=False))
    True
    """
    choices = {choice.name: getattr(config, choice.name) for choice in fields(IndexChoices)}
    parts = {
        "choices": choices,
        "fit": plain(config.section(config.quantizer)),
        "align": plain(config.align),
        "shape": plain(config.shape),
    }
    return f"{config.quantizer}-{config.policy}-{hash_json(parts)[:_KEY]}"


def find_system(name: str) -> SystemSpec:
    """A system by name, or a ranker that is no system as one."""
    if name in SYSTEMS:
        return SYSTEMS[name]
    try:
        entry = RANKERS[split_name(name)[0]]
    except ConfigError:
        return SYSTEMS[name]  # an unknown name is an error that lists the systems
    return SystemSpec(name, entry.summary, source="", label=name, ranker=name, needs=frozenset({"encoder"}))


def plan_systems(
    names: Iterable[str],
    budget: Budget,
    *,
    objectives: Iterable[str] = (BASE,),
    seeds: tuple[int, ...] = SEEDS[:1],
    baselines: Iterable[str] = (),
) -> dict[str, SystemPlan]:
    """What is trained of each of these systems; `all` stands for every system.

    Args:
        names: of systems.
        budget: what they share.
        objectives: `base` is each system's own; the others are laid over every system that has residuals and no
            objective of its own.
        seeds: of every objective.
        baselines: names of rankers to rank with too.
    """
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(f"Expected at least one seed, none twice and none below 0; got {list(seeds)}.")
    laid_over = [name for name in dict.fromkeys(objectives) if name != BASE]
    for name in laid_over:
        OBJECTIVES[name]  # raises for an unknown one
    chosen = [each for name in names for each in (SYSTEMS if name == ALL else (name,))]
    if not chosen:
        raise ConfigError(f"No system is named. Known: {', '.join(SYSTEMS)}; all is every one of them.")
    plans: dict[str, SystemPlan] = {}
    for name in dict.fromkeys([*chosen, *baselines]):
        spec = find_system(name) if name in baselines else SYSTEMS[name]
        resolved = resolve_system(spec, budget)
        more = laid_over if resolved.takes_restd else []
        plans[name] = SystemPlan((spec.objective, *more), seeds) if spec.generates else SystemPlan()
    return plans


def row_name(system: str, objective: str) -> str:
    """Name of a row: the system, and what is laid over it.

    >>> row_name("tiger", "base"), row_name("tiger", "restd"), row_name("bm25", "")
    ('tiger', 'tiger+restd', 'bm25')
    """
    return f"{system}+{objective}" if objective not in ("", own_objective(system)) else system


def own_objective(system: str) -> str:
    """The objective of a system itself; empty for a ranker."""
    spec = find_system(system)
    return spec.objective if spec.generates else ""


def cell_label(system: str, objective: str, seed: int) -> str:
    """Name of a cell in messages and among costs."""
    return f"{file_name(system)}-{cell_name(objective, seed)}"
