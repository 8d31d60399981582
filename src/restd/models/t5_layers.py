"""T5's encoder and decoder on the weights of `transformers`' own, with fewer passes over memory.

In a small T5 matrix products do not hide what norms, dropout, copies and a memory projected again for every layer cost.
Here the norm is one function with a backward of its own, dropout's randomness is cheap, and attention to the memory
takes the few positions of the decoder into the memory's space instead of the whole memory out of it:
(q Wᵏ) m = q (Wᵏ m). `restd bench recommend` measures what that is worth.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from restd.models.decode_protocol import Memory
from restd.models.dropout import Dropout

RECENCY = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
"""What `add_recency` adds to the weights."""
_SEATS = 8
"""Rows that ask the same states together, at most: more would leave seats empty where texts have few rows."""


def encoder_states(
    model: Any,
    tokens: Int64[Tensor, "row position"],
    mask: Bool[Tensor, "row position"],
    *,
    rate: float,
    causal: bool = False,
) -> Float[Tensor, "row position width"]:
    """What the encoder makes of tokens, after its final norm.

    Args:
        model: a `T5ForConditionalGeneration` whose feed-forward layers are not gated.
        tokens: to read.
        mask: false where there is only padding, which stands behind the tokens.
        rate: of dropout; 0 for none.
        causal: whether a position sees only itself and those before it, and so never padding.
    """
    rows, positions = tokens.shape
    drop = Dropout(rate)
    bias = _position_bias(model.encoder, positions)
    bias = (_without_later(bias) if causal else bias).expand(rows, -1, -1, -1)
    if not causal and not bool(mask.all()):
        bias = bias.masked_fill(~mask[:, None, None, :], torch.finfo(bias.dtype).min)
    states = drop(model.shared(tokens).flatten(0, 1))
    return _through(model.encoder, states, bias.flatten(0, 1), drop).view(rows, positions, -1)


def decoder_states(
    model: Any,
    inputs: Float[Tensor, "row given width"],
    memory: Memory,
    *,
    rate: float,
    recency: Float[Tensor, "distance head"] | None = None,
) -> Float[Tensor, "row given width"]:
    """What the decoder makes of embedded codes, each of which sees those before it, after its final norm.

    Args:
        model: as for the encoder.
        inputs: embeddings of what was generated so far.
        memory: what the encoder made of the rows.
        rate: of dropout; 0 for none.
        recency: what the distance of a memory's position from its end adds to attention to it; None for nothing, as in
            T5, whose encoder sees the end itself.
    """
    rows, given, _ = inputs.shape
    drop = Dropout(rate)
    bias = _without_later(_position_bias(model.decoder, given)).expand(rows, -1, -1, -1).flatten(0, 1)
    states = drop(inputs.flatten(0, 1))
    return _through(model.decoder, states, bias, drop, _seated(memory, recency)).view(rows, given, -1)


def add_recency(model: Any) -> None:
    """Let a decoder tell how far from its end a position of the memory is, once it has learned to.

    The weights stand where the first T5 had such ones, and `transformers` knows to leave them alone.
    """
    attention = model.decoder.block[0].layer[1].EncDecAttention
    attention.relative_attention_bias = nn.Embedding(attention.relative_attention_num_buckets, attention.n_heads)
    nn.init.zeros_(attention.relative_attention_bias.weight)


def recency_table(model: Any) -> Float[Tensor, "distance head"]:
    """What each distance from the end adds; beyond the last one T5 tells no distances apart."""
    attention = model.decoder.block[0].layer[1].EncDecAttention
    distances = attention.relative_attention_max_distance + 1
    return attention.compute_bias(distances, distances)[0, :, -1].flip(-1).T


def recency_bias(
    table: Float[Tensor, "distance head"], mask: Bool[Tensor, "row position"]
) -> Float[Tensor, "row head 1 position"]:
    """What is added to attention to each position of a memory; so much that nothing is left where there is padding.

    >>> recency_bias(torch.tensor([[3.0], [2.0]]), torch.tensor([[True, True, True, False]]))[0, 0, 0, :3].tolist()
    [2.0, 2.0, 3.0]
    """
    place = torch.arange(mask.shape[1], device=mask.device)
    behind = (mask.sum(dim=1, keepdim=True) - 1 - place).clamp(0, len(table) - 1)
    bias = functional.embedding(behind, table).transpose(1, 2)[:, :, None]
    return bias.masked_fill(~mask[:, None, None], torch.finfo(bias.dtype).min)


class _Tables(NamedTuple):
    """Rows seated at the states they see: those of one table ask them together, in one matrix product."""

    states: Float[Tensor, "table position width"]
    bias: Float[Tensor, "table seat _ 1 position"] | None
    """Added to the scores of all heads, or of each: so much that nothing is left where a seat does not see."""
    seat: Int64[Tensor, "row"] | None
    """Where each row sits, counted over all tables; None where each has a table of its own."""
    seats: int
    """Of a table."""


def _seated(memory: Memory, recency: Float[Tensor, "distance head"] | None) -> _Tables:
    """Give rows that see parts of the same states common tables."""
    bias = _memory_bias(memory, recency)
    if memory.text is None:
        return _Tables(memory.states, None if bias is None else bias[:, None], None, 1)
    text, rows = memory.text, len(memory.text)
    count = torch.bincount(text, minlength=len(memory.states))
    seats = min(int(count.max()), _SEATS)
    tables = -(-count // seats)
    order = text.argsort(stable=True)
    place = torch.empty_like(order)  # of a row among those of its text
    place[order] = torch.arange(rows, device=text.device) - (count.cumsum(0) - count)[text[order]]
    seat = ((tables.cumsum(0) - tables)[text] * seats) + place
    owner = torch.arange(len(tables), device=text.device).repeat_interleave(tables)
    if bias is not None:
        # an empty seat sees everything: seeing nothing would be no number in half precision
        empty = bias.new_zeros(len(owner) * seats, *bias.shape[1:])
        bias = empty.index_copy(0, seat, bias).unflatten(0, (-1, seats))
    return _Tables(memory.states.index_select(0, owner), bias, seat, seats)


def _memory_bias(
    memory: Memory, recency: Float[Tensor, "distance head"] | None
) -> Float[Tensor, "row _ 1 position"] | None:
    """What is added to attention to each position; None where all are seen alike."""
    if recency is not None:
        return recency_bias(recency, memory.mask)
    if memory.text is None and bool(memory.mask.all()):
        return None
    return recency_bias(memory.states.new_zeros(1, 1), memory.mask)


def _through(
    stack: Any,
    states: Float[Tensor, "token width"],
    bias: Float[Tensor, "row_head position position"],
    drop: Dropout,
    memory: _Tables | None = None,
) -> Float[Tensor, "token width"]:
    """All blocks and the final norm; those of a decoder attend to a memory, too."""
    for block in stack.block:
        own, *cross, feed = block.layer
        states = drop.add(states, _own(own.SelfAttention, _norm(own.layer_norm, states), bias, drop))
        if memory is not None:
            normed = _norm(cross[0].layer_norm, states)
            states = drop.add(states, _cross(cross[0].EncDecAttention, normed, memory, drop))
        states = drop.add(states, _feed(feed.DenseReluDense, _norm(feed.layer_norm, states), drop))
    return drop(_norm(stack.final_layer_norm, states))


def _own(
    attention: Any,
    states: Float[Tensor, "token width"],
    bias: Float[Tensor, "row_head position position"],
    drop: Dropout,
) -> Float[Tensor, "token width"]:
    """Attention of every position to its row's positions; T5 does not scale scores."""
    heads, positions = attention.n_heads, bias.shape[-1]
    weight = torch.cat([attention.q.weight, attention.k.weight, attention.v.weight])
    joined = functional.linear(states, weight).view(-1, positions, 3, heads, attention.key_value_proj_dim)
    own_queries, keys, values = joined.permute(2, 0, 3, 1, 4).reshape(3, -1, positions, joined.shape[-1])
    scores = torch.baddbmm(bias, own_queries, keys.transpose(1, 2))
    attended = torch.bmm(drop(scores.softmax(dim=-1)), values)
    return attention.o(attended.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2).flatten(0, 1))


def _cross(
    attention: Any,
    states: Float[Tensor, "token width"],
    memory: _Tables,
    drop: Dropout,
) -> Float[Tensor, "token width"]:
    """Attention of every position to its row's memory, in the memory's own space."""
    heads, tables = attention.n_heads, len(memory.states)
    rows = tables if memory.seat is None else len(memory.seat)
    to_keys, to_values = (layer.weight.unflatten(0, (heads, -1)) for layer in (attention.k, attention.v))
    cross_queries = attention.q(states).unflatten(-1, (heads, -1)).transpose(0, 1)
    cross_queries = torch.bmm(cross_queries, to_keys).unflatten(1, (rows, -1)).transpose(0, 1).flatten(1, 2)
    each = cross_queries.shape[1]  # questions of a row
    if memory.seat is not None:
        empty = cross_queries.new_zeros(tables * memory.seats, each, cross_queries.shape[2])
        cross_queries = empty.index_copy(0, memory.seat, cross_queries).view(tables, memory.seats * each, -1)
    scores = torch.bmm(cross_queries, memory.states.transpose(1, 2))
    if memory.bias is not None:
        scores.view(tables, memory.seats, heads, each // heads, -1).add_(memory.bias)
    attended = torch.bmm(drop(scores.softmax(dim=-1)), memory.states)
    if memory.seat is not None:
        attended = attended.view(-1, each, attended.shape[2]).index_select(0, memory.seat)
    attended = attended.unflatten(1, (heads, -1)).transpose(0, 1).flatten(1, 2)
    return attention.o(torch.bmm(attended, to_values.transpose(1, 2)).transpose(0, 1).flatten(1))


def _feed(feed: Any, states: Float[Tensor, "token width"], drop: Dropout) -> Float[Tensor, "token width"]:
    return feed.wo(drop(feed.wi(states).relu()))


def _position_bias(stack: Any, positions: int) -> Float[Tensor, "1 head position position"]:
    """What the distance of two positions adds to their score; all blocks use the first one's."""
    return stack.block[0].layer[0].SelfAttention.compute_bias(positions, positions)


def _without_later(bias: Float[Tensor, "1 head position position"]) -> Float[Tensor, "1 head position position"]:
    """Let no position see those behind it."""
    later = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).triu(1)
    return bias.masked_fill(later, torch.finfo(bias.dtype).min)


def _norm(norm: Any, states: Float[Tensor, "token width"]) -> Float[Tensor, "token width"]:
    return _RmsNorm.apply(states, norm.weight, norm.variance_epsilon)


def rms_scale(states: Float[Tensor, "token width"], floor: float) -> Float[Tensor, "token 1"]:
    """One over the root of the mean square; on a processor faster than torch's own norm."""
    length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    return length.square_().div_(states.shape[-1]).add_(floor).rsqrt_()


class _RmsNorm(torch.autograd.Function):
    """Division by the root of the mean square, times a weight."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, states: Tensor, weight: Tensor, floor: float
    ) -> Tensor:
        scale = rms_scale(states, floor)
        scaled = states * scale
        ctx.save_for_backward(scaled, scale, weight)
        return scaled * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scaled, scale, weight = ctx.saved_tensors
        of_weight = (gradient * scaled).sum(dim=0)
        of_scaled = gradient * weight
        along = torch.linalg.vecdot(of_scaled, scaled).div_(scaled.shape[-1])[:, None]
        return of_scaled.addcmul_(scaled, along, value=-1).mul_(scale), of_weight, None
