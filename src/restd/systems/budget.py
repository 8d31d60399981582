"""What all systems of a comparison share: training length, batch, size of the backbone, pairs, size of the codes."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from restd.config import merge, parse_settings
from restd.errors import ConfigError
from restd.models import BACKBONES
from restd.quantize import QUANTIZERS
from restd.rankers import ranker_sections, split_name
from restd.systems.registry import Sections, SystemSpec
from restd.train.configure import SECTIONS

BUDGETS = "budgets"
QUANTIZER = "quantizer"
"""Section of settings for whichever quantiser a system has; what the system itself states wins over it."""
_ABOUT = "budget"
_TRAINING = tuple(name for name in SECTIONS if name not in ("model", "train", "base", "continuation"))
_CHOICES = {"index": ("encoder",), "align": ("epochs", "batch", "pseudo_queries")}
"""Settings of sections that choose parts of a system: a budget may only change how much these parts cost."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Settings that are the same for every system, by section.

    Args:
        name: of the file, without its suffix.
        summary: what it is for, and what it costs.
        sections: settings as plain values; they win over those of a system, except for [quantizer].
    """

    name: str
    summary: str
    sections: Sections

    def __post_init__(self) -> None:
        known = (QUANTIZER, *_CHOICES, *QUANTIZERS, "train", *_TRAINING, *BACKBONES, *ranker_sections())
        for section, values in self.sections.items():
            if section not in known:
                raise ConfigError(f"Unknown section [{section}] of the budget {self.name}. Known: {', '.join(known)}.")
            for name in values:
                if section in _CHOICES and name not in _CHOICES[section]:
                    raise ConfigError(
                        f"[{section}] {name} of the budget {self.name} would change what a system is, not what it "
                        f"costs. Of this section a budget may have: {', '.join(_CHOICES[section])}."
                    )
        common = {field.name for kind in QUANTIZERS.entries() for field in fields(kind.config)}
        for name in self.sections.get(QUANTIZER, {}):
            if name not in common:
                raise ConfigError(
                    f"No quantiser has the setting {name!r} that [{QUANTIZER}] of the budget {self.name} has. Some "
                    f"quantiser has: {', '.join(sorted(common))}."
                )

    def with_settings(self, settings: Iterable[str]) -> "Budget":
        """The same with settings of the form `section.name=value` on top."""
        return Budget(self.name, self.summary, merge(self.sections, parse_settings(settings)))

    def with_lengths(self, *, epochs: int | None = None, updates: int | None = None) -> "Budget":
        """The same with another length of training; without either, the same."""
        lengths = {name: value for name, value in (("epochs", epochs), ("updates", updates)) if value is not None}
        if not lengths:
            return self
        rest = {name: value for name, value in self.train_options.items() if name not in ("epochs", "updates")}
        return Budget(self.name, self.summary, {**self.sections, "train": {**rest, **lengths}})

    def index_sections(self, spec: SystemSpec) -> dict[str, dict[str, Any]]:
        """Sections of a system's index under this budget; those of quantisers that it does not use are left out."""
        chosen = spec.index.get("index", {}).get("quantizer", "kmeans")
        settings = {field.name for field in fields(QUANTIZERS[chosen].config)}
        common = {name: value for name, value in self.sections.get(QUANTIZER, {}).items() if name in settings}
        own = {name: values for name, values in self.sections.items() if name in ("index", "align", chosen)}
        merged = merge({chosen: common}, spec.index, own)
        return {name: values for name, values in merged.items() if name == chosen or name not in QUANTIZERS}

    def ranker_sections(self, spec: SystemSpec) -> dict[str, dict[str, Any]]:
        """Settings of a system that is a ranker, under this budget."""
        own = split_name(spec.ranker)[0]
        return merge(spec.train, {name: values for name, values in self.sections.items() if name == own})

    def train_sections(self, spec: SystemSpec) -> dict[str, dict[str, Any]]:
        """Sections of a system's training under this budget; [train] is `train_options`."""
        own = {name: values for name, values in self.sections.items() if name in (*_TRAINING, *BACKBONES)}
        return merge(spec.train, own)

    @property
    def train_options(self) -> Mapping[str, Any]:
        """Settings of [train]: length, batch and pairs of every system that is trained."""
        return self.sections.get("train", {})


def read_budget(name: str) -> Budget:
    """Read a budget: a TOML file, or the name of one inside the package.

    >>> read_budget("tiny").train_options["batch"]
    64
    """
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        text = path.read_text(encoding="utf-8")
    else:
        folder = resources.files("restd") / BUDGETS
        if name not in (known := budget_names()):
            raise ConfigError(f"The budget {name!r} is neither a .toml file nor one of: {', '.join(known)}.")
        text = (folder / f"{name}.toml").read_text(encoding="utf-8")
    try:
        sections = merge(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The budget {name} is not valid TOML: {error}.") from error
    about = sections.pop(_ABOUT, {})
    if set(about) - {"summary"}:
        raise ConfigError(f"[{_ABOUT}] of {name} may only have a summary; it has: {', '.join(about)}.")
    return Budget(path.stem, str(about.get("summary", "")), sections)


def budget_names() -> list[str]:
    """Names of the budgets inside the package."""
    folder = resources.files("restd") / BUDGETS
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
