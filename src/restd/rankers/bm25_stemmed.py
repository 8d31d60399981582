"""BM25 over word stems: "kettle" also finds "kettles", in the language of the catalogue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int64

from restd.data.text import words
from restd.errors import MissingExtraError
from restd.rankers.bm25 import Bm25, inverted_index
from restd.rankers.registry import RANKERS, RankerEntry, RankerTask
from restd.snapshot import Snapshot

_SAMPLE = 2_000
_ENOUGH = 0.02
"""Smallest share of a language's function words in its texts; names of products have few."""


@dataclass(frozen=True, slots=True, eq=False)
class StemmedBm25(Bm25):
    """BM25 over stems of words, by Snowball's rules for the language of the items.

    Args:
        language: of the items, as Snowball names it; None where it is none of Snowball's, and words stay whole.
    """

    language: str | None = None
    name: ClassVar[str] = "bm25-stemmed"

    @classmethod
    def of(cls, snapshot: Snapshot) -> "StemmedBm25":
        """Index the stems of the items' texts in their language."""
        texts = snapshot.items.texts()
        return cls._of_texts(texts, snapshot, language_of(texts))

    @classmethod
    def _of_texts(cls, texts: Sequence[str], snapshot: Snapshot, language: str | None) -> "StemmedBm25":
        inverted = inverted_index([stems(text, language) for text in texts])
        return cls(inverted, len(snapshot), snapshot.hash, language)

    def terms(self, text: str) -> list[str]:
        """Stems of a query."""
        return stems(text, self.language)

    def following(
        self, snapshot: Snapshot, kept: Int64[np.ndarray, "_"], vectors: Float[np.ndarray, "added input"] | None
    ) -> "StemmedBm25":
        """The same for a snapshot that follows its own, in the same language: all texts are indexed again."""
        return self._of_texts(snapshot.items.texts(), snapshot, self.language)


def stems(text: str, language: str | None) -> list[str]:
    """Stems of the words of a text; the words themselves where the language is None."""
    if language is None:
        return words(text)
    try:
        import Stemmer
    except ModuleNotFoundError as error:
        raise MissingExtraError("PyStemmer", extra="bm25", purpose="BM25 over word stems") from error
    return Stemmer.Stemmer(language).stemWords(words(text))  # a new one every time: threads must not share one


def language_of(texts: Sequence[str]) -> str | None:
    """Language of most function words in (some of) the texts; None where no language has enough.

    >>> language_of(["A kettle with a lid for the kitchen"]), language_of(["Tetera con tapa para la cocina"])
    ('english', 'spanish')
    >>> language_of(["電気ケトル"]) is None
    True
    """
    try:
        from bm25s import stopwords
    except ModuleNotFoundError as error:
        raise MissingExtraError("bm25s", extra="bm25", purpose="BM25") from error
    every_word = [word for text in texts[:: max(1, len(texts) // _SAMPLE)] for word in words(text)]
    lists = {
        "danish": stopwords.STOPWORDS_DANISH,
        "dutch": stopwords.STOPWORDS_DUTCH,
        "english": stopwords.STOPWORDS_EN_PLUS,
        "french": stopwords.STOPWORDS_FRENCH,
        "german": stopwords.STOPWORDS_GERMAN,
        "italian": stopwords.STOPWORDS_ITALIAN,
        "norwegian": stopwords.STOPWORDS_NORWEGIAN,
        "portuguese": stopwords.STOPWORDS_PORTUGUESE,
        "russian": stopwords.STOPWORDS_RUSSIAN,
        "spanish": stopwords.STOPWORDS_SPANISH,
        "swedish": stopwords.STOPWORDS_SWEDISH,
        "turkish": stopwords.STOPWORDS_TURKISH,
    }
    function_words = {language: set(words(" ".join(listed))) for language, listed in lists.items()}
    counts = {language: sum(word in known for word in every_word) for language, known in function_words.items()}
    likeliest = max(counts, key=lambda language: counts[language])
    return likeliest if counts[likeliest] > _ENOUGH * len(every_word) else None


RANKERS.add(
    RankerEntry(
        "bm25-stemmed",
        "Word overlap by stems, in the language of the catalogue: BM25 as most published figures have it.",
        {
            "search": RankerTask(
                lambda context: StemmedBm25.of(context.with_texts()),
                {
                    "search": "inverted index",
                    "parameters": "k1 1.5, b 0.75 (Lucene's idf)",
                    "words": "Snowball stems in the language of the items, no stop words removed",
                },
            )
        },
    )
)
