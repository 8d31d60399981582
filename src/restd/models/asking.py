"""Queries as a backbone reads them: texts as they are, histories as the Semantic IDs of their items."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from restd.data import History, Prefixes, Query, Runs
from restd.encode import Ragged
from restd.errors import ConfigError
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
    runs = Runs.asked(queries, index.table.ids)
    if isinstance(queries, Prefixes):
        users = queries.of.users.take(pa.array(queries.user)).to_pylist()
    else:
        users = [query.user for query in queries if isinstance(query, History)]
    return SidHistories(index.sids[runs.rows], runs.begin, runs.begin + runs.count, users)
