"""Semantic IDs of unequal length for tests: small tables, and models that know of them."""

import numpy as np
import torch
from hypothesis import strategies as st

from restd.codes.ending import stacked
from restd.encode import fit_tfidf_svd
from restd.models import CompactBackbone, Memory, T5Backbone
from tests.models import COMPACT, FRESH, TEXTS

SIZES = (4, 3, 4)
"""Codes of each level; the first one ends."""


@st.composite
def identifiers(draw, *, sizes=SIZES, empty=False):
    """Some identifiers, several of which may be the same."""
    lengths = st.integers(0 if empty else 1, len(sizes))
    one = lengths.flatmap(lambda length: st.tuples(*(st.integers(1, size - 1) for size in sizes[:length])))
    return draw(st.lists(one, min_size=1, max_size=25))


def padded(table, levels=3):
    """Identifiers as rows of one length."""
    sids = np.zeros((len(table), levels), np.int16)
    own = stacked(table)
    sids[:, : own.shape[1]] = own
    return sids


def lively(model, seed=0):
    """Weights of the decoder large enough to be felt."""
    generator = torch.Generator().manual_seed(seed)
    decoder = model.decoder if hasattr(model, "decoder") else model.model.decoder
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def model_of(kind, sizes=SIZES, *, ends=True):
    """A model of random weights."""
    if kind == "t5":
        return lively(T5Backbone.made(sizes, FRESH, texts=TEXTS, seed=0, ends=ends).eval())
    return lively(CompactBackbone(fit_tfidf_svd(TEXTS, dim=8), sizes, COMPACT, seed=0, ends=ends).eval())


def random_memory(rows=2, longest=4, seed=0):
    """What an encoder of width 32 might have made of queries."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([longest, 1, 3, 2])[:rows, None]
    return Memory(torch.randn(rows, longest, 32, generator=generator), torch.arange(longest) < lengths)
