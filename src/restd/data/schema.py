"""The canonical columns of the three tables, and the values of grades.

Readers convert every file to these columns, and nothing else is seen downstream. Other columns of an item table keep
their names: text columns are encoded, and all can be filtered on.
"""

from typing import Final

import pyarrow as pa

from restd.errors import DataError

CATEGORY: Final = pa.list_(pa.string())

ITEM_COLUMNS: Final = pa.schema([("id", pa.string()), ("title", pa.string()), ("category", CATEGORY)])
"""Only `id` is required; `category` is the path from the root, empty when unknown."""

JUDGMENTS: Final = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("item", pa.string()),
        ("grade", pa.float32()),
        ("split", pa.string()),
    ]
)

SPLITS: Final = ("train", "valid", "test")

GRADES: Final = {"E": 3.0, "S": 2.0, "C": 1.0, "I": 0.0}
"""Exact, Substitute, Complement, Irrelevant. Positive means a grade above zero."""


def parse_grade(text: str, *, where: str) -> float:
    """Return the numeric grade of a label or a number.

    >>> parse_grade("E", where="row 2"), parse_grade("0.5", where="row 3")
    (3.0, 0.5)
    """
    label = text.strip()
    if label.upper() in GRADES:
        return GRADES[label.upper()]
    try:
        value = float(label)
    except ValueError:
        value = float("nan")
    if not 0.0 <= value < float("inf"):
        raise DataError(f"{where}: unknown grade {text!r}. Expected one of E, S, C, I, or a number of at least 0.")
    return value
