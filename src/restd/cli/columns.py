"""Options that name columns of the user's tables."""

from restd.errors import ConfigError


def column_pairs(column_map: list[str] | None) -> dict[str, str]:
    """Read `OURS=YOURS` options.

    >>> column_pairs(["id=asin", "title=name"])
    {'id': 'asin', 'title': 'name'}
    """
    pairs = [entry.partition("=") for entry in column_map or []]
    for name, equals, column in pairs:
        if not (name and equals and column):
            raise ConfigError(f"Expected --map OURS=YOURS, as in id=asin; got --map {name}{equals}{column}.")
    return {name: column for name, _, column in pairs}


def text_columns(text: str | None) -> tuple[str, ...]:
    """Read names separated by commas."""
    return tuple(name.strip() for name in text.split(",")) if text else ()
