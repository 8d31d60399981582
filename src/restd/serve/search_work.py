"""What the worker thread does with the queries of a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from restd.data import History, Query
from restd.errors import RestdError
from restd.search import Hit, SearchOptions
from restd.search.results import make_hits
from restd.serve.model_state import ServedModel
from restd.serve.problems import InvalidError
from restd.snapshot import Condition


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Results of one query."""

    hits: list[Hit]
    fields: list[dict[str, Any]]
    """The requested columns of each hit."""
    parts: list[dict[str, Any]] | None
    """Contributions to the score of each hit, where they are requested."""


@dataclass(frozen=True, slots=True)
class SearchWork:
    """A search of one model with one set of options; equal ones are answered in one batch.

    Args:
        model: what is searched.
        options: how.
        columns: columns of the items that come with each hit.
        contributions: whether each hit says what every part of a hybrid search adds to its score.
    """

    model: ServedModel
    options: SearchOptions
    columns: tuple[str, ...] = ()
    contributions: bool = False

    def __call__(self, queries: Sequence[Query]) -> list[QueryAnswer]:
        """Search for all queries at once."""
        snapshot = self.model.snapshot
        try:
            rows, scores = self.model.retriever.rank(list(queries), options=self.options)
        except (RestdError, pa.ArrowException) as error:
            raise blamed(error, self.model, self.options, queries) from error
        answers = []
        for row_list, hits in zip(rows, make_hits(snapshot, rows, scores), strict=True):
            answers.append(QueryAnswer(hits, self._fields(row_list[row_list >= 0]), None))
        return answers

    def _fields(self, rows: Int64[np.ndarray, "rank"]) -> list[dict[str, Any]]:
        if not self.columns:
            return [{} for _ in rows]
        taken = {name: self.model.snapshot.items.column(name).take(pa.array(rows)) for name in self.columns}
        return pa.table(taken).to_pylist()


def blamed(
    error: Exception,
    model: ServedModel,
    options: SearchOptions,
    queries: Sequence[Query] = (),
    *,
    item: str | None = None,
) -> InvalidError:
    """The refusal of a request that cannot be searched, with the field that is to blame.

    Args:
        error: what the search raised.
        model: what was searched.
        options: how.
        queries: what for.
        item: the item to explain, where there is one.
    """
    items, snapshot = model.snapshot.items, model.snapshot
    known = [query.items for query in queries if isinstance(query, History)]
    filters = "where" if options.where else "allow" if options.allow is not None else "deny"
    checks: list[tuple[str, Callable[[], object]]] = [
        ("allow", lambda: items.rows(options.allow or (), what="allow")),
        ("deny", lambda: items.rows(options.deny, what="deny")),
        ("where", lambda: items.matching([Condition.parse(str(condition)) for condition in options.where])),
        (filters, lambda: snapshot.matching(options.where, options.allow, options.deny)),
        ("history", lambda: [items.rows(history, what="The history") for history in known]),
        ("item", lambda: items.rows([] if item is None else [item], what="item")),
    ]
    for field, check in checks:
        try:
            check()
        except (RestdError, pa.ArrowException) as cause:
            return InvalidError(_sentence(cause), field=field)
    return InvalidError(_sentence(error))


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if isinstance(error, RestdError) else f"The filter cannot be computed: {text.splitlines()[0][:300]}."
