"""Queries as backbones read them: texts as they are, histories as the Semantic IDs of their items."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Int, Int64

from restd.data import EventSpans, History, Prefixes, Query
from restd.errors import ConfigError
from restd.index import SidIndex


@dataclass(frozen=True, slots=True, eq=False)
class SidHistories:
    """Histories as Semantic IDs: all events one after another, and where each history begins and ends among them.

    Histories may overlap, as the prefixes of one user do; their events are stored once.

    >>> histories = SidHistories.of([np.array([[3, 0], [4, 1]]), np.array([[5, 0]])])
    >>> len(histories), histories.begin.tolist(), histories.end.tolist()
    (2, [0, 2], [2, 3])
    """

    sids: Int[np.ndarray, "event level"]
    begin: Int64[np.ndarray, "history"]
    end: Int64[np.ndarray, "history"]
    users: Sequence[str] = ()
    """The user of each history; empty where they are unknown."""

    @classmethod
    def of(cls, histories: Sequence[Int[np.ndarray, "_ level"]], users: Sequence[str] = ()) -> "SidHistories":
        """Build from one array of Semantic IDs per history, the latest item last."""
        lengths = np.array([len(history) for history in histories], np.int64)
        return cls(np.concatenate(histories), lengths.cumsum() - lengths, lengths.cumsum(), users)

    def __len__(self) -> int:
        return len(self.end)


def sid_histories(queries: Sequence[Query], index: SidIndex) -> SidHistories:
    """Histories as Semantic IDs; an empty one, or one with an item that the index lacks, is an error."""
    spans = EventSpans.of_queries(queries, index.table.ids)
    if isinstance(queries, Prefixes):
        users = queries.histories.users.take(pa.array(queries.user)).to_pylist()
    else:
        users = [query.user for query in queries if isinstance(query, History)]
    return SidHistories(index.sids[spans.rows], spans.begin, spans.begin + spans.count, users)


def only_texts(queries: Sequence[Query]) -> list[str]:
    """Queries that are all texts; a history among them is an error."""
    texts = [query for query in queries if isinstance(query, str)]
    if len(texts) < len(queries):
        raise ConfigError("This model searches by words and cannot read histories; train one with --task recommend.")
    return texts
