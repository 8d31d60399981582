"""Settings of an index: which encoder, quantiser and collision policy, and the settings of each quantiser."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from restd.config import read_section
from restd.errors import ConfigError
from restd.index.policies import CAPACITY, POLICIES
from restd.quantize import QUANTIZERS, AlignConfig, QuantizerConfig, SchemeConfig


@dataclass(frozen=True)
class IndexChoices:
    """The section [index].

    Args:
        encoder: `auto` (by language), a name of `restd list encoders`, or the hub id or folder of a
            sentence-transformers model.
        quantizer: a name of `restd list quantizers`; its own settings are in the section of that name.
        policy: a name of `restd list policies`: what to do with items that get the same codes.
        balanced: assign codes so that all codes of a level are used about equally often, at some cost in error.
        capacity: items that may share a Semantic ID; for the policy `capacity` alone, which takes 5 by default.
    """

    encoder: str = "auto"
    quantizer: str = "kmeans"
    policy: str = "single_substitution"
    balanced: bool = False
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class ShapeConfig:
    """The section [shape]: whether width, levels and codes are as stated, or chosen by measurement.

    Args:
        mode: `explicit` takes them from the quantiser's section; `auto` tries those below on validation queries.
        widths: widths of the latents to try, at most that of the embeddings.
        levels: numbers of levels to try.
        codes: codes per level to try, at most a quarter of the items.
        tolerance: the cheapest shape is chosen whose figure is at most this share below the best.
        sample: try on at most this many items.
    """

    mode: Literal["explicit", "auto"] = "explicit"
    widths: tuple[int, ...] = (32, 64, 128)
    levels: tuple[int, ...] = (4, 6, 8)
    codes: tuple[int, ...] = (32, 64, 128, 256)
    tolerance: float = 0.03
    sample: int = 20_000

    def __post_init__(self) -> None:
        for name, least in (("widths", 1), ("levels", 1), ("codes", 2)):
            values = getattr(self, name)
            if not values or min(values) < least:
                raise ConfigError(f"shape.{name} must be numbers of at least {least} each, got {list(values)}.")
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"shape.tolerance must be at least 0 and below 1, got {self.tolerance}.")
        if self.sample < 2:
            raise ConfigError(f"shape.sample must be at least 2, got {self.sample}.")


@dataclass(frozen=True, init=False)
class IndexConfig(IndexChoices):
    """How to make an index; defaults are the paper's four levels of residuals of width 32.

    Settings of a quantiser are passed by its name; those that are left out have their defaults.

    >>> from restd.quantize import KMeansConfig
    >>> config = IndexConfig(encoder="tfidf-svd", kmeans=KMeansConfig(levels=3))
    >>> config.fit.levels, config.section("rqvae").levels
    (3, 4)
    """

    sections: Mapping[str, Any]
    align: AlignConfig
    shape: ShapeConfig

    def __init__(
        self,
        encoder: str = IndexChoices.encoder,
        quantizer: str = IndexChoices.quantizer,
        policy: str = IndexChoices.policy,
        balanced: bool = IndexChoices.balanced,
        capacity: int | None = IndexChoices.capacity,
        sections: Mapping[str, Any] | None = None,
        align: AlignConfig | None = None,
        shape: ShapeConfig | None = None,
        **configs: Any,
    ) -> None:
        super().__init__(encoder, quantizer, policy, balanced, capacity)
        sections = {**(sections or {}), **configs}
        for name, config in {quantizer: None, **sections}.items():
            expected = QUANTIZERS[name].config
            if config is not None and type(config) is not expected:
                raise ConfigError(
                    f"Expected the settings of {name} as {expected.__name__}, got {type(config).__name__}."
                )
        bounded = POLICIES[policy].bounded  # an unknown name is an error now, not after an hour of encoding
        if capacity is not None and not bounded:
            raise ConfigError(
                f"index.capacity = {capacity} has no effect with the policy {policy}; choose --policy capacity, or "
                "remove the setting."
            )
        if capacity is not None and capacity < 1:
            raise ConfigError(f"index.capacity must be at least 1, got {capacity}.")
        object.__setattr__(self, "sections", MappingProxyType(sections))
        object.__setattr__(self, "align", align or AlignConfig())
        object.__setattr__(self, "shape", shape or ShapeConfig())

    def __reduce__(self) -> tuple[Any, ...]:
        """Let builds in other processes receive it: a read-only mapping cannot be sent as it is."""
        parts = {
            name: getattr(self, name) for name in (*(field.name for field in fields(IndexChoices)), "align", "shape")
        }
        return _rebuilt, ({**parts, "sections": dict(self.sections)},)

    @classmethod
    def read(cls, sections: Mapping[str, Mapping[str, Any]]) -> "IndexConfig":
        """Build from plain values by section, as TOML files and `--set` give them."""
        for name in sections:
            if name not in (known := ("index", "align", "shape", *QUANTIZERS)):
                raise ConfigError(f"Unknown section [{name}] for an index. Known: {', '.join(known)}.")
        choices = read_section(IndexChoices, sections.get("index", {}), section="index")
        configs = {
            name: read_section(QUANTIZERS[name].config, values, section=name)
            for name, values in sections.items()
            if name not in ("index", "align", "shape")
        }
        align = read_section(AlignConfig, sections.get("align", {}), section="align")
        shape = read_section(ShapeConfig, sections.get("shape", {}), section="shape")
        return cls(**asdict(choices), sections=configs, align=align, shape=shape)

    def section(self, name: str) -> Any:
        """Settings of one quantiser."""
        return self.sections[name] if name in self.sections else QUANTIZERS[name].config()

    @property
    def room(self) -> int | None:
        """Items that may share a SID; None where the policy does not bound them."""
        return (self.capacity or CAPACITY) if POLICIES[self.policy].bounded else None

    @property
    def settings(self) -> SchemeConfig:
        """Settings of the quantiser or other identifier scheme in use."""
        return self.section(self.quantizer)

    @property
    def fit(self) -> QuantizerConfig:
        """Settings of the quantiser in use; for one that has latents and codebooks."""
        return self.section(self.quantizer)


def _rebuilt(parts: dict[str, Any]) -> IndexConfig:
    """The configuration that `__reduce__` took apart."""
    return IndexConfig(**parts)


def with_shape(
    config: IndexConfig,
    *,
    levels: int | None = None,
    codes: int | tuple[int, ...] | None = None,
    dim: int | None = None,
    seed: int | None = None,
) -> IndexConfig:
    """Set what quantisers have in common, for each that has such a setting; the one in use must have it.

    >>> with_shape(IndexConfig(), codes=64).fit.codes
    64
    """
    options = {"levels": levels, "codes": codes, "dim": dim, "seed": seed}
    changes = {name: value for name, value in options.items() if value is not None}
    own = [field.name for field in fields(QUANTIZERS[config.quantizer].config)]
    if unknown := [name for name in changes if name not in own]:
        raise ConfigError(
            f"The quantiser {config.quantizer} has no {unknown[0]}, so --{unknown[0]} has no effect. Remove it; its "
            f"settings are: {', '.join(f'{config.quantizer}.{name}' for name in own)}."
        )
    return replace(config, sections={name: _with_known(config.section(name), changes) for name in QUANTIZERS})


def _with_known(section: Any, changes: Mapping[str, Any]) -> Any:
    """Settings with those of the changes that they have."""
    known = {field.name for field in fields(section)}
    return replace(section, **{name: value for name, value in changes.items() if name in known})


def refuse_unused(config: IndexConfig, *, policy_stated: bool = False) -> None:
    """Refuse settings that a scheme without latents and codebooks would ignore.

    Args:
        config: of the index.
        policy_stated: whether the policy was chosen rather than left at its default.
    """
    if QUANTIZERS[config.quantizer].has_geometry:
        return
    ignored = {
        "a shape by measurement (--shape auto)": config.shape.mode == "auto",
        "alignment (align.enabled = on)": config.align.enabled == "on",
        "balanced codes (--balanced)": config.balanced,
        f"a collision policy (--policy {config.policy})": policy_stated or config.policy != IndexChoices.policy,
    }
    if stated := [what for what, is_stated in ignored.items() if is_stated]:
        raise ConfigError(
            f"{config.quantizer} makes identifiers without latents and codebooks, so {stated[0]} has no effect. Remove "
            "it, or choose another quantiser, such as kmeans."
        )
