"""From sections of plain values, as recipes and `--set` give them, to the settings of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from restd.config import read_section
from restd.errors import ConfigError
from restd.models import BACKBONES, CategorySettings, ModelConfig, backbones_for, kind_of, read_description
from restd.train.config import DistillSettings, RunConfig, TrainConfig, default_training
from restd.train.rank_settings import RankSettings

SECTIONS = ("model", "train", "base", "continuation", "distill", "category", "rank")
"""Besides one section per backbone; [base] and [continuation] are [train] for runs without and with a first model."""
_LENGTHS = ("epochs", "updates")


@dataclass(frozen=True, slots=True)
class _ModelSection:
    """The section [model]."""

    backbone: str = "compact"
    objective: str = "base"


def configure_run(
    sections: Mapping[str, Mapping[str, Any]],
    *,
    options: Mapping[str, Any] | None = None,
    task: str | None = None,
    continued_from: Path | None = None,
    user: str = "restd train",
) -> tuple[ModelConfig, RunConfig]:
    """Combine the backbone's defaults, sections and settings of [train] that override them.

    >>> model, config = configure_run({"compact": {"width": 64}, "train": {"epochs": 2}}, options={"updates": 9})
    >>> model.section("compact").width, config.train.updates, config.train.epochs
    (64, 9, 0)

    Args:
        sections: settings by section, as plain values.
        options: settings of [train] that override all others; `epochs` or `updates` replaces whichever the sections
            have.
        task: what the model must be for; None for what its backbone is for.
        continued_from: the model that the run continues from.
        user: who reads the sections, for errors.
    """
    for section in sections:
        if section not in (known := (*SECTIONS, *BACKBONES)):
            raise ConfigError(f"Unknown section [{section}] for {user}. Known: {', '.join(known)}.")
    options = dict(options or {})
    model_section = read_section(_ModelSection, sections.get("model", {}), section="model")
    model = ModelConfig.read(model_section.backbone, sections)
    saved = None if continued_from is None else read_description(continued_from)
    own = model.task if saved is None else kind_of(saved).task
    if task is not None and task != own:
        subject = f"The backbone {model.backbone}" if saved is None else f"The model in {continued_from}"
        others = ", ".join(backbones_for("recommend" if task == "recommend" else "search"))
        raise ConfigError(f"{subject} is for {own}, not for {task}. Backbones for {task}: {others}.")
    mode = "base" if continued_from is None else "continuation"
    body = model.body if saved is None else saved["body"]
    values = {**sections.get(mode, {}), **sections.get("train", {}), **options}
    lengths = {length: 0 for length in _LENGTHS if length not in values}
    if options.keys() & set(_LENGTHS):
        lengths = {length: 0 for length in _LENGTHS if length not in options}
        values = {name: value for name, value in values.items() if name not in lengths}
    defaults = default_training(body, continued=continued_from is not None)
    values = {**defaults, **(lengths if len(lengths) < 2 else {}), **values}
    config = RunConfig(
        objective=model_section.objective,
        train=read_section(TrainConfig, values, section="train"),
        distill=read_section(DistillSettings, sections.get("distill", {}), section="distill"),
        category=read_section(CategorySettings, sections.get("category", {}), section="category"),
        rank=read_section(RankSettings, sections.get("rank", {}), section="rank"),
    )
    return model, config
