"""Semantic IDs of unequal length: code 0 ends one, and a shorter one is filled up with it.

Real codes start at 1 there. The first terminal code is a choice like any code: where one identifier is the beginning of
another, it says which of the two is meant. Those behind it follow with certainty.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int
from torch import Tensor

from restd.codes.keys import radices
from restd.errors import ConfigError

TERMINAL = 0
"""The code that ends an identifier, at every level."""


def without_padding(sid: Sequence[int]) -> tuple[int, ...]:
    """The codes before the first terminal code.

    >>> without_padding((3, 1, 0, 0)), without_padding((3, 1))
    ((3, 1), (3, 1))
    """
    codes = tuple(int(code) for code in sid)
    return codes[: codes.index(TERMINAL)] if TERMINAL in codes else codes


def is_padding(sids: Int[Tensor, "row level"]) -> Bool[Tensor, "row level"]:
    """Where an identifier has ended already: everything behind its first terminal code.

    >>> import torch
    >>> is_padding(torch.tensor([[3, 0, 0], [3, 1, 2]])).int().tolist()
    [[0, 0, 1], [0, 0, 0]]
    """
    ended = sids == TERMINAL
    return (ended.cumsum(dim=1) - ended.long()) > 0


def check_ended(sids: Int[np.ndarray, "item level"], sizes: Sequence[int]) -> None:
    """Refuse identifiers that are empty or go on behind their end, and levels that do not fit a key."""
    radices(sizes)
    ended = sids == TERMINAL
    bad = ended[:, 0] | (np.logical_or.accumulate(ended, axis=1) & ~ended).any(axis=1)
    if bad.any():
        row = int(bad.argmax())
        raise ConfigError(
            f"Row {row} has the codes {sids[row].tolist()}. Where code {TERMINAL} ends an identifier, expected at "
            f"least one other code, and nothing but {TERMINAL} behind it."
        )


def stacked(identifiers: Sequence[Sequence[int]]) -> Int[np.ndarray, "item level"]:
    """Identifiers of unequal length as rows of one length, filled up with the terminal code.

    >>> stacked([(3, 1, 2), (4,)]).tolist()
    [[3, 1, 2], [4, 0, 0]]
    """
    sids = np.full((len(identifiers), max(map(len, identifiers), default=0)), TERMINAL, np.int64)
    for row, codes in enumerate(identifiers):
        sids[row, : len(codes)] = codes
    return sids
