"""Which encoder fits the texts, when nobody said."""

from collections.abc import Sequence

from restd.data.text import words
from restd.encode.encoders import MINILM, USE_MULTILINGUAL

_ENGLISH = frozenset(("the", "and", "for", "with", "of", "your", "this", "from", "that", "its", "you", "are"))
_OTHER = frozenset(
    ("de", "la", "el", "los", "las", "para", "con", "por", "una", "del", "und", "der", "die", "das", "mit", "le", "les")
)
_ENOUGH = 0.01
"""Share of English little words below which a text is not taken for English: titles of other languages have a few."""


def default_encoder(texts: Sequence[str]) -> str:
    """Choose `minilm` for what is plainly English and `use-multilingual` otherwise, judged by letters and little words.

    >>> default_encoder(["Kettle with a lid for the kitchen"]), default_encoder(["Tetera con tapa para la cocina"])
    ('minilm', 'use-multilingual')
    >>> default_encoder(["電気ケトル"])
    'use-multilingual'
    """
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    foreign = sum(ord(letter) > 0x24F for letter in letters)  # beyond Latin and its extensions
    found = [word for text in texts for word in words(text)]
    english = sum(word in _ENGLISH for word in found)
    other = sum(word in _OTHER for word in found)
    plainly = english > max(2 * other, _ENOUGH * len(found)) and foreign <= 0.1 * len(letters)
    return MINILM if plainly else USE_MULTILINGUAL
