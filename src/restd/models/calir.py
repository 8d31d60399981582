"""CaLIR: latent steps before the first code, each supervised by a category head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.artifacts import Artifact
from restd.artifacts.store import Writer
from restd.config import plain
from restd.data.categories import Categories
from restd.encode import Inputs, Ragged
from restd.errors import ConfigError
from restd.models.calir_losses import CategoryLoss
from restd.models.categories import CategorySettings
from restd.models.contract import Backbone, Memory, Output, TrainingPairs, seeded, to_arrays
from restd.models.decode_protocol import Normalizer, Stepper
from restd.models.registry import BACKBONES, BackboneKind, BuildContext, ModelConfig


@dataclass(frozen=True, slots=True)
class CalirConfig:
    """Settings of CaLIR; defaults are the paper's.

    Args:
        body: the network that reads and decodes: `t5` or `compact`, with the settings of the section of that name.
        depth: latent steps, and depths of the categories that supervise them.
        dropout: dropout in the category heads.
        branching: clusters inside clusters, for a catalogue without categories.
    """

    body: str = "t5"
    depth: int = 3
    dropout: float = 0.1
    branching: tuple[int, ...] = (16, 8, 4)

    def __post_init__(self) -> None:
        bodies = [kind.name for kind in BACKBONES.entries() if kind.latent_steps]
        if self.body not in bodies:
            names = " or ".join(bodies)
            raise ConfigError(f"calir.body must be a backbone with latent steps ({names}), got {self.body!r}.")
        if self.depth < 1 or len(self.branching) < self.depth:
            raise ConfigError(
                "calir.depth must be at least 1, and calir.branching must have a number of clusters for each depth; "
                f"got depth {self.depth} and branching {self.branching}."
            )


class CategoryHeads(nn.Module):
    """A head for each latent step; the rows of its last layer are the prototypes of the step's categories."""

    def __init__(self, width: int, counts: Sequence[int], *, dropout: float, seed: int) -> None:
        super().__init__()
        with seeded(seed):
            self.project = nn.ModuleList(
                nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(dropout))
                for _ in counts
            )
            self.classify = nn.ModuleList(nn.Linear(width, count) for count in counts)

    def embed(self, latents: Float[Tensor, "row step width"]) -> list[Float[Tensor, "row width"]]:
        """What each step says, where prototypes live."""
        return [project(latents[:, step]) for step, project in enumerate(self.project)]

    def prototypes(self) -> list[Float[Tensor, "_ width"]]:
        """Where each step's categories stand."""
        return [cast(nn.Linear, classify).weight for classify in self.classify]

    def scores(self, embedded: Sequence[Float[Tensor, "row width"]]) -> list[Float[Tensor, "row _"]]:
        """Scores over the categories of each step's depth."""
        return [classify(points) for classify, points in zip(self.classify, embedded, strict=True)]


class CalirBackbone(Backbone):
    """A body with latent steps, and category heads that supervise and route.

    The last latent state predicts the first code. Without the category losses, one latent step is the plain body.
    """

    kind = "calir"

    def __init__(self, body: Backbone, categories: Categories, config: CalirConfig, *, seed: int) -> None:
        super().__init__(body.sizes, body.width, config, ends=body.ends)
        if body.config.steps != config.depth or categories.depth != config.depth:
            raise ConfigError(
                f"CaLIR's body must have as many latent steps, and the categories as many depths, as calir.depth "
                f"({config.depth}); got {body.config.steps} latent steps and categories of {categories.depth} depths."
            )
        self.categories = categories
        self.body = body
        self.heads = CategoryHeads(body.width, categories.counts, dropout=config.dropout, seed=seed)

    @property
    def rates(self) -> dict[str, float]:
        """The body's."""
        return {f"body.{name}": rate for name, rate in self.body.rates.items()}

    @property
    def unused_parameters(self) -> bool:
        """The body's."""
        return self.body.unused_parameters

    def start_continuation(self) -> None:
        """Freeze the category heads, as the paper's continuation does."""
        self.heads.requires_grad_(False)

    def extra_loss(self, pairs: TrainingPairs, settings: CategorySettings) -> CategoryLoss:
        """L_HSR and L_QRE."""
        assert self.categories is not None
        return CategoryLoss(self.heads, self.categories, pairs, settings)

    def describe(self) -> dict[str, Any]:
        """The body's description, and CaLIR's own settings."""
        assert self.categories is not None
        own = {"kind": self.kind, "calir": plain(self.config), "induced": self.categories.induced}
        return {**self.body.describe(), **own}

    def write(self, writer: Writer, state: Mapping[str, Tensor], ids: pa.StringArray) -> None:
        """The body, the category heads and the categories of the items."""
        assert self.categories is not None
        writer.tensors("category-heads", to_arrays(_part(state, "heads.", keep=True)))
        self.categories.write(writer, ids)
        self.body.write(writer, _part(state, "body."), ids)

    def prepare(self, texts: Any, *, role: str = "query", cache: Path | None = None) -> Ragged:
        """As the body does."""
        return self.body.prepare(texts, role=role, cache=cache)

    def encode(self, inputs: Inputs) -> Memory:
        """As the body does."""
        return self.body.encode(inputs)

    def states(self, memory: Memory, sids: Int64[Tensor, "row given"]) -> Output:
        """As the body does, latent steps first."""
        return self.body.states(memory, sids)

    def logits(self, states: Float[Tensor, "row level width"]) -> Float[Tensor, "row level code"]:
        """As the body does."""
        return self.body.logits(states)

    def sid_loss(self, output: Output, sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
        """As the body does; the losses of the categories are the trainer's."""
        return self.body.sid_loss(output, sids)

    @property
    def soft_targets(self) -> bool:
        """The body's."""
        return self.body.soft_targets

    def soft_sid_loss(
        self,
        output: Output,
        targets: Float[Tensor, "row level code"],
        *,
        allowed: Bool[Tensor, "row level code"] | None = None,
        weights: Float[Tensor, "position"] | None = None,
    ) -> Float[Tensor, ""]:
        """As the body does."""
        return self.body.soft_sid_loss(output, targets, allowed=allowed, weights=weights)

    def route(self, memory: Memory, *, width: int) -> Int64[Tensor, "row width"] | None:
        """The likeliest deepest categories; None for a width of 0, which is the whole catalogue."""
        if width < 1:
            return None
        nothing = torch.zeros(len(memory.mask), 0, dtype=torch.int64, device=memory.mask.device)
        latents = self.states(memory, nothing).latents
        assert latents is not None
        scores = self.heads.scores(self.heads.embed(latents))[-1]
        return scores.topk(min(width, scores.shape[1])).indices

    def stepper(self, *, normalizer: Normalizer = "full_vocab") -> Stepper:
        """As the body does; its latent steps come first."""
        return self.body.stepper(normalizer=normalizer)


def _part(state: Mapping[str, Tensor], prefix: str, *, keep: bool = False) -> dict[str, Tensor]:
    """Weights whose names start with a prefix, without it unless it is to be kept."""
    return {name if keep else name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}


def _make(config: ModelConfig, context: BuildContext) -> CalirBackbone:
    own = config.section("calir")
    body = config.section(own.body)
    if body.steps not in (0, own.depth):
        raise ConfigError(
            f"{own.body}.steps = {body.steps} contradicts calir.depth = {own.depth}: CaLIR ties latent steps to the "
            "depth of its categories; set calir.depth alone."
        )
    if context.categories is None:
        raise ConfigError("CaLIR needs categories of the items. Pass the catalogue's, or induce them.")
    categories = context.categories(own.depth, own.branching[: own.depth])
    inner = BACKBONES[own.body].make(config.with_section(own.body, replace(body, steps=own.depth)), context)
    return CalirBackbone(inner, categories, own, seed=context.seed)


def _read(artifact: Artifact, description: Mapping[str, Any]) -> CalirBackbone:
    body = BACKBONES[description["body"]].read(artifact, description)
    categories, ids = Categories.read(artifact, induced=description["induced"])
    settings = {**description["calir"], "branching": tuple(description["calir"]["branching"])}
    backbone = CalirBackbone(body, categories, CalirConfig(**settings), seed=0)
    heads = {name: torch.from_numpy(value) for name, value in artifact.tensors("category-heads").items()}
    backbone.load_state_dict(heads, strict=False)
    backbone.category_ids = ids
    return backbone


BACKBONES.add(
    BackboneKind(
        name="calir",
        summary="Latent steps supervised by item categories, on T5 or the compact decoder; searches likely categories.",
        config=CalirConfig,
        task="search",
        make=_make,
        read=_read,
        body=lambda config: config.body,
        routes=True,
        source="Category-guided Latent Intent Reasoning, the retriever of the ResTD paper",
    )
)
