"""Filters on the columns of a catalogue: `price<=50`, `category=Home > Kitchen`, `title~kettle`."""

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from restd._arrow import pc
from restd.errors import ConfigError, DataError

_OPERATOR = re.compile(r"<=|>=|!=|=|<|>|~")
_SIGNS = re.compile(r"[=<>!~]")
_PATH = ">"
_BETWEEN = "\x1f"
"""Stands before, between and behind the names of a path, so that a path is searched as one text."""
_COMPARE = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate on one column.

    >>> Condition.parse("price<=50")
    Condition(column='price', operator='<=', value='50')
    >>> str(Condition.parse("price <= 50"))
    'price<=50'
    """

    column: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read `column=value`, `!=`, `<`, `<=`, `>`, `>=`, or `~` for "contains"."""
        sign = _SIGNS.search(text)
        operator = None if sign is None else _OPERATOR.match(text, sign.start())
        column = "" if operator is None else text[: operator.start()].strip()
        if operator is None or not column:
            raise ConfigError(f"The filter {text[:80]!r} is not of the form column=value (or !=, <, <=, >, >=, ~).")
        return cls(column, operator.group(), text[operator.end() :].strip())

    def __str__(self) -> str:
        return f"{self.column}{self.operator}{self.value}"


def searchable(values: pa.Array) -> pa.Array:
    """A column as expressions compare it: a list of names becomes one text, dictionaries are decoded."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not _is_list(values.type):
        return values
    paths = pc.cast(values, pa.list_(pa.string()))
    joined = pc.binary_join_element_wise("", pc.binary_join(paths, _BETWEEN), "", _BETWEEN)
    empty = pc.equal(pc.fill_null(pc.list_value_length(paths), 0), 0)
    return pc.if_else(empty, "", pc.fill_null(joined, ""))


def expression(condition: Condition, kind: pa.DataType) -> Any:
    """A condition as an Arrow expression over `searchable` values of a column of this type; nulls meet nothing.

    A path (a list of names) equals a beginning of itself, or any one of its names.
    """
    field = pc.field(condition.column)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if _is_list(kind):
        return _path_expression(field, condition)
    if condition.operator == "~":
        return pc.match_substring(pc.utf8_lower(field.cast(pa.string())), condition.value.lower())
    try:
        bound = pa.scalar(condition.value).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"Column {condition.column!r} has {kind}, so {condition.value!r} cannot be compared with it; give a "
            "value of that type."
        ) from error
    return _COMPARE[condition.operator](field, pc.scalar(bound))


def _path_expression(field: Any, condition: Condition) -> Any:
    names = [name.strip() for name in condition.value.split(_PATH)]
    if condition.operator == "~":
        return pc.match_substring(pc.utf8_lower(field), names[0].lower())
    if condition.operator not in ("=", "!="):
        raise DataError(
            f"Column {condition.column!r} has lists of names, which cannot be compared with {condition.operator!r}; "
            "use =, != or ~."
        )
    path = _BETWEEN.join(["", *names, ""])
    inside = pc.match_substring(field, path) if len(names) == 1 else pc.starts_with(field, path)
    return inside if condition.operator == "=" else pc.invert(inside)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
