"""Words in bulk: tables of phrases to look up by number, and templates filled a column at a time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from restd._arrow import pc

kernels: Any = pc
"""Arrow's functions, which it makes at import, where a type checker cannot see them."""

FORMS = ("m", "f", "mp", "fp")
"""Masculine, feminine and their plurals; a language without agreement has the same word four times."""

SMALL_WORDS = frozenset({"a", "and", "by", "for", "in", "of", "on", "the", "to", "with"})

_GENDER = re.compile(r"^(mp|fp|m|f):")


@dataclass(frozen=True, slots=True)
class Phrases:
    """For each value, one or more wordings; for each wording, its four forms."""

    words: pa.Array
    titled: pa.Array
    start: np.ndarray
    count: np.ndarray
    form: np.ndarray
    """The grammatical form a wording asks of the adjectives beside it."""

    def pick(self, values: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Choose a wording for each value; a negative value has none and stays -1."""
        inside = np.maximum(values, 0)
        return np.where(values < 0, -1, self.start[inside] + draws % self.count[inside])

    def text(self, wordings: np.ndarray, forms: np.ndarray | None = None, *, titled: bool = False) -> pa.Array:
        """Spell the chosen wordings out, null where there is none."""
        places = wordings * len(FORMS) + (0 if forms is None else forms)
        return (self.titled if titled else self.words).take(pa.array(places, mask=wordings < 0))


def title_case(text: str, style: str) -> str:
    """Capitalise as titles of the language do: every word, the first one, or none.

    >>> title_case("rug with USB port", "words"), title_case("taza de té", "first")
    ('Rug with USB Port', 'Taza de té')
    """
    if style == "words":
        return " ".join(word if word in SMALL_WORDS else word[:1].upper() + word[1:] for word in text.split(" "))
    return text[:1].upper() + text[1:] if style == "first" else text


def make_phrases(rows: list[list[str]], *, style: str) -> Phrases:
    """Build a table from one list of wordings per value.

    A wording may begin with its form (`f:taza`), or list all four (`rojo/roja/rojos/rojas`).

    >>> table = make_phrases([["f:taza"], ["rojo/roja/rojos/rojas"]], style="none")
    >>> cup, red = table.pick(np.array([0, 1]), np.array([0, 0]))
    >>> table.text(np.array([red]), table.form[[cup]]).to_pylist()
    ['roja']
    """
    words: list[str] = []
    form: list[int] = []
    for row in rows:
        for wording in row:
            gender = _GENDER.match(wording)
            form.append(FORMS.index(gender[1]) if gender else 0)
            spelt = wording[gender.end() :] if gender else wording
            forms = spelt.split("/")
            words.extend(forms if len(forms) == len(FORMS) else [spelt] * len(FORMS))
    count = np.array([len(row) for row in rows])
    return Phrases(
        words=pa.array(words, pa.string()),
        titled=pa.array([title_case(word, style) for word in words], pa.string()),
        start=np.cumsum(count) - count,
        count=count,
        form=np.array(form),
    )


@dataclass(frozen=True, slots=True)
class Template:
    """A line with slots. A segment with an empty slot is left out as a whole."""

    segments: tuple[tuple[str, ...], ...]
    """Literals at even places, names of slots at odd ones."""

    @staticmethod
    def parse(line: str) -> "Template":
        """Read `{color} {noun}|with {feature}`: segments between bars, slots in braces."""
        return Template(tuple(tuple(re.split(r"\{(\w+)\}", segment)) for segment in line.split("|")))


def capitalise(column: Any) -> Any:
    """Begin every text with a capital."""
    head = kernels.utf8_upper(kernels.utf8_slice_codeunits(column, 0, 1))
    return kernels.binary_join_element_wise(head, kernels.utf8_slice_codeunits(column, 1), "")


def _fill(template: Template, slots: Mapping[str, pa.Array], rows: pa.Array, *, joiner: str, sentences: bool) -> Any:
    filled = []
    for segment in template.segments:
        parts = [slots[part].take(rows) if place % 2 else part for place, part in enumerate(segment)]
        column = kernels.binary_join_element_wise(*parts, "", null_handling="emit_null")
        filled.append(capitalise(column) if sentences else column)
    return kernels.binary_join_element_wise(*filled, joiner, null_handling="skip")


def render(
    templates: tuple[Template, ...],
    picks: np.ndarray,
    slots: Mapping[str, pa.Array],
    *,
    joiner: str,
    sentences: bool = False,
) -> pa.Array:
    """Fill for each row the template it picked with the row's slots.

    >>> lines = (Template.parse("{color}|{noun}"), Template.parse("{noun}|in {color}"))
    >>> slots = {"noun": pa.array(["mug", "rug", "hat"]), "color": pa.array(["red", "blue", None])}
    >>> render(lines, np.array([0, 1, 1]), slots, joiner=" ").to_pylist()
    ['red mug', 'rug in blue', 'hat']
    """
    order = np.argsort(picks, kind="stable")
    bounds = np.searchsorted(picks[order], np.arange(len(templates) + 1))
    pieces = [
        _fill(template, slots, pa.array(order[low:high]), joiner=joiner, sentences=sentences)
        for template, low, high in zip(templates, bounds[:-1], bounds[1:], strict=True)
        if high > low
    ]
    back = np.empty(len(picks), dtype=np.int64)
    back[order] = np.arange(len(picks))
    return pa.concat_arrays(pieces).take(pa.array(back)) if pieces else pa.array([], pa.string())
