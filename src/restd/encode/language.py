"""Which encoder fits the texts, when nobody said."""

from collections.abc import Sequence

from restd.data.text import words
from restd.encode.encoders import MINILM, USE_MULTILINGUAL

_ENGLISH = frozenset(("the", "and", "for", "with", "of", "to", "in", "on", "is", "your", "this", "from", "by", "that"))
_OTHER = frozenset(
    ("de", "la", "el", "los", "las", "para", "con", "por", "una", "del", "und", "der", "die", "das", "mit", "le", "les")
)


def default_encoder(texts: Sequence[str]) -> str:
    """Choose `minilm` for English and `use-multilingual` for anything else, judged by letters and little words.

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
    return USE_MULTILINGUAL if foreign > 0.1 * len(letters) or other > english else MINILM
