"""Weights of a hybrid search: fitted on validation queries, or fixed where there are none."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from restd.artifacts import create, open_artifact
from restd.errors import ArtifactError, ConfigError, RestdError
from restd.index import SidIndex
from restd.search.candidates import GENERATOR, HEADS
from restd.snapshot import Companion

logger = logging.getLogger(__name__)
FOLDER = "fusion"
KIND = "fusion"
SCHEMA = 1
FIXED = {GENERATOR: 1.0, "bm25": 1.0, "dense": 0.5, "latent": 0.5, HEADS: 0.5, "popularity": 0.0, "match": 0.25}
"""Weights where nothing was fitted: generator and words alike, everything embedded together as much again."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """How a hybrid search weighs its parts.

    Args:
        weights: of every part; 0 for a part that adds nothing, which is then not even computed.
        layout: sizes and codebook hash of the index that the weights were fitted for; empty for fixed weights.
        model: content hash of the model that they were fitted for; empty for fixed weights.
        report: what fitting measured, for `restd fit`, the card and the docs.
    """

    weights: Mapping[str, float]
    layout: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bad = {part: weight for part, weight in self.weights.items() if not 0 <= weight < float("inf")}
        if bad:
            raise ConfigError(f"Weights of a hybrid search must be finite and at least 0, got {bad}.")
        if not any(self.weights.values()):
            raise ConfigError("All weights of the hybrid search are 0; expected at least one above 0.")

    @classmethod
    def fixed(cls, parts: Sequence[str]) -> "Fusion":
        """Weights for parts that nothing was fitted for."""
        return cls({part: FIXED.get(part, 0.5) for part in parts})

    @property
    def is_fitted(self) -> bool:
        """Whether validation queries chose the weights."""
        return bool(self.report)

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts that have a say."""
        return tuple(part for part, weight in self.weights.items() if weight)

    @classmethod
    def beside(cls, model: Path, index: SidIndex, *, content: str) -> "Fusion":
        """The weights that were fitted for a model, or fixed ones for a few parts where none were.

        Args:
            model: folder that the weights are in.
            index: what is searched.
            content: content hash of the model.
        """
        if not (model / FOLDER).is_dir():
            return cls.fixed([GENERATOR, "bm25", "dense"])
        fusion = cls.load(model / FOLDER)
        fusion.refuse_other(index, model=content)
        return fusion

    def with_available(self, make: Callable[[str], Companion]) -> "tuple[Fusion, list[Companion]]":
        """The companions that have a say; one that cannot be made is left out with a warning, and its weight is 0."""
        companions, weights = [], dict(self.weights)
        for part in self.parts:
            if part in (GENERATOR, HEADS):
                continue
            try:
                companions.append(make(part))
            except RestdError as error:
                logger.warning("Hybrid search without %s: %s", part, error)
                weights[part] = 0.0
        if not any(weights.values()):
            weights[GENERATOR] = 1.0
        return replace(self, weights=weights), companions

    def refuse_other(self, index: SidIndex, *, model: str) -> None:
        """Refuse an index of other codebooks, or another model, than the weights were fitted for."""
        if self.layout and self.layout != index.layout():
            raise ArtifactError(
                "The weights of the hybrid search were fitted for an index with other codebooks or levels; run "
                "restd fit again."
            )
        if self.model and model and self.model != model:
            raise ArtifactError(
                f"The weights of the hybrid search were fitted for the model {self.model[:8]}, but this one is "
                f"{model[:8]}; run restd fit again."
            )

    def save(self, folder: Path) -> None:
        """Write the weights and what fitting measured."""
        settings = {
            "weights": dict(self.weights),
            "layout": dict(self.layout),
            "model": self.model,
            "report": dict(self.report),
        }
        with create(folder, kind=KIND, schema=SCHEMA, settings=settings):
            pass

    @classmethod
    def load(cls, folder: Path) -> "Fusion":
        """Open what `save` wrote."""
        settings = open_artifact(folder, kind=KIND, schema=SCHEMA).manifest.settings
        return cls(**{name: settings[name] for name in ("weights", "layout", "model", "report")})
