"""Words of a text, for everything lexical (TF-IDF vectors, BM25, filters), and text without markup."""

import html
import re
import unicodedata
from itertools import pairwise

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]+")
_MARKUP = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>", re.IGNORECASE | re.DOTALL)


def words(text: str) -> list[str]:
    """Return lower-case words without accents; scripts without spaces give overlapping pairs of characters.

    >>> words("Café con Leche, 250ml")
    ['cafe', 'con', 'leche', '250ml']
    >>> words("電気ケトル 1.2L")
    ['電気', '気ケ', 'ケト', 'トル', '1', '2l']
    """
    folded = text.lower() if text.isascii() else fold(text)
    result: list[str] = []
    for word in _WORD.findall(folded):
        if word.isascii() or not _UNSPACED.search(word):
            result.append(word)
        else:
            result.extend(_pieces(word))
    return result


def fold(text: str) -> str:
    """Return lower case, with unified compatibility forms (full-width letters, ligatures) and no Latin accents."""
    decomposed = unicodedata.normalize("NFKD", text.lower())
    bare = "".join(mark for mark in decomposed if not 0x300 <= ord(mark) <= 0x36F)
    return unicodedata.normalize("NFKC", bare)  # restores Japanese voicing marks, which carry meaning


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


def plain_text(text: str | None) -> str:
    """Return a product text without markup and with single spaces.

    >>> plain_text("<p>Fits &lt;b&gt;most&lt;/b&gt;<br/>cups &amp; mugs, 3 < 5</p>")
    'Fits most cups & mugs, 3 < 5'
    """
    # Entities first: many descriptions were escaped twice, and their tags appear only then.
    return " ".join(_MARKUP.sub(" ", html.unescape(text or "")).split())
