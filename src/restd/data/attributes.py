"""Short facts about items, for queries such as "blue kettle Brand": category names and values of their columns."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from restd.data.catalog import text_values
from restd.data.text import fold

_CANONICAL = ("id", "title", "category")
_MOST_WORDS = 4
_MOST_CHARACTERS = 60
_NOTHING = frozenset({"n/a", "na", "nan", "none", "null", "nil", "unknown", "other", "true", "false", "yes", "no"})
_NOT_WORDS = re.compile(r"[a-z]+://.*|www\..*|\d{4}-\d\d?-\d\d?(T.*)?|\S+\.(jpe?g|png|gif|webp|svg)", re.IGNORECASE)
_UNITS = (
    "mm|cm|dm|km|m|inch|inches|ft|feet|yd|µm|nm|mg|kg|g|lb|lbs|oz|ml|cl|dl|l|liters?|litres?|gal|qt|pt|mw|kw|w|watts?|"
    "kwh|wh|v|volts?|mah|ah|hz|khz|mhz|ghz|kb|mb|gb|tb|mp|dpi|rpm|psi|bar|db|lm|lumen|h|hrs?|hours?|min|sec|days?|years?|"
    "pcs?|pieces?|packs?|count|ct|ply|°c|°f|%"
)
_MEASURE = re.compile(rf"(?<![\w.,])\d+(?:[.,]\d+)?[\s-]?(?:{_UNITS})(?![\w-])", re.IGNORECASE)


class Attributes(NamedTuple):
    """What is known about an item in a few words each; nothing is in it twice."""

    categories: tuple[str, ...]
    """Names of its category path, the broadest first."""
    values: tuple[str, ...]
    """Values of its other columns of at most four words, and numbers with units in its text."""

    @property
    def text(self) -> str:
        """All of them, one after another."""
        return " ".join((*self.categories, *self.values))


def attributes_of(batch: pa.RecordBatch, texts: Sequence[str]) -> list[Attributes]:
    """Return the attributes of each item of a canonical batch.

    Values are those of columns of text, or of lists of texts, as they stand. Longer ones, bare numbers, dates,
    addresses and placeholders such as "n/a" are none. Numbers with units come from the title and from `texts`.

    >>> columns = {"id": ["a"], "title": ["Kettle 1.7 l"], "category": [["Home", "Kettles"]]}
    >>> batch = pa.RecordBatch.from_pydict({**columns, "color": ["Blue"], "price": [9.5]})
    >>> attributes_of(batch, ["Kettle 1.7 l. Boils in 3 min."])
    [Attributes(categories=('Home', 'Kettles'), values=('Blue', '1.7 l', '3 min'))]
    """
    columns = [_values_of(batch.column(name)) for name in batch.schema.names if name not in _CANONICAL]
    columns = [column for column in columns if column is not None]
    titles, paths = text_values(batch.column("title")).to_pylist(), batch.column("category").to_pylist()
    attributes = []
    for row, (title, path, text) in enumerate(zip(titles, paths, texts, strict=True)):
        categories = _distinct(name.strip() for name in path or () if name)
        short = (value.strip() for column in columns for value in column[row] if is_attribute(value))
        measures = (match[0] for match in _MEASURE.finditer(f"{title}\n{text}"))
        seen = {fold(name) for name in categories}
        attributes.append(Attributes(categories, _distinct((*short, *measures), seen=seen)))
    return attributes


def is_attribute(value: str) -> bool:
    """Return whether a value can be a part of a query: one to four words, none of them an address or a date.

    >>> [is_attribute(value) for value in ("Jet Black", "12.5", "n/a", "2024-05-01", "https://a.example/b.jpg")]
    [True, False, False, False, False]
    """
    bare = value.strip()
    return (
        0 < len(bare) <= _MOST_CHARACTERS
        and len(bare.split()) <= _MOST_WORDS
        and any(character.isalpha() for character in bare)
        and bare.lower() not in _NOTHING
        and not _NOT_WORDS.fullmatch(bare)
    )


def _values_of(column: pa.Array) -> list[list[str]] | None:
    """Texts of each row of a column; None for a column that is not text."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    many = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    kind = column.type.value_type if many else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        return None
    rows = column.to_pylist()
    if many:
        return [[value for value in row or () if value] for row in rows]
    return [[value] if value else [] for value in rows]


def _distinct(values: Iterable[str], *, seen: set[str] | None = None) -> tuple[str, ...]:
    """Each value once, whatever its case, and none that was seen before."""
    seen = set() if seen is None else seen
    kept = []
    for value in values:
        if value and (key := fold(value)) not in seen:
            seen.add(key)
            kept.append(value)
    return tuple(kept)
