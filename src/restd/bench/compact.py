"""The compact retriever from text to results, beside its own encoder with exact vector search."""

from typing import Any

import faiss
import numpy as np
import torch

from restd.bench.measure import interleaved
from restd.codes.trie import Trie
from restd.encode import load_encoder
from restd.models import CompactBackbone, CompactConfig
from restd.search import beam_search
from restd.shop import ShopSpec, shop_source

_QUERIES = 200
_BATCH = 32


def bench_compact(trie: Trie, sizes: tuple[int, ...], *, beam: int) -> dict[str, Any]:
    """Latency of one query at a time and throughput of batches, the encoder included; both sides in turn.

    The decoder's weights and the vectors are random: neither side's time depends on them.
    """
    encoder = load_encoder("minilm", device="cpu")
    model = CompactBackbone(encoder, sizes, CompactConfig(), seed=0).eval()
    stepper = model.stepper()
    vectors = np.random.default_rng(0).standard_normal((trie.leaves, encoder.dim), np.float32)
    exact = faiss.IndexFlatIP(encoder.dim)
    exact.add(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    @torch.inference_mode()
    def generative(texts: list[str]) -> None:
        memory = model.encode(model.prepare(texts).batch(np.arange(len(texts))))
        trie.items_of(beam_search(stepper, memory, trie, width=beam).leaves.flatten())

    def dense(texts: list[str]) -> None:
        exact.search(encoder.encode(texts), beam)

    queries = _queries()

    def in_turn(batch: int) -> dict[str, np.ndarray]:
        """Seconds of every batch of queries, by side; the first batch is not counted."""
        sides = {
            "generative": lambda number: generative(queries[number * batch : (number + 1) * batch]),
            "faiss_exact": lambda number: dense(queries[number * batch : (number + 1) * batch]),
        }
        return interleaved(sides, len(queries) // batch - 1)

    alone, together = in_turn(1), in_turn(_BATCH)
    return {
        "items": trie.leaves,
        **{
            name: {
                "median_ms": 1e3 * float(np.median(alone[name])),
                "p99_ms": 1e3 * float(np.percentile(alone[name], 99)),
                "queries_per_second": _BATCH / float(np.median(together[name])),
            }
            for name in alone
        },
        "queries": len(queries),
        "batch": _BATCH,
    }


def _queries() -> list[str]:
    """Distinct queries of the generated shop."""
    source = shop_source(ShopSpec(locale="us", items=1_000, seed=0))
    assert source.judgments is not None
    queries = dict.fromkeys(query for batch in source.judgments() for query in batch.column("query").to_pylist())
    return list(queries)[:_QUERIES]
