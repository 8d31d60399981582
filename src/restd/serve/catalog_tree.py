"""The catalogue as its Semantic IDs arrange it: what is below a prefix, and the words that tell siblings apart."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64

from restd.codes import Trie
from restd.codes.ending import TERMINAL
from restd.data.text import words
from restd.errors import ConfigError
from restd.serve.catalog_items import ShownItem, show_items
from restd.snapshot import Snapshot

TITLES = 4_096
"""Titles that are read at most to describe the children of one node."""
_PRIOR = 20.0
"""Weight of the siblings' common word frequencies, as a number of titles: a word that one title has tells little."""


@dataclass(frozen=True, slots=True)
class TreeChild:
    """One way on from a prefix."""

    code: int
    prefix: tuple[int, ...]
    items: int
    """Items below it."""
    examples: list[ShownItem]
    words: list[str]
    """Words of its titles that tell it from its siblings, best first."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """What is below a prefix."""

    prefix: tuple[int, ...]
    items: int
    children: list[TreeChild]
    """Largest first; none at a leaf."""
    hidden: int
    """Children, or members of a leaf, beyond the limit."""
    members: list[ShownItem]
    """Items of a leaf."""

    @property
    def level(self) -> int:
        """Codes of the prefix."""
        return len(self.prefix)


def parse_prefix(text: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Codes of a prefix that is written as `12-7`; nothing is the root.

    >>> parse_prefix("12-7", (16, 16, 16)), parse_prefix("", (16,))
    ((12, 7), ())
    >>> parse_prefix("12-99", (16, 16))
    Traceback (most recent call last):
    restd.errors.ConfigError: Code 99 at level 2 of the prefix '12-99' does not exist; this level has the codes 0 to 15.
    """
    parts = text.split("-") if text else []
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        raise ConfigError(f"{text[:40]!r} is not a prefix; expected codes joined by hyphens, such as 12-7.")
    if len(parts) > len(sizes):
        raise ConfigError(f"The prefix {text[:40]!r} has {len(parts)} codes; a Semantic ID has {len(sizes)}.")
    prefix = tuple(map(int, parts))
    for level, (code, size) in enumerate(zip(prefix, sizes, strict=False), start=1):
        if code >= size:
            raise ConfigError(
                f"Code {code} at level {level} of the prefix {text[:40]!r} does not exist; this level has the codes 0 "
                f"to {size - 1}."
            )
    return prefix


def tree_node(
    snapshot: Snapshot, prefix: Sequence[int] = (), *, limit: int = 64, examples: int = 3, word_count: int = 6
) -> TreeNode:
    """What is below a prefix. Items are counted by ranges and titles are sampled, so the work has a bound.

    Args:
        snapshot: the catalogue.
        prefix: codes; none for the root.
        limit: children, or members of a leaf, to show.
        examples: items to show of each child.
        word_count: distinguishing words to show of each child.
    """
    trie, prefix = snapshot.index.trie, tuple(prefix)
    node = trie.find(torch.tensor([prefix], dtype=torch.int64).view(1, len(prefix)))
    if int(node) < 0:
        raise ConfigError(
            f"No item has a Semantic ID that begins with {'-'.join(map(str, prefix))}; take a prefix that a node of "
            "the tree lists."
        )
    start, end = (int(edge) for edge in trie.spans(len(prefix), node))
    has_ended = snapshot.index.ends and TERMINAL in prefix
    if len(prefix) == trie.levels or has_ended:
        members = show_items(snapshot, trie.rows[start : min(end, start + limit)].numpy().astype(np.int64))
        return TreeNode(prefix, end - start, [], max(0, end - start - limit), members)
    depth = trie.depths[len(prefix)]
    first, last = (int(edge) for edge in depth.ranges(node))
    starts, ends = (edges.numpy() for edges in trie.spans(len(prefix) + 1, torch.arange(first, last)))
    largest = np.argsort(starts - ends, kind="stable")[:limit]  # equals stay in the order of their codes
    starts, ends = starts[largest], ends[largest]
    codes = depth.codes[first:last].numpy()[largest].tolist()
    samples = _samples(snapshot, trie, starts, ends)
    described = distinguishing_words([[shown.title for shown in sample] for sample in samples], count=word_count)
    children = [
        TreeChild(code, (*prefix, code), items, _spread(sample, examples), own)
        for code, items, sample, own in zip(codes, (ends - starts).tolist(), samples, described, strict=True)
    ]
    return TreeNode(prefix, end - start, children, last - first - len(children), [])


def _samples(
    snapshot: Snapshot, trie: Trie, starts: Int64[np.ndarray, "child"], ends: Int64[np.ndarray, "child"]
) -> list[list[ShownItem]]:
    """Items of each range, spread evenly over it; at most `TITLES` together."""
    most = max(1, TITLES // len(starts))
    counts = np.minimum(ends - starts, most)
    places = np.concatenate(
        [
            start + np.arange(count) * (end - start) // count
            for start, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True)
        ]
    )
    shown = show_items(snapshot, trie.rows[torch.from_numpy(places)].numpy().astype(np.int64))
    edges = np.concatenate([[0], counts.cumsum()]).tolist()
    return [shown[edges[child] : edges[child + 1]] for child in range(len(starts))]


def _spread(sample: list[ShownItem], count: int) -> list[ShownItem]:
    """A few of a sample, spread evenly over it."""
    count = min(count, len(sample))
    return [sample[number * len(sample) // count] for number in range(count)]


def distinguishing_words(groups: Sequence[Sequence[str]], *, count: int) -> list[list[str]]:
    """Words that tell each group of titles from the other groups, best first.

    The measure is the log-odds ratio of the share of titles that have a word, with the frequencies of all groups as a
    prior, in units of its standard deviation (Monroe, Colaresi and Quinn 2008). Only words that are commoner in the
    group than elsewhere qualify. A group without others has its commonest words.

    >>> distinguishing_words([["red steel kettle", "blue kettle"], ["red oak desk", "blue desk"]], count=1)
    [['kettle'], ['desk']]
    """
    own = [Counter(word for title in titles for word in set(words(title)) if _tells(word)) for titles in groups]
    if len(own) == 1:
        return [[word for word, _ in sorted(own[0].items(), key=lambda pair: (-pair[1], pair[0]))[:count]]]
    everywhere = Counter[str]()
    for counts in own:
        everywhere.update(counts)
    titles_everywhere = sum(map(len, groups))
    return [
        _best(counts, everywhere, len(titles), titles_everywhere, count)
        for counts, titles in zip(own, groups, strict=True)
    ]


def _best(own: Counter[str], everywhere: Counter[str], titles: int, all_titles: int, count: int) -> list[str]:
    vocabulary = sorted(own)
    here = np.array([own[word] for word in vocabulary], np.float64)
    total = np.array([everywhere[word] for word in vocabulary], np.float64)
    prior = _PRIOR * (total + 0.5) / (all_titles + 1)  # never all of it, for a word that every title has
    with_word, without = here + prior, titles - here + _PRIOR - prior
    with_there, without_there = total - here + prior, all_titles - titles - total + here + _PRIOR - prior
    ratio = np.log(with_word / without) - np.log(with_there / without_there)
    measure = ratio / np.sqrt(1 / with_word + 1 / with_there)
    order = np.lexsort((np.arange(len(vocabulary)), -measure))[:count]
    return [vocabulary[place] for place in order if measure[place] > 0]


def _tells(word: str) -> bool:
    """Whether a word can describe a group: numbers, sizes and words of one or two Latin letters do not."""
    return not any(letter.isdigit() for letter in word) and len(word) > (2 if word.isascii() else 1)
