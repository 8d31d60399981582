"""The index's own geometry inside the decoder: codes are preferred as the query's residual prefers their codewords.

A level's logits get `scale · (2 r·c - |c|²)` added, where `r` is the query's latent less the codewords chosen so far.
With nothing else in the logits, a beam search is a residual search of the query; training goes on from there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from restd.encode import Encoder, same_encoder, states_of
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.models.contract import Output
from restd.quantize import Stage, query_stages

Pooling = Literal["mean", "first"]
_PROBES = ("red steel kettle", "a small oak desk with a glass lamp", "mug")
_ALIKE = 1e-3
_SHARPNESS = 8.0
"""First scale of squared distances, in mean squared lengths of the latents; about 10 for aligned ones."""


@dataclass(frozen=True, slots=True)
class GeometryShape:
    """What must be known to allocate a geometry, before any of its values.

    Args:
        pooling: which mean of the encoder's token states is the embedding that the index was made from.
        stages: of the query's projection: whether inputs are scaled to length one, and the widths of the layers.
    """

    pooling: Pooling
    stages: tuple[tuple[bool, tuple[int, ...]], ...]

    @property
    def dim(self) -> int:
        """Width of the latents."""
        return self.stages[-1][1][-1]

    def describe(self) -> dict[str, Any]:
        """Plain values, for a manifest."""
        return {"pooling": self.pooling, "stages": [[unit, list(widths)] for unit, widths in self.stages]}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "GeometryShape":
        """From what `describe` gave."""
        return cls(values["pooling"], tuple((unit, tuple(widths)) for unit, widths in values["stages"]))


class QueryProjection(nn.Module):
    """From pooled encoder states to a point of the latent space, as the index projects queries."""

    def __init__(self, stages: Sequence[tuple[bool, tuple[int, ...]]]) -> None:
        super().__init__()
        self.unit = [unit for unit, _ in stages]
        self.stages = nn.ModuleList(
            nn.ModuleList(nn.utils.skip_init(nn.Linear, before, after) for before, after in pairwise(widths))
            for _, widths in stages
        )

    @torch.no_grad()
    def fill(self, stages: Sequence[Stage]) -> None:
        """Take the weights of an index."""
        for layers, stage in zip(self.stages, stages, strict=True):
            for layer, weight, bias in zip(cast(nn.ModuleList, layers), stage.weights, stage.biases, strict=True):
                layer = cast(nn.Linear, layer)
                layer.weight.copy_(torch.from_numpy(np.array(weight)))
                layer.bias.copy_(torch.from_numpy(np.array(bias)))

    def forward(self, pooled: Float[Tensor, "row input"]) -> Float[Tensor, "row dim"]:
        """Project."""
        for unit, layers in zip(self.unit, self.stages, strict=True):
            pooled = functional.normalize(pooled, dim=-1) if unit else pooled
            for place, layer in enumerate(cast(nn.ModuleList, layers)):
                pooled = layer(functional.relu(pooled) if place else pooled)
        return pooled


class LatentGeometry(nn.Module):
    """Codewords that stay as they are, a projection of queries that is trained, and a scale for each level.

    Latents and codewords are held in units of the items' own spread, so that a residual is no smaller beside a decoder
    state than the state's own numbers. Levels without a codebook, such as a disambiguation code, have zeros for
    codewords: nothing is added to their logits.

    Args:
        sizes: codes of each stored level.
        shape: of the projection.
    """

    def __init__(self, sizes: tuple[int, ...], shape: GeometryShape) -> None:
        super().__init__()
        self.shape = shape
        self.project = QueryProjection(shape.stages)
        self.log_scale = nn.Parameter(torch.zeros(len(sizes)))
        self.codewords: Tensor
        self.spread: Tensor
        self.register_buffer("codewords", torch.zeros(len(sizes), max(sizes), shape.dim))
        self.register_buffer("spread", torch.ones(()))

    @classmethod
    def of_index(cls, index: SidIndex, encoder: Encoder, *, limit: int) -> "LatentGeometry":
        """Start from the index's own codebooks and projection.

        Args:
            index: whose Semantic IDs will be generated.
            encoder: the one that the index was made with.
            limit: where longer texts are cut.
        """
        latents, codebooks = index.latents_and_codebooks()
        if codebooks.space != "euclidean":
            raise ConfigError(
                "compact.geometry scores codes by straight distances, but the codebooks of this index are of the "
                f"space {codebooks.space}. Leave compact.geometry off, or build an index with a flat quantiser "
                "(kmeans)."
            )
        recorded = index.origin.get("encoder")
        if index.quantizer is None or recorded is None or "file" in recorded or not same_encoder(encoder, recorded):
            raise ConfigError(
                "compact.geometry needs the encoder and the quantiser that made the index's latents, but the index was "
                f"made with {_named(recorded)} and queries are read by {encoder.identity['name']!r}. Build an index "
                "from texts and keep compact.encoder=index, or leave compact.geometry off."
            )
        stages = query_stages(index.quantizer)
        pooling = find_pooling(encoder, limit=limit, unit=stages[0].unit)
        shape = GeometryShape(pooling, tuple((stage.unit, stage.widths) for stage in stages))
        made = cls(index.sizes, shape)
        made.project.fill(stages)
        spread = float(latents.astype(np.float32).std()) or 1.0
        levels, codes, _ = codebooks.values.shape
        with torch.no_grad():
            made.spread.fill_(spread)
            made.codewords[:levels, :codes] = codebooks.values / spread
            made.log_scale.fill_(float(np.log(_SHARPNESS / shape.dim)))
        return made

    def forward(
        self, states: Float[Tensor, "row position input"], mask: Bool[Tensor, "row position"]
    ) -> Float[Tensor, "row dim"]:
        """The query's latent in units of the items' spread, from the encoder's states."""
        return self.project(pool(states, mask, self.shape.pooling)) / self.spread

    def residuals(
        self, latent: Float[Tensor, "row dim"], sids: Int64[Tensor, "row given"]
    ) -> Float[Tensor, "row position dim"]:
        """What none, one, … all of the given codes leave of each latent; of all codes but the last at most."""
        given = sids[:, : len(self.codewords) - 1]
        taken = self.codewords[torch.arange(given.shape[1], device=sids.device), given].cumsum(dim=1)
        return torch.cat([latent[:, None], latent[:, None] - taken], dim=1)

    def beside(self, output: Output, residuals: Float[Tensor, "row position dim"]) -> Output:
        """Put the residual that is left at every state behind it; before the first code it is the latent."""
        latents = output.latents
        if latents is not None:
            latents = torch.cat([latents, residuals[:, :1].expand(-1, latents.shape[1], -1)], dim=-1)
        return Output(torch.cat([output.states, residuals], dim=-1), latents=latents)

    def head(self, levels: int) -> tuple[Float[Tensor, "level code dim"], Float[Tensor, "level code"]]:
        """Weights and biases that score the codes of the first levels by a residual."""
        scale, codewords = self.log_scale[:levels, None].exp(), self.codewords[:levels]
        return 2 * scale[..., None] * codewords, -scale * codewords.square().sum(-1)

    def logits(self, residuals: Float[Tensor, "row level dim"]) -> Float[Tensor, "row level code"]:
        """What is added to the scores of each level's codes."""
        weight, bias = self.head(residuals.shape[1])
        return torch.einsum("rld,lcd->rlc", residuals, weight) + bias


def pool(
    states: Float[Tensor, "row position input"], mask: Bool[Tensor, "row position"], pooling: Pooling
) -> Float[Tensor, "row input"]:
    """One vector for each text; its length does not matter where it is scaled afterwards.

    >>> pool(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]), "mean")
    tensor([[2.]])
    """
    if pooling == "first":
        return states[:, 0]
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp_min(1)


def find_pooling(encoder: Encoder, *, limit: int, unit: bool = True) -> Pooling:
    """Which pooling of an encoder's states gives its embeddings, with `unit` up to their length; tries a few texts."""
    inputs = states_of(encoder, _PROBES, limit=limit).batch(np.arange(len(_PROBES)))
    wanted = torch.from_numpy(np.asarray(encoder.encode(_PROBES), np.float32))
    for pooling in cast(tuple[Pooling, ...], ("mean", "first")):
        pooled = pool(inputs.values, inputs.mask, pooling)
        if pooled.shape == wanted.shape:
            both = [functional.normalize(points, dim=-1) if unit else points for points in (pooled, wanted)]
            if torch.allclose(*both, rtol=_ALIKE, atol=_ALIKE):
                return pooling
    raise ConfigError(
        f"compact.geometry needs an encoder whose embedding is the mean or the first of its token states; that of "
        f"{encoder.identity['name']!r} is neither. Take another encoder, or leave compact.geometry off."
    )


def _named(recorded: Mapping[str, Any] | None) -> str:
    if recorded is None:
        return "an unknown encoder"
    return "vectors of your own" if "file" in recorded else repr(recorded["name"])
