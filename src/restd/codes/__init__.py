"""Codebooks, Semantic-ID keys and the trie: the leaf that everything about codes stands on.

Needs torch, NumPy and jaxtyping only, so that a training loop of your own loads nothing else.
"""

from restd.codes.codebooks import (
    MAX_CODES,
    Codebooks,
    as_tensor,
    assign,
    check_codes,
    last_residuals,
    nearest,
    quantised,
    trajectory,
)
from restd.codes.paper import PAPER_ENTROPY, PAPER_TEMPERATURE
from restd.codes.spaces import Space
from restd.codes.trie import Trie

__all__ = [
    "MAX_CODES",
    "PAPER_ENTROPY",
    "PAPER_TEMPERATURE",
    "Codebooks",
    "Space",
    "Trie",
    "as_tensor",
    "assign",
    "check_codes",
    "last_residuals",
    "nearest",
    "quantised",
    "trajectory",
]
