"""Queries made fit to be read by a model."""

from collections.abc import Sequence

from restd.data import History, Prefixes, Query, Task
from restd.errors import ConfigError, DataError


def clean_queries(queries: Sequence[Query]) -> Sequence[Query]:
    r"""Texts without control characters, histories as they are; an empty text is an error.

    >>> clean_queries(["red\x00kettle\n"])
    ['red kettle']
    """
    if isinstance(queries, Prefixes):
        return queries
    return [query if isinstance(query, History) else _clean(query) for query in queries]


def _clean(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    if not printable:
        raise DataError(f"The query {text[:40]!r} has no text. Expected at least one word.")
    return printable


def as_histories(histories: History | Sequence[str] | Sequence[History]) -> tuple[list[History], bool]:
    """Histories of users, and whether there are many: item ids of one user, a history, or a list of histories."""
    if isinstance(histories, str):
        raise ConfigError(f"The history is one text, {histories[:40]!r}; expected a list of item ids, the latest last.")
    if isinstance(histories, History):
        return [histories], False
    many = [history for history in histories if isinstance(history, History)]
    return (many, True) if many else ([History(tuple(map(str, histories)))], False)


def task_of_queries(queries: Sequence[Query]) -> Task:
    """What these queries ask for: texts are searched for, histories continued."""
    return "recommend" if len(queries) and isinstance(queries[0], History) else "search"
