"""A system under a budget: the settings of its index, its model and its training, checked before anything runs."""

from dataclasses import dataclass, field
from typing import Any

from restd.errors import ConfigError
from restd.index import IndexConfig
from restd.models import ModelConfig
from restd.quantize import QUANTIZERS
from restd.rankers import find_ranker, refuse_unread_settings
from restd.systems.budget import Budget
from restd.systems.registry import SystemSpec
from restd.train import OBJECTIVES, RunConfig
from restd.train.configure import configure_run


@dataclass(frozen=True)
class ResolvedSystem:
    """What a system is made with; a ranker has none of the settings.

    Args:
        spec: the system.
        index: of its index.
        model: of its backbone.
        config: of its training; the objective is the system's own.
        ranker_settings: sections of a system that is a ranker.
    """

    spec: SystemSpec
    index: IndexConfig | None = None
    model: ModelConfig | None = None
    config: RunConfig | None = None
    ranker_settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def takes_restd(self) -> bool:
        """Whether ResTD can be laid over it: it has residuals, and no other objective than the generation loss."""
        residuals = self.index is not None and QUANTIZERS[self.index.quantizer].has_geometry
        return residuals and self.spec.objective == "base"

    @property
    def encodes(self) -> bool:
        """Whether it needs embeddings of the items."""
        return self.spec.generates or "encoder" in self.spec.needs

    @property
    def refusal(self) -> str:
        """Why ResTD cannot be laid over it; empty where it can."""
        if self.takes_restd:
            return ""
        if self.index is None:
            return "it does not generate"
        if self.spec.objective != "base":
            return f"it has an objective of its own ({self.spec.objective})"
        return f"its identifiers ({self.index.quantizer}) have no residuals"


def resolve_system(spec: SystemSpec, budget: Budget) -> ResolvedSystem:
    """Combine a system with a budget; a setting or part that does not exist is an error that names the system."""
    try:
        if spec.ranker:
            find_ranker(spec.ranker, spec.task)
            settings = budget.ranker_sections(spec)
            refuse_unread_settings(settings, [spec.ranker])
            return ResolvedSystem(spec, ranker_settings=settings)
        index = IndexConfig.read(budget.index_sections(spec))
        model, config = configure_run(
            budget.train_sections(spec), options=budget.train_options, task=spec.task, user=f"the system {spec.name}"
        )
        OBJECTIVES[config.objective]  # raises for an unknown one
    except ConfigError as error:
        raise ConfigError(f"The system {spec.name} cannot be made with the budget {budget.name}: {error}") from error
    return ResolvedSystem(spec, index, model, config)
