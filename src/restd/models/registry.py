"""Backbones by name: what training, search and the command line need to know of each kind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import CoreSchema, core_schema

from restd.artifacts import Artifact
from restd.config import plain, read_section
from restd.data import Task
from restd.data.categories import Categories
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.models.contract import Backbone
from restd.registry import Registry


@dataclass(frozen=True, slots=True, eq=False)
class BuildContext:
    """What a new backbone may be built from, besides its settings.

    Args:
        index: whose Semantic IDs it will generate.
        seed: random seed of its first weights.
        folder: where `restd index` put the index; an encoder that was fitted to the catalogue is there.
        texts: reads texts to train a new tokenizer on; called only by a backbone that needs them.
        categories: gives the categories of the index's items, by depth and, for a catalogue without any, by the
            number of clusters at each depth; called only by a backbone that needs them.
    """

    index: SidIndex
    seed: int
    folder: Path | None = None
    texts: Callable[[], Sequence[str]] = tuple
    categories: Callable[[int, tuple[int, ...]], Categories] | None = None


@dataclass(frozen=True, slots=True)
class BackboneKind:
    """An entry of `BACKBONES`.

    Args:
        name: name of the backbone, and of its section of settings.
        summary: one sentence that says what it is.
        config: frozen dataclass of its settings.
        task: what it answers: texts (`search`) or histories (`recommend`).
        make: builds one with first weights.
        read: builds one from an artefact and the description in its manifest, as `Backbone.describe` gave it.
        base_training: settings of [train] for training from scratch, where they differ from the defaults.
        continued_training: the same for a run that continues from a trained model.
        body: for a backbone that is built around another: the other's name, from the settings.
        latent_steps: whether its settings have `steps`, latent steps before the first code.
        routes: whether it knows categories, as `Backbone.routes` says of a model that was built.
        source: the paper it is from; empty for our own.
    """

    name: str
    summary: str
    config: type[Any]
    task: Task
    make: "Callable[[ModelConfig, BuildContext], Backbone]"
    read: Callable[[Artifact, Mapping[str, Any]], Backbone]
    base_training: Mapping[str, Any] = field(default_factory=dict)
    continued_training: Mapping[str, Any] = field(default_factory=dict)
    body: Callable[[Any], str] | None = None
    latent_steps: bool = False
    routes: bool = False
    source: str = ""


BACKBONES: Registry[BackboneKind] = Registry("backbone", group="backbones")
"""Every backbone that is installed; `restd list backbones` prints it."""


@dataclass(frozen=True, init=False)
class ModelConfig:
    """Which backbone, and the settings of each section; sections that are left out have their defaults.

    >>> from restd.models import CompactConfig
    >>> config = ModelConfig("compact", compact=CompactConfig(width=64))
    >>> config.section("compact").width, config.task
    (64, 'search')
    """

    backbone: str
    sections: Mapping[str, Any]

    def __init__(self, backbone: str = "compact", sections: Mapping[str, Any] | None = None, **configs: Any) -> None:
        sections = {**(sections or {}), **configs}
        for name, config in {backbone: None, **sections}.items():
            expected = BACKBONES[name].config
            if config is not None and type(config) is not expected:
                raise ConfigError(
                    f"Expected the settings of {name} as {expected.__name__}, got {type(config).__name__}."
                )
        # a section with its defaults is the same as none, so that configurations compare by what they mean
        others = {name: config for name, config in sections.items() if config != BACKBONES[name].config()}
        object.__setattr__(self, "backbone", backbone)
        object.__setattr__(self, "sections", others)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let runs in other processes receive it: a read-only mapping cannot be sent as it is."""
        return ModelConfig, (self.backbone, dict(self.sections))

    @classmethod
    def read(cls, backbone: str, sections: Mapping[str, Mapping[str, Any]]) -> "ModelConfig":
        """Build from plain values, as TOML files and `--set` give them; sections of no backbone are ignored."""
        configs = {
            kind.name: read_section(kind.config, sections[kind.name], section=kind.name)
            for kind in BACKBONES.entries()
            if kind.name in sections
        }
        return cls(backbone, configs)

    def section(self, name: str) -> Any:
        """The settings of one backbone."""
        return self.sections[name] if name in self.sections else BACKBONES[name].config()

    def with_section(self, name: str, config: Any) -> "ModelConfig":
        """The same with other settings of one backbone."""
        return ModelConfig(self.backbone, {**self.sections, name: config})

    @property
    def kind(self) -> BackboneKind:
        """The backbone's entry in the registry."""
        return BACKBONES[self.backbone]

    @property
    def task(self) -> Task:
        """What it answers: texts (`search`) or histories (`recommend`)."""
        return self.kind.task

    @property
    def body(self) -> str:
        """Name of the network that reads and decodes: the backbone itself, or the one it is built around."""
        return self.backbone if self.kind.body is None else self.kind.body(self.section(self.backbone))

    @property
    def used(self) -> dict[str, Any]:
        """Settings that matter for this backbone, as plain values."""
        names = sorted({self.body, self.backbone})
        return {"backbone": self.backbone, **{name: plain(self.section(name)) for name in names}}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        """Let pydantic write it as plain values and read it again, as a saved study does."""

        def validate(value: Any) -> "ModelConfig":
            if isinstance(value, ModelConfig):
                return value
            sections = dict(value)
            backbone = sections.pop("backbone")
            for name in sections:
                BACKBONES[name]  # raises for an unknown one
            return cls.read(backbone, sections)

        def serialize(config: "ModelConfig") -> dict[str, Any]:
            return {**{name: plain(section) for name, section in config.sections.items()}, **config.used}

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.plain_serializer_function_ser_schema(serialize)
        )


def make_backbone(config: ModelConfig, context: BuildContext) -> Backbone:
    """Build a backbone with first weights."""
    backbone = config.kind.make(config, context)
    if backbone.ends != context.index.ends:
        raise ConfigError(
            f"The Semantic IDs of this index are of unequal length, and the backbone {backbone.kind} does not know "
            "that a code can end them. Choose another backbone, or let it pass ends=index.ends to Backbone and learn "
            "nothing behind the end (Backbone.learned)."
        )
    return backbone


def default_backbone(task: Task) -> str:
    """Name of the backbone for a task when none is named: the first that is registered for it.

    >>> default_backbone("search"), default_backbone("recommend")
    ('compact', 'tiger')
    """
    return backbones_for(task)[0]


def backbones_for(task: Task) -> tuple[str, ...]:
    """Names of the backbones for a task."""
    return tuple(kind.name for kind in BACKBONES.entries() if kind.task == task)


def kind_of(description: Mapping[str, Any]) -> BackboneKind:
    """The kind of a saved model, from the description in its manifest.

    Manifests written before kinds had names say only which network reads and decodes, and have CaLIR's settings where
    it is CaLIR.
    """
    before = "calir" if "calir" in description else description["body"]
    return BACKBONES[description.get("kind", before)]
