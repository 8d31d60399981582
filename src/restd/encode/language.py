"""The default encoder for a catalogue, chosen by the language of its texts."""

from collections.abc import Sequence

from restd.data.text import words
from restd.encode.encoders import MINILM, USE_MULTILINGUAL

_ENGLISH = frozenset(("the", "and", "for", "with", "of", "your", "this", "from", "that", "its", "you", "are"))
_OTHER = frozenset(
    ("de", "la", "el", "los", "las", "para", "con", "por", "una", "del", "und", "der", "die", "das", "mit", "le", "les")
)
_ENOUGH = 0.01
"""Smallest share of English function words in English text: titles in other languages have a few, too."""


def default_encoder(texts: Sequence[str]) -> str:
    """Choose `minilm` for plainly English texts and `use-multilingual` otherwise, by letters and function words.

    >>> default_encoder(["Kettle with a lid for the kitchen"]), default_encoder(["Tetera con tapa para la cocina"])
    ('minilm', 'use-multilingual')
    >>> default_encoder(["電気ケトル"])
    'use-multilingual'
    """
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    foreign = sum(ord(letter) > 0x24F for letter in letters)  # beyond Latin and its extensions
    all_words = [word for text in texts for word in words(text)]
    english = sum(word in _ENGLISH for word in all_words)
    other = sum(word in _OTHER for word in all_words)
    plainly = english > max(2 * other, _ENOUGH * len(all_words)) and foreign <= 0.1 * len(letters)
    return MINILM if plainly else USE_MULTILINGUAL
