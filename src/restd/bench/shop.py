"""How hard the generated shop is for word overlap alone: BM25 on its test queries, in every locale."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from restd._arrow import pc
from restd.baselines import Bm25
from restd.bench.measure import timed
from restd.data import Catalog, read_judgments, write_dataset
from restd.data.shop import ShopSpec, shop_source
from restd.evaluate import ndcg, recall

_LOCALES = ("us", "es", "jp")
_DEPTH = 100


def bench_shop(items: int = 20_000) -> dict[str, Any]:
    """Generate the shop in each locale and let BM25 search it."""
    return {"items": items, **{locale: _locale(locale, items) for locale in _LOCALES}}


def _locale(locale: str, items: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / locale
        seconds, _ = timed(lambda: write_dataset(shop_source(ShopSpec(locale=locale, items=items)), out))
        catalog = Catalog(out)
        judgments = read_judgments(out)
        tests = judgments.filter(pc.and_(pc.equal(judgments["split"], "test"), pc.greater(judgments["grade"], 0)))
        return {"generate_seconds": seconds, **_bm25(catalog, tests)}


def _bm25(catalog: Catalog, positives: pa.Table) -> dict[str, Any]:
    row_of = {item: row for row, item in enumerate(catalog.ids().to_pylist())}
    grouped: dict[str, set[int]] = {}
    kinds: dict[str, str] = {}
    for query, item, kind in zip(*(positives[name].to_pylist() for name in ("query", "item", "kind")), strict=True):
        grouped.setdefault(query, set()).add(row_of[item])
        kinds[query] = kind
    queries = list(grouped)
    found, _ = Bm25.of(catalog).rank(queries, _DEPTH)
    relevant = np.array(
        [[row in grouped[query] for row in ranked] for query, ranked in zip(queries, found, strict=True)]
    )
    counts = np.array([len(grouped[query]) for query in queries])
    gains = ndcg(relevant, counts, k=10)
    kind_of = np.array([kinds[query] for query in queries])
    return {
        "test_queries": len(queries),
        "ndcg@10": float(gains.mean()),
        "recall@100": float(recall(relevant, counts, k=100).mean()),
        "missed@10": float((~relevant[:, :10].any(1)).mean()),
        "missed@100": float((~relevant.any(1)).mean()),
        "ndcg@10_by_kind": {kind: float(gains[kind_of == kind].mean()) for kind in sorted(set(kinds.values()))},
    }
