"""Queries made fit to be read, and leaves made into items."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from restd.data import History, Prefixes, Query
from restd.errors import ConfigError, DataError
from restd.index import Trie


def cleaned(queries: Sequence[Query], k: int) -> Sequence[Query]:
    """Texts without control characters, histories as they are; an empty text is an error, as is a wish for nothing."""
    if k < 1:
        raise ConfigError(f"k = {k} was asked for; wanted at least 1.")
    if isinstance(queries, Prefixes):
        return queries
    found: list[Query] = []
    for query in queries:
        if isinstance(query, History):
            found.append(query)
            continue
        text = "".join(letter if letter.isprintable() else " " for letter in query).strip()
        if not text:
            raise DataError(f"The query {query[:40]!r} holds no text; wanted some words.")
        found.append(text)
    return found


def histories_of(given: History | Sequence[str] | Sequence[History]) -> tuple[list[History], bool]:
    """Histories as they were given, and whether there are many: ids of one user, a history, or a list of these."""
    if isinstance(given, str):
        raise ConfigError(f"The history is one text, {given[:40]!r}; wanted a list of item ids, the latest last.")
    if isinstance(given, History):
        return [given], False
    found = [held for held in given if isinstance(held, History)]
    return (found, True) if found else ([History(tuple(map(str, given)))], False)


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


def without_seen(
    rows: Int[np.ndarray, "query deep"],
    scores: Float[np.ndarray, "query deep"],
    taken: Sequence[Int[np.ndarray, "_"]],
    k: int,
) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
    """Each query's best k without the items it took already; ranks that nothing fills are -1.

    >>> without_seen(np.array([[4, 5, 6]]), np.array([[-1.0, -2.0, -3.0]]), [np.array([4])], 2)[0].tolist()
    [[5, 6]]
    """
    found = np.full((len(rows), k), -1, np.int64), np.full((len(rows), k), -np.inf)
    for query, held in enumerate(taken):
        kept = np.flatnonzero((rows[query] >= 0) & ~np.isin(rows[query], held))[:k]
        found[0][query, : len(kept)], found[1][query, : len(kept)] = rows[query, kept], scores[query, kept]
    return found


def text_of(item: Mapping[str, Any]) -> str:
    """The words of an item that is given as a mapping: every text but its id."""
    values = [
        " > ".join(value) if isinstance(value, (list, tuple)) else value for name, value in item.items() if name != "id"
    ]
    return ". ".join(value for value in values if isinstance(value, str) and value)
