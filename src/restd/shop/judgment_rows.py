"""The judged queries of a shop as a stream of rows."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from restd.data.schema import JUDGMENTS, SPLITS
from restd.shop.grading import judge
from restd.shop.intents import Catalogue, build_catalogue
from restd.shop.items import make_ids
from restd.shop.lexicon import Lexicon
from restd.shop.queries import INDEXED, KINDS, Queries, draw_queries, quota
from restd.shop.query_text import query_texts
from restd.shop.world import World

SHOP_JUDGMENTS = JUDGMENTS.append(pa.field("kind", pa.string()))

CHUNK = 20_000


def queries_with_text(catalogue: Catalogue, lexicon: Lexicon, seed: int) -> tuple[Queries, pa.Array]:
    """Return the queries of each split's quota, training first, and their texts, all different."""
    queries = draw_queries(catalogue, seed)
    queries = queries.take(np.argsort(queries.split, kind="stable"))
    texts = query_texts(catalogue.world, lexicon, queries, seed)
    codes = texts.dictionary_encode().indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    first = np.sort(first)
    target = quota(len(catalogue.world))
    keep_rows = np.concatenate(
        [
            first[queries.split[first] == split][:limit]
            for split, limit in enumerate((target.train, target.held_out, target.held_out))
        ]
    )
    return queries.take(keep_rows), texts.take(pa.array(keep_rows))


def judgment_batches(world: World, lexicon: Lexicon, seed: int) -> Iterator[pa.RecordBatch]:
    """Yield the judged rows; the rows of one query are consecutive.

    >>> from restd.shop.lexicon import load_lexicon
    >>> from restd.shop.world import build_world
    >>> batch = next(judgment_batches(build_world(500, 0), load_lexicon("jp"), 0))
    >>> sorted(set(batch["split"].to_pylist()))
    ['test', 'train', 'valid']
    """
    catalogue = build_catalogue(world, INDEXED)
    queries, texts = queries_with_text(catalogue, lexicon, seed)
    splits = pa.array(SPLITS, pa.string())
    kinds = pa.array(KINDS, pa.string())
    for start in range(0, len(queries), CHUNK):
        chunk = queries.take(np.arange(start, min(start + CHUNK, len(queries))))
        rows = judge(catalogue, chunk, np.random.default_rng([seed, 5, start]))
        columns = [
            make_ids("Q", start + rows.query),
            texts.take(pa.array(start + rows.query)),
            make_ids("S", rows.item),
            pa.array(rows.grade),
            splits.take(pa.array(chunk.split[rows.query])),
            kinds.take(pa.array(chunk.kind[rows.query])),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SHOP_JUDGMENTS)
