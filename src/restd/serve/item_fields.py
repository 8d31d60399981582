"""What a client may write: items whose fields fit the columns of the catalogue, checked before anything is changed."""

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from restd._arrow import pc
from restd.data import Catalog
from restd.serve.problems import InvalidError
from restd.serve.schema import ID_CHARS, MAX_COLUMNS
from restd.snapshot import Items
from restd.snapshot.items import text_of

Value = str | int | float | bool | None | list[str]
_SHOWN = 60
_LARGEST = 1e308


@dataclass(frozen=True, slots=True)
class ItemLimits:
    """Bounds of one batch.

    Args:
        items: items, or ids to delete.
        text_chars: characters of a text, also of the one that is encoded.
        list_values: names in a list, such as a category path.
    """

    items: int = 1_000
    text_chars: int = 20_000
    list_values: int = 100


@dataclass(frozen=True, slots=True)
class Batch:
    """Items as they are stored, and what they are encoded by."""

    items: list[dict[str, Value]]
    texts: list[str]


def check_ids(ids: Sequence[Any], limits: ItemLimits, *, field: str = "ids") -> None:
    """Refuse ids that are no ids, or occur twice in one batch."""
    if not 0 < len(ids) <= limits.items:
        raise InvalidError(f"{field}: expected 1 to {limits.items:,} per request, found {len(ids):,}.", field=field)
    first: dict[str, int] = {}
    for number, item in enumerate(ids):
        place = f"{field}.{number}"
        if not isinstance(item, str) or not item or item != item.strip() or len(item) > ID_CHARS:
            raise InvalidError(
                f"{place}: expected an id, a text of 1 to {ID_CHARS} characters without spaces around it, found "
                f"{_shown(item)}.",
                field=place,
            )
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in item):
            raise InvalidError(f"{place}: the id {_shown(item)} has control characters; leave them out.", field=place)
        if item in first:
            raise InvalidError(
                f"{place}: the id {_shown(item)} is already at {field}.{first[item]}; name an item once per request.",
                field=place,
            )
        first[item] = number


def checked_batch(
    items: Sequence[Mapping[str, Any]], texts: Sequence[str] | None, known: Items, limits: ItemLimits
) -> Batch:
    """Items as the catalogue's columns take them; the first field that does not fit is an error that names it.

    Args:
        items: as the client sent them: JSON values.
        texts: what to encode them by; by default the columns that the catalogue's own items were encoded by, or all
            texts of an item that has none of these.
        known: the items that are served, whose columns the new ones must fit.
        limits: bounds of the batch.
    """
    check_ids([item.get("id") for item in items], limits, field="items")
    kinds = known.kinds()
    new_kinds = {name: kind for name, kind in _new_kinds(items, kinds).items() if kind is not None}
    if new_kinds and len(kinds) + len(new_kinds) > MAX_COLUMNS:
        raise InvalidError(
            f"items: with {', '.join(sorted(new_kinds)[:3])} there would be {len(kinds) + len(new_kinds)} columns; at "
            f"most {MAX_COLUMNS} are kept. Use columns that are there.",
            field="items",
        )
    rows = [_checked_item(item, kinds | new_kinds, known.catalog, limits, number) for number, item in enumerate(items)]
    if texts is None:
        columns = () if known.catalog is None else known.catalog.text_columns
        item_texts = [item_text(row, columns) for row in rows]
    else:
        item_texts = [_checked_text(text, limits, f"texts.{number}") for number, text in enumerate(texts)]
        if len(item_texts) != len(rows):
            raise InvalidError(
                f"texts: expected one per item ({len(rows)}), found {len(item_texts)}.",
                field="texts",
            )
    for number, text in enumerate(item_texts):
        place = f"{'items' if texts is None else 'texts'}.{number}"
        if not text.strip() or len(text) > limits.text_chars:
            raise InvalidError(
                f"{place}: the item {_shown(rows[number]['id'])} has a text of {len(text.strip()):,} characters to be "
                f"found by; expected 1 to {limits.text_chars:,}.",
                field=place,
            )
    return Batch(rows, item_texts)


def item_text(item: Mapping[str, Value], columns: Sequence[str]) -> str:
    """The text of an item as the catalogue composes it from these columns; all its texts where it has none of them.

    >>> item_text({"id": "7", "title": "Red kettle", "brand": "Olm", "category": ["Home"]}, ["title", "brand"])
    'Red kettle. Olm'
    >>> item_text({"id": "7", "category": ["Home", "Kettles"]}, ["title", "brand"])
    'Home > Kettles'
    """
    values = [item.get(column) for column in columns]
    texts = [" ".join(value) if isinstance(value, list) else _as_text(value) for value in values if value is not None]
    return ". ".join(text.strip() for text in texts if text.strip()) or text_of(item)


def _as_text(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _new_kinds(items: Sequence[Mapping[str, Any]], kinds: Mapping[str, pa.DataType]) -> dict[str, pa.DataType | None]:
    """Types of columns that the catalogue does not have: that of the first value decides; None where all are null."""
    new: dict[str, pa.DataType | None] = {}
    for number, item in enumerate(items):
        for name, value in item.items():
            if name in kinds or new.get(name) is not None:
                continue
            if not name.strip() or len(name) > ID_CHARS or not name.isprintable():
                raise InvalidError(
                    f"items.{number}: {_shown(name)} cannot be a column; expected a name of 1 to {ID_CHARS} printable "
                    "characters.",
                    field=f"items.{number}",
                )
            new[name] = _kind_of(value)
    return new


def _kind_of(value: Any) -> pa.DataType | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, (int, float)):
        return pa.float64()  # JSON does not tell 3 from 3.0, and the next item may have 3.5
    return pa.list_(pa.string()) if isinstance(value, list) else pa.string()


def _checked_item(
    item: Mapping[str, Any], kinds: Mapping[str, pa.DataType], catalog: Catalog | None, limits: ItemLimits, number: int
) -> dict[str, Value]:
    row: dict[str, Value] = {}
    for name, value in item.items():
        if value is None:
            continue
        place = f"items.{number}.{name}"
        if name == "category" and isinstance(value, str) and catalog is not None:
            value = [part.strip() for part in value.split(catalog.category_separator) if part.strip()]
        row[name] = _checked_value(value, kinds[name], limits, place)
    return row


def _checked_value(value: Any, kind: pa.DataType, limits: ItemLimits, place: str) -> Value:
    """A value as a column of this type takes it."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        fitting: Value = value if isinstance(value, bool) else None
    elif _is_number(kind):
        fitting = _number(value, is_whole=pa.types.is_integer(kind))
    elif isinstance(value, list):
        is_fitting = len(value) <= limits.list_values and all(isinstance(name, str) for name in value)
        fitting = [_checked_text(name, limits, place) for name in value] if is_fitting else None
    elif isinstance(value, (int, float)):  # in a table of texts, as every CSV is, a number is its text
        number = _number(value, is_whole=isinstance(value, int))
        fitting = json.dumps(number) if _is_text(kind) and number is not None else None
    else:
        fitting = _checked_text(value, limits, place) if isinstance(value, str) else None
    if fitting is None or not _fits(fitting, kind):
        raise InvalidError(f"{place}: expected {_described(kind, limits)}, found {_shown(value)}.", field=place)
    return fitting


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _number(value: Any, *, is_whole: bool) -> int | float | None:
    """The number as a column has it; None for what is no number, not finite, or too large for one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
        return None
    if is_whole:
        return int(value) if value == int(value) else None
    return float(value)


def _fits(value: Value, kind: pa.DataType) -> bool:
    try:
        cast = pc.cast(pa.array([value]), kind)[0].as_py()
    except (pa.ArrowException, OverflowError):
        return False
    return not isinstance(cast, float) or math.isfinite(cast)


def _checked_text(text: str, limits: ItemLimits, place: str) -> str:
    if len(text) > limits.text_chars:
        raise InvalidError(
            f"{place}: the text has {len(text):,} characters; expected at most {limits.text_chars:,}.", field=place
        )
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidError(
            f"{place}: the text has a null character or half of a surrogate pair; send whole characters.", field=place
        )
    return text


def _described(kind: pa.DataType, limits: ItemLimits) -> str:
    if pa.types.is_boolean(kind):
        return "true or false"
    if pa.types.is_integer(kind):
        return "a whole number"
    if _is_number(kind):
        return "a finite number"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"a list of at most {limits.list_values} texts"
    return "a text" if _is_text(kind) else f"a text that is read as {kind}"


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
