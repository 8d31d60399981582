"""Words of a text in any of our languages, for everything lexical: TF-IDF vectors, BM25, filters."""

import re
import unicodedata
from itertools import pairwise

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]+")


def words(text: str) -> list[str]:
    """Lower-case words without accents; scripts that write no spaces give overlapping pairs of characters.

    >>> words("Café con Leche, 250ml")
    ['cafe', 'con', 'leche', '250ml']
    >>> words("電気ケトル 1.2L")
    ['電気', '気ケ', 'ケト', 'トル', '1', '2l']
    """
    folded = text.lower() if text.isascii() else fold(text)
    found: list[str] = []
    for word in _WORD.findall(folded):
        if word.isascii() or not _UNSPACED.search(word):
            found.append(word)
        else:
            found.extend(_pieces(word))
    return found


def fold(text: str) -> str:
    """Lower case, compatibility forms unified (full-width letters, ligatures), accents of Latin letters dropped."""
    decomposed = unicodedata.normalize("NFKD", text.lower())
    bare = "".join(mark for mark in decomposed if not 0x300 <= ord(mark) <= 0x36F)
    return unicodedata.normalize("NFKC", bare)  # puts Japanese voicing marks back, which carry meaning


def _pieces(word: str) -> list[str]:
    pieces: list[str] = []
    end = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > end:
            pieces.append(word[end : run.start()])
        characters = run.group()
        pieces.extend([characters] if len(characters) == 1 else map("".join, pairwise(characters)))
        end = run.end()
    if end < len(word):
        pieces.append(word[end:])
    return pieces
