"""Queries made from an item's own words, without a language model, for items that have few queries or none."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int64

from restd.data.attributes import Attributes
from restd.data.text import fold
from restd.errors import ConfigError

PseudoKind = Literal["keywords", "title", "sentence", "misspelled", "attributes"]
PSEUDO_KINDS: tuple[PseudoKind, ...] = get_args(PseudoKind)
# letters and digits; runs of one Japanese script are words of their own, since nothing separates them
_WORD = re.compile(r"[\u30a0-\u30ff]+|[\u3400-\u9fff\uf900-\ufaff]+|[\u3040-\u309f]+|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
_SENTENCE = re.compile(r"(?<=[.!?。！？;|])\s*|\n+")
_NO_ATTRIBUTES = Attributes((), ())
_SHORTEST, _LONGEST = 2, 5
_IDF_POWER = 0.7
_TITLE_WEIGHT = 2.0
_SENTENCE_WORDS = 12
_SPELLABLE = 5
_MOST_VALUES = 3
"""Most parts of a query of attributes, the category included."""


def split_words(text: str) -> list[str]:
    """Return the words of a text as they stand: letters and digits; in Japanese, runs of one script.

    >>> split_words("Red kettle, 1.7 l")
    ['Red', 'kettle', '1', '7', 'l']
    """
    return _WORD.findall(text)


def make_pseudo_queries(
    titles: Sequence[str],
    texts: Sequence[str],
    *,
    attributes: Sequence[Attributes] | None = None,
    per_item: int,
    kinds: Sequence[PseudoKind] = ("keywords",),
    seed: int,
    draws: int = 1,
) -> tuple[list[str], Int64[np.ndarray, "query"]]:
    """Draw queries from every item's words; returns the queries and the row of each one's item.

    Kinds take turns. `keywords` draws two to five distinct words by idf^0.7, those of the title twice as likely, and
    keeps them in the order of the text; `title` is a span of the title; `sentence` is a sentence of the text;
    `misspelled` is like `keywords` with one letter of one word wrong; `attributes` combines a category and short values
    in any order. An item that cannot give a query of a kind gives keywords (for `attributes`, one with fewer than two
    attributes); an item without words gives none. The same item gives the same queries whatever the other items are,
    but for their words' frequencies.

    Each item's queries stand together, draw by draw. The first draw is the same however many there are.

    Args:
        titles: of every item, empty where it has none.
        texts: whole texts of the same items.
        attributes: of the same items; only the kind `attributes` needs them.
        per_item: queries per item and draw.
        kinds: kinds that take turns.
        seed: random seed.
        draws: how often every item's queries are drawn.

    >>> queries, rows = make_pseudo_queries(["Red kettle"], ["Red kettle made of steel, 1.7 l"], per_item=2, seed=0)
    >>> len(queries), rows.tolist()
    (2, [0, 0])
    """
    if not kinds:
        raise ConfigError(f"No kind of pseudo-query was given; expected one or more of {', '.join(PSEUDO_KINDS)}.")
    if "attributes" in kinds and attributes is None:
        raise ConfigError(
            "Pseudo-queries of the kind attributes need the items' attributes. Pass attributes=, as "
            "restd.data.attributes.attributes_of gives them, or choose other kinds."
        )
    known = [_NO_ATTRIBUTES] * len(texts) if attributes is None else attributes
    words_of = [_WORD.findall(text) for text in texts]
    frequency = Counter(word for words in words_of for word in {fold(word) for word in words})
    queries: list[str] = []
    rows: list[int] = []
    for row, (title, text, words, own) in enumerate(zip(titles, texts, words_of, known, strict=True)):
        if not words:
            continue
        weights = _weights(words, title, frequency, len(texts))
        for draw in range(draws):
            rng = np.random.default_rng((seed, row, draw) if draw else (seed, row))
            for number in range(per_item):
                queries.append(_query(kinds[number % len(kinds)], title, text, words, own, weights, rng))
                rows.append(row)
    return queries, np.array(rows, np.int64)


def _weights(words: Sequence[str], title: str, frequency: Counter[str], items: int) -> Float[np.ndarray, "word"]:
    """How likely each word is drawn; a repeated word counts once, where it stands first."""
    in_title = {fold(word) for word in _WORD.findall(title)}
    weights = np.zeros(len(words))
    seen: set[str] = set()
    for place, word in enumerate(map(fold, words)):
        if word in seen:
            continue
        seen.add(word)
        idf = np.log1p(items / frequency[word])
        weights[place] = idf**_IDF_POWER * (_TITLE_WEIGHT if word in in_title else 1.0)
    return weights


def _query(
    kind: PseudoKind,
    title: str,
    text: str,
    words: list[str],
    attributes: Attributes,
    weights: Float[np.ndarray, "word"],
    rng: np.random.Generator,
) -> str:
    if kind == "attributes" and (parts := _combine(attributes, rng)):
        return " ".join(parts)
    if kind == "title" and len(span := _WORD.findall(title)) >= _SHORTEST:
        length = int(rng.integers(_SHORTEST, min(_LONGEST, len(span)) + 1))
        start = int(rng.integers(0, len(span) - length + 1))
        return " ".join(span[start : start + length])
    if kind == "sentence":
        sentences = [part.split() for part in _SENTENCE.split(text) if len(part.split()) >= _SHORTEST]
        if sentences:
            return " ".join(sentences[int(rng.integers(len(sentences)))][:_SENTENCE_WORDS])
    drawn = _keywords(words, weights, rng)
    return " ".join(_misspell(drawn, rng) if kind == "misspelled" else drawn)


def _combine(attributes: Attributes, rng: np.random.Generator) -> list[str]:
    """Two or three attributes in any order, a category among them where there is one; none where there are too few."""
    categories, values = attributes
    least = 1 if categories else 2
    if len(values) < least:
        return []
    parts = []
    if categories:  # the further down the path, the more a name says
        depth = np.arange(1, len(categories) + 1)
        parts.append(categories[int(rng.choice(len(categories), p=depth / depth.sum()))])
    count = int(rng.integers(least, min(_MOST_VALUES - len(parts), len(values)) + 1))
    parts += [values[place] for place in rng.choice(len(values), size=count, replace=False)]
    return [parts[place] for place in rng.permutation(len(parts))]


def _keywords(words: list[str], weights: Float[np.ndarray, "word"], rng: np.random.Generator) -> list[str]:
    available = int((weights > 0).sum())
    count = min(int(rng.integers(_SHORTEST, _LONGEST + 1)), available)
    places = rng.choice(len(words), size=count, replace=False, p=weights / weights.sum())
    return [words[place] for place in sorted(places)]


def _misspell(words: list[str], rng: np.random.Generator) -> list[str]:
    """Swap, drop or double a letter inside one of the longer words; short words stay as they are."""
    long = [place for place, word in enumerate(words) if len(word) >= _SPELLABLE and word.isascii() and word.isalpha()]
    if not long:
        return words
    place = long[int(rng.integers(len(long)))]
    word = words[place]
    at = int(rng.integers(1, len(word) - 1))
    wrong = (
        word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        word[:at] + word[at + 1 :],
        word[:at] + word[at - 1 :],
    )
    return [*words[:place], wrong[int(rng.integers(len(wrong)))], *words[place + 1 :]]
