"""Decoding with T5 and mT5, level by level, without `transformers`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from restd.models.cached_decoder import Affine, CachedStepper, Decoder, Head, Layer, transposed
from restd.models.decode_protocol import Normalizer
from restd.models.sid_t5 import SidT5
from restd.models.t5_layers import recency_bias, rms_scale

_WORDS = 1_024
"""Words a product and thread: few enough for their scores to stay in a processor's cache until they are summed."""


class T5Stepper(CachedStepper):
    """A copy of a T5's decoder as it is now; later training does not reach it, and there is no dropout.

    With `full_vocab`, log-probabilities are those of generation with `transformers`; with `level_codes` the
    vocabulary is neither copied nor multiplied with.
    """

    @torch.inference_mode()
    def __init__(self, backbone: SidT5, *, normalizer: Normalizer = "full_vocab") -> None:
        model, shape = backbone.model, backbone.model.config
        embeddings = model.get_input_embeddings().weight
        output = model.lm_head.weight * backbone.output_scale
        bias = output.new_zeros(backbone.tokens.shape).masked_fill_(~backbone.code_mask, -torch.inf)
        words = output.split(_WORDS * torch.get_num_threads()) if normalizer == "full_vocab" else ()
        positions = max(backbone.steps, 1) + len(backbone.sizes) - 1

        def normalize(states: Float[Tensor, "row width"]) -> Float[Tensor, "row width"]:
            return states * rms_scale(states, shape.layer_norm_epsilon)

        recency = backbone.recency()
        gain = model.decoder.final_layer_norm.weight.clone()
        super().__init__(
            Decoder(
                layers=tuple(_layer(block.layer) for block in model.decoder.block),
                heads=shape.num_heads,
                normalize=normalize,
                activate=_activation(model.decoder.block[0].layer[2].DenseReluDense.act, shape),
                bias=_position_bias(model.decoder.block[0].layer[0].SelfAttention, positions),
                memory_bias=None if recency is None else partial(recency_bias, recency.clone()),
            ),
            Head(transposed(output[backbone.tokens]), bias, tuple(map(transposed, words))),
            sizes=backbone.sizes,
            start=embeddings[shape.decoder_start_token_id].clone(),
            codes=embeddings[backbone.tokens],
            finish=lambda states: normalize(states).mul_(gain),
            steps=backbone.steps,
        )


def _layer(parts: Any) -> Layer:
    own, cross, feed = parts[0].SelfAttention, parts[1].EncDecAttention, parts[2].DenseReluDense
    opening = (feed.wi_0, feed.wi_1) if hasattr(feed, "wi_0") else (feed.wi,)
    return Layer(
        own=Affine.of(own.q, own.k, own.v, norm=parts[0].layer_norm),
        own_out=Affine.of(own.o),
        query=Affine.of(cross.q, norm=parts[1].layer_norm),
        memory=Affine.of(cross.k, cross.v),
        query_out=Affine.of(cross.o),
        feed=Affine.of(*opening, norm=parts[2].layer_norm),
        feed_out=Affine.of(feed.wo),
    )


def _activation(activation: Callable[[Tensor], Tensor], shape: Any) -> Callable[[Tensor], Tensor]:
    """The model's own, by a kernel of torch where there is one."""
    known = {"relu": torch.relu_, "gelu_new": partial(functional.gelu, approximate="tanh")}
    act = known.get(shape.dense_act_fn, activation)
    if not shape.is_gated_act:
        return act

    def gated(states: Tensor) -> Tensor:
        opened, passed = states.chunk(2, dim=-1)
        return act(opened).mul_(passed)

    return gated


def _position_bias(attention: Any, positions: int) -> Float[Tensor, "distance head"]:
    """What the last of so many positions adds to its attention to each; later blocks use the first one's."""
    return attention.compute_bias(positions, positions)[0, :, -1].T.contiguous()
