"""Steps of a pre-norm decoder, T5's or the compact one, arranged so that little is paid for but matrix products.

Weights of norms are folded into the products behind them and the scale of attention into its queries. Products read
their weights as [in, out], which is the faster way round for a hundred rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.models.decode_protocol import Cache, Memory

_NEAR = 40.0
"""Scores this near zero neither overflow nor vanish when float32 holds their powers of e."""


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """A linear layer."""

    weight: Float[Tensor, "inner outer"]
    bias: Float[Tensor, "outer"] | None = None

    @classmethod
    def of(cls, *layers: nn.Linear, norm: Any = None) -> "Affine":
        """Several layers that read the same states, side by side, behind a norm whose own weights are folded in."""
        weight = torch.cat([layer.weight for layer in layers])
        bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
        if norm is not None:
            shift = getattr(norm, "bias", None)
            bias = bias if shift is None else weight @ shift + (0 if bias is None else bias)
            weight = weight * norm.weight
        return cls(transposed(weight), bias)

    def scaled(self, factor: float, *, columns: int) -> "Affine":
        """Multiply the first columns of what comes out."""
        factors = torch.ones_like(self.weight[0])
        factors[:columns] = factor
        return Affine(self.weight * factors, None if self.bias is None else self.bias * factors)

    def __call__(self, states: Float[Tensor, "row inner"]) -> Float[Tensor, "row outer"]:
        """Multiply."""
        return states @ self.weight if self.bias is None else torch.addmm(self.bias, states, self.weight)

    def add_to(self, total: Float[Tensor, "row outer"], states: Float[Tensor, "row inner"]) -> None:
        """Add what comes out, in place."""
        total.addmm_(states, self.weight)
        if self.bias is not None:
            total += self.bias


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One block: attention to its own positions, attention to the memory, feed-forward."""

    own: Affine
    """Queries, keys and values in one product."""
    own_out: Affine
    query: Affine
    memory: Affine
    """Keys and values of the memory."""
    query_out: Affine
    feed: Affine
    feed_out: Affine


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """The blocks, without what goes in and what is read off."""

    layers: tuple[Layer, ...]
    heads: int
    normalize: Callable[[Tensor], Tensor]
    """The norm before each part, its weights left out."""
    activate: Callable[[Tensor], Tensor]
    """Between the feed-forward products; may change what it is given."""
    bias: Float[Tensor, "distance head"] | None = None
    """Added to attention to own positions, the farthest first and the position itself last."""
    memory_bias: Callable[[Bool[Tensor, "query position"]], Float[Tensor, "query head 1 position"]] | None = None
    """What is added to attention to a memory's positions, by which of them are real."""

    def remember(self, memory: Memory) -> Cache:
        """Keys and values of the memory, once for all beams of a query."""
        memory = memory.apart()
        queries, positions, width = memory.states.shape
        keys_values = []
        for layer in self.layers:
            both = layer.memory(memory.states.reshape(-1, width)).view(queries, positions, 2, self.heads, -1)
            keys, values = both.permute(2, 0, 3, 1, 4)
            keys_values.append((keys, values))
        if self.memory_bias is not None:
            seen = self.memory_bias(memory.mask)
        else:
            seen = None if bool(memory.mask.all()) else memory.mask[:, None, None, :]
        return Cache(((),) * len(self.layers), tuple(keys_values), seen)

    def advance(
        self,
        inputs: Float[Tensor, "query beam width"],
        cache: Cache,
        parents: Int64[Tensor, "query beam"] | None,
        *,
        keep: bool,
    ) -> tuple[Float[Tensor, "row width"], Cache]:
        """Put one more position behind the beams `parents`; states come back before the last norm.

        Positions that will not be continued need not be kept: the next layer can write over what this one kept.
        """
        queries, beams, width = inputs.shape
        states = inputs.reshape(-1, width).clone()  # every part adds to it in place
        past = []
        for layer, before, (keys, values) in zip(self.layers, cache.past, cache.memory, strict=True):
            own = layer.own(self.normalize(states)).view(queries, beams, 3, self.heads, -1)
            # a layer's positions are fetched right before they are read, and only once
            positions = (*(_follow(position, parents) for position in before), own[:, :, 1:])
            past.append(positions if keep else ())
            attended = attend(own[:, :, 0], positions, self.bias)
            layer.own_out.add_to(states, attended.flatten(2).flatten(0, 1))
            cross_queries = layer.query(self.normalize(states)).view(queries, beams, self.heads, -1).transpose(1, 2)
            attended = nn.functional.scaled_dot_product_attention(
                cross_queries, keys, values, attn_mask=cache.seen, scale=1.0
            )
            layer.query_out.add_to(states, attended.transpose(1, 2).flatten(2).flatten(0, 1))
            layer.feed_out.add_to(states, self.activate(layer.feed(self.normalize(states))))
        return states, replace(cache, past=tuple(past))


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """From a state to log-probabilities of a level's codes."""

    weight: Float[Tensor, "level width code"]
    bias: Float[Tensor, "level code"]
    """-inf for codes that a level lacks."""
    words: tuple[Float[Tensor, "width _"], ...] = ()
    """The whole vocabulary, in parts; empty where the codes of the level are all there is."""

    def __call__(self, states: Float[Tensor, "row width"], level: int) -> Float[Tensor, "row code"]:
        """Log-probabilities; -inf for codes that the level lacks."""
        scores = torch.addmm(self.bias[level], states, self.weight[level]).float()
        if not self.words:
            return scores.log_softmax(dim=-1)
        return scores.sub_(self.total(states, scores.amax(dim=-1, keepdim=True)))

    def total(self, states: Float[Tensor, "row width"], peak: Float[Tensor, "row 1"]) -> Float[Tensor, "row 1"]:
        """Log-sum-exp over the vocabulary, given the score of one of its words.

        Relative to that word the sum is at least one, so that it cannot vanish; it overflows only where another word
        stands e⁸⁸ times higher, and then every part looks for its own peak. Scores near zero need no relation at all.
        """
        far = bool(peak.abs().amax() > _NEAR)
        room = states.new_empty(len(states) * self.words[0].shape[1])
        total = torch.zeros_like(peak)
        for part in self.words:
            scores = room[: len(states) * part.shape[1]].view(len(states), -1)
            torch.mm(states, part, out=scores)
            scores = scores.float()
            if far:
                scores.sub_(peak)
            total += scores.exp_().sum(dim=-1, keepdim=True)
        if bool(total.isfinite().all()):
            return total.log_().add_(peak if far else 0.0)
        parts = [(states @ part).float().logsumexp(dim=-1, keepdim=True) for part in self.words]
        return torch.cat(parts, dim=-1).logsumexp(dim=-1, keepdim=True)


class CachedStepper:
    """A decoder, what goes into it and what is read off; see `restd.models.decode_protocol.Stepper`.

    With `codewords`, a state has the residual of the query's latent behind it, and the head reads both.
    """

    def __init__(
        self,
        decoder: Decoder,
        head: Head,
        *,
        sizes: tuple[int, ...],
        start: Float[Tensor, "width"],
        codes: Float[Tensor, "level code width"],
        finish: Callable[[Tensor], Tensor],
        steps: int,
        places: Float[Tensor, "place width"] | None = None,
        codewords: Float[Tensor, "level code dim"] | None = None,
    ) -> None:
        self.decoder, self.head = decoder, head
        self._sizes, self._steps = sizes, max(steps, 1)
        self._start, self._codes, self._places = start, codes, places
        self._finish, self._codewords = finish, codewords

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        return self._sizes

    @torch.inference_mode()
    def start(self, memory: Memory) -> tuple[Float[Tensor, "query 1 code"], Cache]:
        """Log-probabilities of the first code; every latent step is fed the state of the one before."""
        cache = self.decoder.remember(memory)
        following = self._start.expand(len(memory.mask), 1, -1)
        for _ in range(self._steps):
            states, cache = self._advance(following, cache, None, keep=True)
            following = states[:, None]
        if self._codewords is None:
            return self.head(following[:, 0], 0)[:, None], replace(cache, first=following)
        assert memory.latent is not None
        residual = memory.latent[:, None]
        first = torch.cat([following, residual], dim=-1)
        return self.head(first[:, 0], 0)[:, None], replace(cache, first=first, residual=residual)

    @torch.inference_mode()
    def step(
        self, cache: Cache, parents: Int64[Tensor, "query beam"], codes: Int64[Tensor, "query beam"]
    ) -> tuple[Float[Tensor, "query beam code"], Cache]:
        """Log-probabilities of the next code; after those of the last one there is no next step."""
        level = cache.level + 1
        inputs, keep = self._codes[cache.level, codes], level + 1 < len(self.sizes)
        residual = self._left(cache, parents, codes)
        states, cache = self._advance(inputs, cache, parents, keep=keep)
        if residual is not None:
            states = torch.cat([states, residual.flatten(0, 1)], dim=-1)
        return self.head(states, level).view(*codes.shape, -1), replace(cache, level=level, residual=residual)

    def _left(
        self, cache: Cache, parents: Int64[Tensor, "query beam"], codes: Int64[Tensor, "query beam"]
    ) -> Float[Tensor, "query beam dim"] | None:
        """What is left of the residuals of the beams `parents` when `codes` are chosen; None where none are kept."""
        if cache.residual is None or self._codewords is None:
            return None
        before = cache.residual
        if before.shape[1] > 1:
            before = before.take_along_dim(parents[..., None], dim=1)
        return before - self._codewords[cache.level, codes]

    def _advance(
        self,
        inputs: Float[Tensor, "query beam width"],
        cache: Cache,
        parents: Int64[Tensor, "query beam"] | None,
        *,
        keep: bool,
    ) -> tuple[Float[Tensor, "row width"], Cache]:
        if self._places is not None:
            inputs = inputs + self._places[cache.length]
        states, cache = self.decoder.advance(inputs, cache, parents, keep=keep)
        return self._finish(states), cache


def attend(
    queries: Float[Tensor, "query beam head part"],
    positions: Sequence[Float[Tensor, "query _ 2 head part"]],
    bias: Float[Tensor, "distance head"] | None,
) -> Float[Tensor, "query beam head part"]:
    """Attend to keys and values of a few positions, each with a beam of its own or one for all.

    A handful of positions are too few for a matrix product to pay off: position by position is faster than the fused
    attention of torch by half, and so is a softmax over the first dimension instead of a last one of four.
    """
    scores = torch.stack([(queries * position[:, :, 0]).sum(dim=-1) for position in positions])
    if bias is not None:
        scores += bias[-len(positions) :, None, None]
    first, *others = scores.softmax(dim=0)[..., None]
    attended = first * positions[0][:, :, 1]
    for weight, position in zip(others, positions[1:], strict=True):
        attended.addcmul_(weight, position[:, :, 1])
    return attended


def transposed(weight: Float[Tensor, "*batch outer inner"]) -> Float[Tensor, "*batch inner outer"]:
    """Copy the other way round."""
    return weight.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def _follow(
    position: Float[Tensor, "query _ 2 head part"], parents: Int64[Tensor, "query beam"] | None
) -> Float[Tensor, "query _ 2 head part"]:
    """The beams that are continued; a position that all share stays as it is."""
    queries, beams = position.shape[:2]
    if beams == 1 or parents is None:
        return position
    rows = parents + beams * torch.arange(queries, device=parents.device)[:, None]
    return position.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, parents.shape)
