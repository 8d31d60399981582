"""CaLIR: latent steps before the first code, each told by a category head what it should be thinking of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.encode import Inputs, Ragged
from restd.errors import ConfigError
from restd.models.categories import Categories
from restd.models.compact import CompactBackbone
from restd.models.contract import Memory, Output, seeded
from restd.models.decoding import Normalizer, Stepper
from restd.models.t5 import T5Backbone

_ROUTED = 64


@dataclass(frozen=True, slots=True)
class CalirConfig:
    """Settings of CaLIR; defaults are the paper's.

    Args:
        body: the network that reads and decodes: `t5` or `compact`, with the settings of the section of that name.
        depth: latent steps, and depths of the categories that supervise them.
        dropout: in the category heads.
        branching: clusters inside clusters, for a catalogue without categories.
    """

    body: str = "t5"
    depth: int = 3
    dropout: float = 0.1
    branching: tuple[int, ...] = (16, 8, 4)

    def __post_init__(self) -> None:
        if self.body not in ("t5", "compact"):
            raise ConfigError(f"CaLIR's body {self.body!r} is unknown; wanted t5 or compact.")
        if self.depth < 1 or len(self.branching) < self.depth:
            raise ConfigError(
                f"A depth of {self.depth} with branching {self.branching} cannot be used; wanted a depth of at least 1 "
                "and a number of clusters for each depth."
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
        return [classify(held) for classify, held in zip(self.classify, embedded, strict=True)]


@dataclass(frozen=True, slots=True)
class CachedRoutes:
    """Categories of queries as one model chose them, for models whose own choice should not matter."""

    of_query: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, backbone: "CalirBackbone", queries: Sequence[str], *, width: int) -> "CachedRoutes":
        """Route queries with a model as it is now."""
        return cls(dict(zip(queries, map(tuple, route_texts(backbone, queries, width=width).tolist()), strict=True)))

    def route(self, queries: Sequence[str]) -> Int64[np.ndarray, "query width"]:
        """Look queries up; one that was not routed is an error."""
        for query in queries:
            if query not in self.of_query:
                raise ConfigError(f"Query {query!r} has no cached route; route it with the model the cache came from.")
        return np.array([self.of_query[query] for query in queries], np.int64)


class CalirBackbone(nn.Module):
    """A body with latent steps, and category heads that supervise and route.

    The last latent state predicts the first code. Without the category losses, one latent step is the plain body.
    """

    def __init__(
        self, body: T5Backbone | CompactBackbone, categories: Categories, config: CalirConfig, *, seed: int
    ) -> None:
        super().__init__()
        if body.config.steps != config.depth or categories.depth != config.depth:
            raise ConfigError(
                f"A body of {body.config.steps} latent steps and categories of {categories.depth} depths were given; "
                f"CaLIR ties both to its depth, {config.depth}."
            )
        self.config, self.table = config, categories
        self.ids: pa.StringArray | None = None
        """Items whose categories these are; unset, those of the index it is trained for, row for row."""
        self.body = body
        self.heads = CategoryHeads(body.width, categories.counts, dropout=config.dropout, seed=seed)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        return self.body.sizes

    @property
    def width(self) -> int:
        """Width of the decoder's states."""
        return self.body.width

    @property
    def rates(self) -> dict[str, float]:
        """The body's."""
        return {f"body.{name}": rate for name, rate in self.body.rates.items()}

    def prepare(self, texts: Sequence[str], *, task: str = "query", cache: Path | None = None) -> Ragged:
        """As the body does."""
        return self.body.prepare(texts, task=task, cache=cache)

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


@torch.inference_mode()
def route_texts(backbone: CalirBackbone, texts: Sequence[str], *, width: int) -> Int64[np.ndarray, "text width"]:
    """Route many texts; the model's mode is put back when done."""
    if width < 1:
        raise ConfigError(f"A category width of {width} routes nowhere; wanted at least 1.")
    was = backbone.training
    backbone.eval()
    device = next(backbone.parameters()).device
    prepared = backbone.prepare(texts)
    found = [np.zeros((0, min(width, backbone.table.counts[-1])), np.int64)]
    for start in range(0, len(texts), _ROUTED):
        inputs = prepared.batch(np.arange(start, min(start + _ROUTED, len(texts)))).to(device)
        routed = backbone.route(backbone.encode(inputs), width=width)
        assert routed is not None
        found.append(routed.cpu().numpy())
    backbone.train(was)
    return np.concatenate(found)
