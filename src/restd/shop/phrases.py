"""Tables of phrases looked up by index, and templates filled one column at a time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from restd._arrow import pc

kernels: Any = pc
"""Arrow's compute functions as `Any`: they are created at import, where a type checker cannot see them."""

FORMS = ("m", "f", "mp", "fp")
"""Masculine, feminine and their plurals; languages without agreement repeat the same word four times."""

SMALL_WORDS = frozenset({"a", "and", "by", "for", "in", "of", "on", "the", "to", "with"})

_GENDER = re.compile(r"^(mp|fp|m|f):")


@dataclass(frozen=True, slots=True)
class Phrases:
    """One or more wordings per value, each in its four grammatical forms."""

    words: pa.Array
    titled: pa.Array
    start: np.ndarray
    count: np.ndarray
    form: np.ndarray
    """The form that adjectives take when they agree with a wording."""

    def pick(self, values: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Pick a wording for each value, -1 for a negative value."""
        inside = np.maximum(values, 0)
        return np.where(values < 0, -1, self.start[inside] + draws % self.count[inside])

    def text(self, wordings: np.ndarray, forms: np.ndarray | None = None, *, titled: bool = False) -> pa.Array:
        """Return the text of each wording, null for -1."""
        positions = wordings * len(FORMS) + (0 if forms is None else forms)
        return (self.titled if titled else self.words).take(pa.array(positions, mask=wordings < 0))


def title_case(text: str, style: str) -> str:
    """Capitalise every word (`words`), the first word (`first`) or none.

    >>> title_case("rug with USB port", "words"), title_case("taza de té", "first")
    ('Rug with USB Port', 'Taza de té')
    """
    if style == "words":
        return " ".join(word if word in SMALL_WORDS else word[:1].upper() + word[1:] for word in text.split(" "))
    return text[:1].upper() + text[1:] if style == "first" else text


def make_phrases(rows: list[list[str]], *, style: str) -> Phrases:
    """Build a table from one list of wordings per value.

    A wording may start with its form (`f:taza`) or list all four forms (`rojo/roja/rojos/rojas`).

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
            forms_text = wording[gender.end() :] if gender else wording
            forms = forms_text.split("/")
            words.extend(forms if len(forms) == len(FORMS) else [forms_text] * len(FORMS))
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
    """A text with slots, in segments. A segment with an empty slot is left out."""

    segments: tuple[tuple[str, ...], ...]
    """Literals at even positions, slot names at odd ones."""

    @staticmethod
    def parse(line: str) -> "Template":
        """Parse a template such as `{color} {noun}|with {feature}`: segments between bars, slots in braces."""
        return Template(tuple(tuple(re.split(r"\{(\w+)\}", segment)) for segment in line.split("|")))


def capitalise(column: Any) -> Any:
    """Capitalise the first letter of every text."""
    head = kernels.utf8_upper(kernels.utf8_slice_codeunits(column, 0, 1))
    return kernels.binary_join_element_wise(head, kernels.utf8_slice_codeunits(column, 1), "")


def _fill(template: Template, slots: Mapping[str, pa.Array], rows: pa.Array, *, joiner: str, sentences: bool) -> Any:
    filled = []
    for segment in template.segments:
        parts = [slots[part].take(rows) if position % 2 else part for position, part in enumerate(segment)]
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
    """Fill, for each row, the template at its entry of `picks` with the slots of the row.

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
    inverse = np.empty(len(picks), dtype=np.int64)
    inverse[order] = np.arange(len(picks))
    return pa.concat_arrays(pieces).take(pa.array(inverse)) if pieces else pa.array([], pa.string())
