"""Systems by name: identifiers, a backbone and an objective, or a ranker, with the settings that make it one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from restd.data import Task
from restd.errors import ConfigError
from restd.registry import Registry

Sections = Mapping[str, Mapping[str, Any]]
"""Settings by section, as plain values."""
Need = Literal["categories", "queries", "encoder"]
"""What a system cannot do without besides items: their categories, judged training queries, or a text encoder."""


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """An entry of `SYSTEMS`: a system that generates has `index` and `train`, any other a `ranker`.

    Everything in it is the name of an entry of another registry, or a setting. What it leaves out has the default of
    its section, or is what a training budget says.

    Args:
        name: what it is chosen by.
        summary: one sentence that says what it is, and what of it is ours.
        source: where it comes from: a paper, or empty for our own.
        label: what it is called in tables.
        index: settings of its index, by section.
        train: settings of its training, by section; the objective is in [model].
        ranker: name in `RANKERS` of a system that does not generate.
        needs: what it cannot do without; a system that generates always needs an encoder.
        task: what it does.
        ours: whether it is judged against the others, as ResTD over any system is, rather than one of them.
    """

    name: str
    summary: str
    source: str
    label: str
    index: Sections = field(default_factory=dict)
    train: Sections = field(default_factory=dict)
    ranker: str = ""
    needs: frozenset[Need] = frozenset()
    task: Task = "search"
    ours: bool = False

    def __post_init__(self) -> None:
        if bool(self.ranker) == bool(self.index):
            raise ConfigError(f"The system {self.name!r} needs either settings of an index, or a ranker; not both.")

    @property
    def generates(self) -> bool:
        """Whether it generates Semantic IDs."""
        return not self.ranker

    @property
    def objective(self) -> str:
        """What its training adds to the generation loss."""
        return self.train.get("model", {}).get("objective", "base")


_HOMES = ("bm25", "dense", "dpr", "laser", "dsi_naive", "dsi_semantic", "tiger", "hi_gen", "ltrgr", "ripor")
_HOMES += ("ripor_index", "cat_id2", "merge", "forge", "hgrec", "calir", "product")

SYSTEMS: Registry[SystemSpec] = Registry(
    "system",
    group="systems",
    homes=tuple(f"restd.systems.{home}" for home in _HOMES),
)
"""Every system that is installed; `restd list systems` prints it."""
