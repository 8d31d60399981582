"""Queries as a backbone reads them: texts as they are, histories as the Semantic IDs of their items."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from restd._arrow import pc
from restd.data import History, Prefixes, Query
from restd.encode import Ragged
from restd.errors import ConfigError, DataError
from restd.index import SidIndex
from restd.models.store import AnyBackbone
from restd.models.tiger import SidHistories, TigerBackbone


def prepare_queries(
    backbone: AnyBackbone,
    queries: Sequence[Query],
    index: SidIndex,
    *,
    task: str = "query",
    cache: Path | None = None,
) -> Ragged:
    """Turn queries into what the backbone's encoder reads; `index` knows the Semantic IDs of a history's items."""
    if isinstance(backbone, TigerBackbone):
        return backbone.prepare(sid_histories(queries, index))
    texts = [query for query in queries if isinstance(query, str)]
    if len(texts) < len(queries):
        raise ConfigError("This model searches by words and cannot read histories; train one with --task recommend.")
    return backbone.prepare(texts, task=task, cache=cache)


def sid_histories(queries: Sequence[Query], index: SidIndex) -> SidHistories:
    """Histories as Semantic IDs; an empty one, or one with an item that the index lacks, is an error."""
    ids = index.table.ids
    if isinstance(queries, Prefixes) and queries.of.items.equals(ids):  # places are there already
        users = queries.of.users.take(pa.array(queries.user)).to_pylist()
        return SidHistories(index.sids[queries.of.taken], queries.begin, queries.end, users)
    histories: list[History] = []
    for query in queries:
        if not isinstance(query, History):
            raise ConfigError("This model recommends by what was taken and cannot read words; give it a history.")
        if not query.items:
            raise DataError("The history is empty; wanted at least one item that was taken, the latest last.")
        histories.append(query)
    if not histories:
        raise DataError("No history was given; wanted at least one.")
    lengths = np.array([len(history.items) for history in histories], np.int64)
    taken = pa.array([item for history in histories for item in history.items], pa.string())
    rows = pc.index_in(taken, value_set=ids)
    if rows.null_count:
        first = taken[pc.index(pc.is_null(rows), True).as_py()].as_py()
        raise DataError(
            f"The history names item {first!r}, which the index does not have ({rows.null_count:,} of {len(taken):,} "
            "items are unknown); leave it out, or add it to the index."
        )
    sids = index.sids[rows.to_numpy()]
    return SidHistories(sids, lengths.cumsum() - lengths, lengths.cumsum(), [history.user for history in histories])
