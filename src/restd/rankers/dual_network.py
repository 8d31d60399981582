"""The networks of dual encoders: maps that begin as the identity, pooling and thinking that begin as nothing.

So an untrained network ranks exactly as the frozen encoder under it.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from restd.encode import Inputs, SentenceTransformerEncoder
from restd.rankers.dual_settings import DprConfig, DualConfig, LaserConfig


class View(NamedTuple):
    """What one side becomes."""

    vectors: Float[Tensor, "row dim"]
    steps: Float[Tensor, "row step dim"] | None = None
    """Thinking states of queries, mapped as the vectors are; None where nothing thinks."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Texts as an encoder gives them: vectors, and token states where a network reads them, or the texts themselves."""

    vectors: Float[Tensor, "row dim"] | None = None
    states: Inputs | None = None
    texts: Sequence[str] = ()


class TokenPooling(nn.Module):
    """A mean of token states with learned weights, mapped; nothing at first."""

    def __init__(self, token_dim: int, dim: int) -> None:
        super().__init__()
        self.weigh = nn.Linear(token_dim, 1, bias=False)
        self.project = nn.Linear(token_dim, dim, bias=False)
        for part in (self.weigh, self.project):
            nn.init.zeros_(part.weight)

    def forward(self, inputs: Inputs) -> Float[Tensor, "row dim"]:
        """One vector per text."""
        scores = self.weigh(inputs.values).squeeze(-1)
        weights = scores.masked_fill(~inputs.mask, torch.finfo(scores.dtype).min).softmax(-1)
        return self.project((weights.unsqueeze(-1) * inputs.values).sum(dim=1))


class Thinking(nn.Module):
    """Latent steps from a query's vector: each reads the query's tokens and a soft token of the step before.

    A soft token is the mean of learned prototypes under the softmax of their inner products with the state. The last
    layer begins as zero, so that at first every state is the query's own vector.
    """

    def __init__(
        self, dim: int, token_dim: int, config: LaserConfig, prototypes: Float[Tensor, "prototype dim"]
    ) -> None:
        super().__init__()
        self.count = config.steps
        self.prototypes = nn.Parameter(prototypes.clone())
        self.sharpness = nn.Parameter(torch.tensor([1 / config.temperature]).log())
        self.tokens = nn.Linear(token_dim, dim, bias=False)
        nn.init.eye_(self.tokens.weight)
        self.attend = nn.Linear(dim, dim, bias=False)
        self.hidden = nn.Linear(3 * dim, config.width)
        self.out = nn.Linear(config.width, dim, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, vectors: Float[Tensor, "row dim"], inputs: Inputs) -> Float[Tensor, "row step dim"]:
        """The state after each step."""
        memory = self.tokens(inputs.values)
        states, state = [], vectors
        for _ in range(self.count):
            soft = (self.sharpness.exp() * state @ self.prototypes.T).softmax(-1) @ self.prototypes
            scores = torch.einsum("rd,rpd->rp", self.attend(state), memory) / memory.shape[-1] ** 0.5
            weights = scores.masked_fill(~inputs.mask, torch.finfo(scores.dtype).min).softmax(-1)
            attended = torch.einsum("rp,rpd->rd", weights, memory)
            state = state + self.out(nn.functional.gelu(self.hidden(torch.cat([state, soft, attended], dim=-1))))
            states.append(state)
        return torch.stack(states, dim=1)


class DualNetwork(nn.Module):
    """Both towers over one encoder.

    Args:
        dim: width of the encoder's vectors.
        token_dim: width of its token states.
        config: settings.
        prototypes: first prototypes of soft tokens; needed where the network thinks.
        encoders: of queries and of items, whose copies are trained too where `config` says so.
    """

    def __init__(
        self,
        dim: int,
        token_dim: int,
        config: DualConfig,
        *,
        prototypes: Float[Tensor, "prototype dim"] | None = None,
        encoders: tuple[SentenceTransformerEncoder, SentenceTransformerEncoder] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        of_queries, of_items = config.pooling != "none", config.pooling == "both"
        self.query_map = _identity(dim)
        self.item_map = None if config.shared else _identity(dim)
        self.query_pooling = TokenPooling(token_dim, dim) if of_queries else None
        self.item_pooling = TokenPooling(token_dim, dim) if of_items and not config.shared else None
        self.thinking: Thinking | None = None
        if isinstance(config, LaserConfig) and config.steps:
            assert prototypes is not None
            self.thinking = Thinking(dim, token_dim, config, prototypes)
        self.query_encoder = self.item_encoder = None
        if isinstance(config, DprConfig) and config.tune_encoder:
            assert encoders is not None
            self.query_encoder = deepcopy(encoders[0].network)
            self.item_encoder = None if config.shared else deepcopy(encoders[1].network)
        self._encoders = encoders

    def queries(self, batch: Batch) -> View:
        """Queries, with their thinking states where the network thinks."""
        vectors = self._encoded(batch, self.query_encoder, 0)
        pooled = _pooled(self.query_pooling, batch.states)
        if self.thinking is None or batch.states is None:
            return View(self._scaled(self.query_map(vectors) + pooled))
        states = self.thinking(vectors, batch.states)
        mapped = self.query_map(states)
        return View(self._scaled(mapped.mean(dim=1) + pooled), self._scaled(mapped))

    def explicit(self, batch: Batch) -> Float[Tensor, "row dim"]:
        """Queries with their reasoning written out: read by the same weights, without thinking."""
        vectors = self._encoded(batch, self.query_encoder, 0)
        return self._scaled(self.query_map(vectors) + _pooled(self.query_pooling, batch.states))

    def reasoning(self, batch: Batch, shares: Float[Tensor, "row step position"]) -> Float[Tensor, "row step dim"]:
        """Means of token states over the share of the reasoning that belongs to each step, in the space of vectors."""
        assert batch.states is not None
        assert self.thinking is not None
        return self._scaled(self.query_map(self.thinking.tokens(shares @ batch.states.values)))

    def items(self, batch: Batch) -> Float[Tensor, "row dim"]:
        """Items."""
        encoder = self.query_encoder if self.item_encoder is None else self.item_encoder
        vectors = self._encoded(batch, encoder, 1)
        to_item = self.query_map if self.item_map is None else self.item_map
        of_items = self.config.pooling == "both"
        pooling = self.query_pooling if self.config.shared and of_items else self.item_pooling
        return self._scaled(to_item(vectors) + _pooled(pooling, batch.states))

    def _encoded(self, batch: Batch, encoder: nn.Module | None, side: int) -> Float[Tensor, "row dim"]:
        if encoder is None:
            assert batch.vectors is not None
            return batch.vectors
        assert self._encoders is not None
        return self._scaled(self._encoders[side].differentiable(encoder, batch.texts))

    def _scaled(self, vectors: Float[Tensor, "*row dim"]) -> Float[Tensor, "*row dim"]:
        return nn.functional.normalize(vectors, dim=-1) if self.config.similarity == "cosine" else vectors


def _identity(dim: int) -> nn.Linear:
    layer = nn.Linear(dim, dim, bias=False)
    nn.init.eye_(layer.weight)
    return layer


def _pooled(pooling: TokenPooling | None, states: Inputs | None) -> Float[Tensor, "row dim"] | float:
    if pooling is None:
        return 0.0
    assert states is not None
    return pooling(states)
