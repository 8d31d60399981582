"""How hard the generated shop is for lexical search: BM25 on its test queries, in every locale."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from restd.bench.measure import timed
from restd.data import Catalog, read_judgments, write_dataset
from restd.evaluate import judge, ndcg, rank_all, read_tests, recall
from restd.rankers import Bm25
from restd.shop import ShopSpec, shop_source
from restd.snapshot import Snapshot

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
        snapshot = Snapshot.numbered(catalog.ids(), catalog)
        tests = read_tests(out, snapshot)
        ranking = rank_all(Bm25.of(snapshot), tests, depth=_DEPTH)
        judged = judge(ranking.rows, tests, np.arange(items))
        judgments = read_judgments(out)
        kinds = dict(zip(judgments["query_id"].to_pylist(), judgments["kind"].to_pylist(), strict=True))
        kind_of = np.array([kinds[query] for query in tests.ids])
        gains, missed = ndcg(judged, k=10), judged.gains == 0
        return {
            "generate_seconds": seconds,
            "test_queries": len(tests),
            "ndcg@10": float(gains.mean()),
            "recall@100": float(recall(judged, k=100).mean()),
            "missed@10": float(missed[:, :10].all(1).mean()),
            "missed@100": float(missed.all(1).mean()),
            "ndcg@10_by_kind": {kind: float(gains[kind_of == kind].mean()) for kind in np.unique(kind_of).tolist()},
        }
