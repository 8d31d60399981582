"""Misspellings in Latin script and in kana."""

import unicodedata
from collections.abc import Callable, Sequence

Edit = Callable[[str, int], str]

_TO_HIRAGANA = {code: code - 0x60 for code in range(0x30A1, 0x30F7)}
_TO_WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
_TO_LARGE = str.maketrans("ッャュョァィゥェォ", "ツヤユヨアイウエオ")


def _inner_position(word: str, draw: int) -> int:
    """Return a position inside the word; the first letter is rarely mistyped."""
    return 1 + draw % (len(word) - 2)


def _swap(word: str, draw: int) -> str:
    at = _inner_position(word, draw)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def _drop(word: str, draw: int) -> str:
    at = _inner_position(word, draw)
    return word[:at] + word[at + 1 :]


def _double(word: str, draw: int) -> str:
    at = _inner_position(word, draw)
    return word[:at] + word[at] + word[at:]


def _without_accents(word: str, _: int) -> str:
    """Remove the accents."""
    return "".join(mark for mark in unicodedata.normalize("NFD", word) if not unicodedata.combining(mark))


def _no_long_vowel(word: str, _: int) -> str:
    return word.replace("ー", "", 1)


def _hiragana(word: str, _: int) -> str:
    return word.translate(_TO_HIRAGANA)


def _large_kana(word: str, _: int) -> str:
    return word.translate(_TO_LARGE)


_LATIN: tuple[Edit, ...] = (_swap, _drop, _double, _without_accents, _swap, _drop)
_KANA: tuple[Edit, ...] = (_no_long_vowel, _hiragana, _large_kana, _swap, _no_long_vowel, _drop)


def misspell(text: str, draw: int, *, kana: bool, misspellings: Sequence[tuple[str, str]]) -> str:
    """Return the text with one misspelling. The result always differs from the text.

    `misspellings` are pairs of a right and a wrong spelling; one that applies is used if `draw` is a multiple of 3.

    >>> misspell("red kettle", 1, kana=False, misspellings=[])
    'red kttle'
    >>> misspell("電気ケトル スーパー", 6, kana=True, misspellings=[])
    '電気けとる スーパー'
    """
    applicable = [pair for pair in misspellings if pair[0] in text]
    if applicable and draw % 3 == 0:
        return text.replace(*applicable[draw // 3 % len(applicable)], 1)
    if kana and draw % 3 == 1 and text.translate(_TO_WIDE) != text:
        return text.translate(_TO_WIDE)
    words = text.split(" ")
    # A wrong digit would name another product, so words with digits are left as they are.
    candidates = [position for position, word in enumerate(words) if len(word) > 2 and not any(map(str.isdigit, word))]
    positions = [position for position in candidates if len(words[position]) > 3] or candidates
    if not positions:
        return text + text[-1]
    position = positions[draw // 16 % len(positions)]
    word = words[position]
    edits = _KANA if kana else _LATIN
    attempts = (edits[(draw + step) % len(edits)](word, draw // 64) for step in range(len(edits)))
    wrong = next((attempt for attempt in attempts if attempt != word), word + word[-1])
    return " ".join([*words[:position], wrong, *words[position + 1 :]])
