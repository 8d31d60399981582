"""The judged queries of a shop, from the draw to the stream of rows."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from restd.data.schema import JUDGMENTS, SPLITS
from restd.data.shop.asking import query_texts
from restd.data.shop.items import numbered
from restd.data.shop.judging import judge
from restd.data.shop.lexicon import Lexicon
from restd.data.shop.queries import INDEXED, KINDS, Queries, draw_queries, quota
from restd.data.shop.wishes import Catalogue, build_catalogue
from restd.data.shop.world import World

SHOP_JUDGMENTS = JUDGMENTS.append(pa.field("kind", pa.string()))

CHUNK = 20_000


def worded_queries(shop: Catalogue, words: Lexicon, seed: int) -> tuple[Queries, pa.Array]:
    """Return the queries that stay, training first, and their texts, of which no two are the same."""
    drawn = draw_queries(shop, seed)
    drawn = drawn.take(np.argsort(drawn.split, kind="stable"))
    texts = query_texts(shop.world, words, drawn, seed)
    codes = texts.dictionary_encode().indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    first = np.sort(first)
    wanted = quota(len(shop.world))
    kept = np.concatenate(
        [
            first[drawn.split[first] == split][:limit]
            for split, limit in enumerate((wanted.train, wanted.held, wanted.held))
        ]
    )
    return drawn.take(kept), texts.take(pa.array(kept))


def judgment_batches(world: World, words: Lexicon, seed: int) -> Iterator[pa.RecordBatch]:
    """Yield the judged rows, all rows of a query side by side.

    >>> from restd.data.shop.lexicon import load_lexicon
    >>> from restd.data.shop.world import build_world
    >>> batch = next(judgment_batches(build_world(500, 0), load_lexicon("jp"), 0))
    >>> sorted(set(batch["split"].to_pylist()))
    ['test', 'train', 'valid']
    """
    shop = build_catalogue(world, INDEXED)
    queries, texts = worded_queries(shop, words, seed)
    splits = pa.array(SPLITS, pa.string())
    kinds = pa.array(KINDS, pa.string())
    for start in range(0, len(queries), CHUNK):
        chunk = queries.take(np.arange(start, min(start + CHUNK, len(queries))))
        rows = judge(shop, chunk, np.random.default_rng([seed, 5, start]))
        columns = [
            numbered("Q", start + rows.query),
            texts.take(pa.array(start + rows.query)),
            numbered("S", rows.item),
            pa.array(rows.grade),
            splits.take(pa.array(chunk.split[rows.query])),
            kinds.take(pa.array(chunk.kind[rows.query])),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SHOP_JUDGMENTS)
