"""Queries made fit to be read, and leaves made into items."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from restd.errors import ConfigError, DataError
from restd.index import Trie


def cleaned(queries: Sequence[str], k: int) -> list[str]:
    """Texts without control characters; an empty one is an error, as is a wish for nothing."""
    if k < 1:
        raise ConfigError(f"k = {k} was asked for; wanted at least 1.")
    found = []
    for query in queries:
        text = "".join(letter if letter.isprintable() else " " for letter in query).strip()
        if not text:
            raise DataError(f"The query {query[:40]!r} holds no text; wanted some words.")
        found.append(text)
    return found


def known_norm(norm: str) -> str:
    """Refuse a score norm there is not."""
    if norm not in ("full_vocab", "level_codes", "trie_children"):
        raise ConfigError(f"Score norm {norm!r} is unknown; wanted full_vocab, level_codes or trie_children.")
    return norm


def fill(found: tuple[np.ndarray, np.ndarray], query: int, trie: Trie, leaves: Tensor, scores: Tensor) -> None:
    """Items of the best leaves, in order; those that share a SID follow one another as the catalogue has them."""
    rows, values = found
    reached = leaves >= 0
    place, most = 0, rows.shape[1]
    pairs = zip(trie.items_of(leaves[reached][:most]), scores[reached][:most].tolist(), strict=True)
    for items, score in pairs:
        for row in items[: most - place]:
            rows[query, place], values[query, place] = row, score
            place += 1
        if place == most:
            break


def first_rows(rows: Int[np.ndarray, "query _"], count: int) -> Int[np.ndarray, "query _"]:
    """The first rows of each query that are any, at most `count`."""
    kept = [[row for row in held if row >= 0][:count] for held in rows.tolist()]
    found = np.full((len(rows), max(map(len, kept), default=0)), -1, np.int64)
    for query, held in enumerate(kept):
        found[query, : len(held)] = held
    return found


def text_of(item: Mapping[str, Any]) -> str:
    """The words of an item that is given as a mapping: every text but its id."""
    values = [
        " > ".join(value) if isinstance(value, (list, tuple)) else value for name, value in item.items() if name != "id"
    ]
    return ". ".join(value for value in values if isinstance(value, str) and value)
