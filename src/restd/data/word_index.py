"""Which items have all words of a query: an inverted index in two arrays, with a bound on the work per query."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64

from restd.data.pseudo_queries import split_words
from restd.data.text import fold

_CANDIDATES = 256
"""Most items that are looked at for one query. Common words are in a share of all items, so without it time would grow
with the square of their number."""


@dataclass(frozen=True, slots=True, eq=False)
class WordIndex:
    """For every word the items that have it, in order.

    >>> index = WordIndex.of(["red steel kettle", "red steel pan", "red kettle, enamel"])
    >>> index.fitting("kettle red", beside=[0], at_most=3)
    [2]
    """

    number_of: Mapping[str, int]
    first: Int64[np.ndarray, "boundary"]
    """Where each word's items begin in `items`."""
    items: Int32[np.ndarray, "entry"]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "WordIndex":
        """Index the words of all items' texts; memory grows with the number of distinct words per item."""
        number_of: dict[str, int] = {}
        words, items = array("i"), array("i")
        for row, text in enumerate(texts):
            own = [number_of.setdefault(word, len(number_of)) for word in sorted(_words(text))]
            words.extend(own)
            items.extend([row] * len(own))
        numbers = np.frombuffer(words, np.int32) if words else np.zeros(0, np.int32)
        rows = np.frombuffer(items, np.int32) if items else np.zeros(0, np.int32)
        counts = np.bincount(numbers, minlength=len(number_of))
        return cls(number_of, np.concatenate([[0], counts.cumsum()]), rows[np.argsort(numbers, kind="stable")])

    def fitting(self, query: str, *, beside: Sequence[int], at_most: int) -> list[int]:
        """Return items whose words include all words of a query, none of `beside`, the next ones behind it first.

        Of the items that have the query's rarest word, the 256 behind the first of `beside` are looked at, from the
        last item on to the first one. So different queries find different items, without a random number.
        """
        numbers = [self.number_of.get(word, -1) for word in sorted(_words(query))]
        if at_most < 1 or not numbers or min(numbers) < 0:
            return []
        lists = sorted((self.items[self.first[n] : self.first[n + 1]] for n in numbers), key=len)
        rarest = lists[0]
        start = int(np.searchsorted(rarest, beside[0], side="right"))
        ahead = rarest[start : start + _CANDIDATES]
        candidates = np.concatenate([ahead, rarest[: min(start, _CANDIDATES - len(ahead))]])
        for other in lists[1:]:
            place = np.minimum(np.searchsorted(other, candidates), len(other) - 1)
            candidates = candidates[other[place] == candidates]
        return [row for row in candidates.tolist() if row not in beside][:at_most]


def _words(text: str) -> set[str]:
    return set(split_words(fold(text)))
