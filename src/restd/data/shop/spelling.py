"""Slips of the finger: misspelt queries in alphabetic scripts and in kana."""

import unicodedata
from collections.abc import Callable, Sequence

Slip = Callable[[str, int], str]

_TO_HIRAGANA = {code: code - 0x60 for code in range(0x30A1, 0x30F7)}
_TO_WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
_TO_LARGE = str.maketrans("ッャュョァィゥェォ", "ツヤユヨアイウエオ")


def _at(word: str, draw: int) -> int:
    """Return an inner place of the word; people rarely miss the first letter."""
    return 1 + draw % (len(word) - 2)


def _swap(word: str, draw: int) -> str:
    at = _at(word, draw)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def _drop(word: str, draw: int) -> str:
    at = _at(word, draw)
    return word[:at] + word[at + 1 :]


def _double(word: str, draw: int) -> str:
    at = _at(word, draw)
    return word[:at] + word[at] + word[at:]


def _bare(word: str, _: int) -> str:
    """Leave accents out, as quick typists do."""
    return "".join(mark for mark in unicodedata.normalize("NFD", word) if not unicodedata.combining(mark))


def _no_long_vowel(word: str, _: int) -> str:
    return word.replace("ー", "", 1)


def _hiragana(word: str, _: int) -> str:
    return word.translate(_TO_HIRAGANA)


def _large_kana(word: str, _: int) -> str:
    return word.translate(_TO_LARGE)


_LATIN: tuple[Slip, ...] = (_swap, _drop, _double, _bare, _swap, _drop)
_KANA: tuple[Slip, ...] = (_no_long_vowel, _hiragana, _large_kana, _swap, _no_long_vowel, _drop)


def misspell(text: str, draw: int, *, kana: bool, slips: Sequence[tuple[str, str]]) -> str:
    """Return the text with one word spelt wrongly, always different from the text.

    >>> misspell("red kettle", 1, kana=False, slips=[])
    'red kttle'
    >>> misspell("電気ケトル スーパー", 6, kana=True, slips=[])
    '電気けとる スーパー'
    """
    known = [pair for pair in slips if pair[0] in text]
    if known and draw % 3 == 0:
        return text.replace(*known[draw // 3 % len(known)], 1)
    if kana and draw % 3 == 1 and text.translate(_TO_WIDE) != text:
        return text.translate(_TO_WIDE)
    words = text.split(" ")
    # A wrong digit would name another product, so numbers stay as they are.
    spelt = [place for place, word in enumerate(words) if len(word) > 2 and not any(map(str.isdigit, word))]
    long = [place for place in spelt if len(words[place]) > 3] or spelt
    if not long:
        return text + text[-1]
    place = long[draw // 16 % len(long)]
    word = words[place]
    tools = _KANA if kana else _LATIN
    tries = (tools[(draw + turn) % len(tools)](word, draw // 64) for turn in range(len(tools)))
    wrong = next((attempt for attempt in tries if attempt != word), word + word[-1])
    return " ".join([*words[:place], wrong, *words[place + 1 :]])
