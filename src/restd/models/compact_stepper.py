"""Decoding with the compact retriever's decoder, level by level."""

from functools import partial
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from restd.models.cached_decoder import Affine, CachedStepper, Decoder, Head, Layer, transposed
from restd.models.compact import CompactBackbone
from restd.models.compact_decoder import Block
from restd.models.decode_protocol import Normalizer


class CompactStepper(CachedStepper):
    """A copy of a compact retriever's decoder as it is now; later training does not reach it, and nothing drops out.

    A level's codes are all the decoder could say, so that both ways to normalise are one.
    """

    @torch.inference_mode()
    def __init__(self, backbone: CompactBackbone, *, normalizer: Normalizer = "full_vocab") -> None:
        decoder, shape = backbone.decoder, backbone.config.shape
        last, geometry = decoder.norm, backbone.geometry
        weight, bias = decoder.out, decoder.bias
        if geometry is not None:
            more, shift = geometry.head(len(weight))
            weight, bias = torch.cat([weight, more], dim=-1), bias + shift
        normalize = partial(functional.layer_norm, normalized_shape=(shape.width,), eps=last.eps)
        super().__init__(
            Decoder(
                layers=tuple(_layer(cast(Block, block), shape.width // shape.heads) for block in decoder.blocks),
                heads=shape.heads,
                normalize=normalize,
                activate=functional.gelu,
            ),
            Head(transposed(weight), bias.masked_fill(~decoder.code_mask, -torch.inf)),
            sizes=backbone.sizes,
            start=decoder.start.clone(),
            codes=decoder.codes.clone(),
            finish=partial(normalize, weight=last.weight.clone(), bias=last.bias.clone()),
            steps=shape.steps,
            places=decoder.places.clone(),
            codewords=None if geometry is None else geometry.codewords.clone(),
        )


def _layer(block: Block, part: int) -> Layer:
    norms = cast(list[nn.LayerNorm], list(block.norms))
    opening, _, closing = cast(list[nn.Linear], list(block.feed))
    scale, width = part**-0.5, len(norms[0].weight)
    return Layer(
        own=Affine.of(block.own.query, block.own.key_value, norm=norms[0]).scaled(scale, columns=width),
        own_out=Affine.of(block.own.out),
        query=Affine.of(block.cross.query, norm=norms[1]).scaled(scale, columns=width),
        memory=Affine.of(block.cross.key_value),
        query_out=Affine.of(block.cross.out),
        feed=Affine.of(opening, norm=norms[2]),
        feed_out=Affine.of(closing),
    )
