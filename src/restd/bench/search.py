"""Time of a hybrid search beside the plain beam search of the same queries, and of fitting its weights."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch

from restd.bench.measure import interleaved, machine, timed
from restd.data import Catalog, write_dataset
from restd.distill import HorizonHeads
from restd.evaluate import TestSet, fit_fusion, fitting_queries, read_tests
from restd.evaluate.fitting import available_parts
from restd.index import IndexConfig, build_index, with_shape
from restd.models import CompactBackbone, CompactConfig
from restd.models.query_encoder import find_encoder
from restd.rankers import COMPANIONS, RankerContext, make_companion
from restd.search import Fusion, KeptHeads, Retriever, SearchOptions
from restd.search.candidates import best_candidates
from restd.search.generate import Generator
from restd.search.hybrid import collect_candidates
from restd.shop import ShopSpec, shop_source
from restd.snapshot import Companion, Snapshot

Result = TypeVar("Result")

_LEVELS, _CODES = 4, 256
_K = 10
_KEPT = ("generator", "bm25", "latent", "match")
"""Parts that fitting keeps on the demo's shop; `all_parts_over_beam` is with every part there is."""
_TIE = 1e-4
_TOGETHER = 128
"""Queries that are answered alone and in one batch."""
_TARGETS = {"hybrid_over_beam": 1.6, "fit_seconds": 60.0, "fused_identical": True}


def bench_search(items: int = 100_000, rounds: int = 200) -> dict[str, Any]:
    """Search the generated shop by beam and by all parts together, one query at a time and in turn; then fit weights.

    Items, texts and judged queries are generated from a seed, and the index is made of them as `restd index` makes it.
    Both sides have their own default beams: 100 prefixes for the plain search, and 40 for the hybrid one, which has
    other parts to rely on; `same_beam_over_beam` gives the hybrid 100 as well. The decoder's and the heads' weights are
    random, so that the parts propose hardly any item or prefix in common: the most work there can be. Both sides read
    queries with the same encoder, and every query is a new one to both.

    Args:
        items: in the catalogue.
        rounds: queries that are timed.
    """
    with tempfile.TemporaryDirectory() as folder:
        seconds, retriever = timed(lambda: make_retriever(Path(folder), items))
        data = Path(folder) / "data"
        tests = read_tests(data, retriever.snapshot, split="test", task="search")
        queries = list(dict.fromkeys(map(str, tests.texts)))[: rounds + 1]
        everything, kept = (Fusion(dict.fromkeys(parts, 1.0)) for parts in (available_parts(retriever), _KEPT))
        plain, hybrid = SearchOptions(k=_K), SearchOptions(k=_K, mode="hybrid")
        wide = replace(hybrid, beam=plain.settled("search").beam)

        def search(number: int, options: SearchOptions, fusion: Fusion | None = None) -> None:
            retriever.fusion = fusion
            retriever.rank([queries[number]], options=options)

        times = interleaved(
            {
                "beam": lambda number: search(number, plain),
                "hybrid": lambda number: search(number, hybrid, kept),
                "all_parts": lambda number: search(number, hybrid, everything),
                "same_beam": lambda number: search(number, wide, kept),
            },
            len(queries) - 1,
        )
        retriever.fusion = everything
        medians = {name: float(np.median(values)) for name, values in times.items()}
        valid = fitting_queries(data, retriever.snapshot)
        return {
            **{f"{name}_over_beam": value / medians["beam"] for name, value in medians.items() if name != "beam"},
            **_agreement(retriever, queries[:_TOGETHER], hybrid),
            **_fitting(retriever, valid),
            "wanted": _TARGETS,
            "milliseconds": {
                name: {"median": 1e3 * float(np.median(values)), "p99": 1e3 * float(np.percentile(values, 99))}
                for name, values in times.items()
            },
            "part_milliseconds": part_times(retriever, list(map(str, valid.texts[: rounds + 1])), hybrid),
            "items": items,
            "queries": len(queries) - 1,
            "beams": {"beam": plain.settled("search").beam, "hybrid": hybrid.settled("search").beam},
            "parts": list(_KEPT),
            "setup_seconds": seconds,
            "machine": machine(),
        }


def make_retriever(folder: Path, items: int) -> Retriever:
    """A retriever of a generated catalogue with every part that a hybrid search can have."""
    data, home = folder / "data", folder / "index"
    write_dataset(shop_source(ShopSpec(items=items)), data)
    build_index(Catalog(data), home, with_shape(IndexConfig(encoder="tfidf-svd"), levels=_LEVELS, codes=_CODES))
    snapshot = Snapshot.load(home, data)
    encoder = find_encoder("index", snapshot.index, home)
    backbone = CompactBackbone(encoder, snapshot.index.sizes, CompactConfig(), seed=0)
    width, dim = backbone.width, snapshot.points.shape[1]
    heads = KeptHeads.of(HorizonHeads(width, dim, horizon=_LEVELS), torch.ones(_LEVELS), snapshot)
    retriever = Retriever(backbone, snapshot, heads=heads)
    context = RankerContext(retriever.snapshot, data, home, shared={})
    retriever.set_companions([make_companion(name, context) for name in COMPANIONS])
    retriever.fusion = Fusion(dict.fromkeys(available_parts(retriever), 1.0))
    return retriever


def _agreement(retriever: Retriever, queries: Sequence[str], options: SearchOptions) -> dict[str, Any]:
    """Whether queries are answered alone as they are in a batch."""
    rows, scores = retriever.rank(list(queries), options=options)
    alone = [retriever.rank([query], options=options) for query in queries]
    own_rows, own_scores = (np.concatenate([one[part] for one in alone]) for part in (0, 1))
    difference = float(np.abs(own_scores - scores).max())
    return {
        "fused_identical": bool((own_rows == rows).all()) and difference <= _TIE,
        "fused_queries": len(queries),
        "fused_max_score_difference": difference,
    }


def _fitting(retriever: Retriever, valid: TestSet) -> dict[str, Any]:
    """Time of collecting candidates of the validation queries and choosing weights."""
    seconds, _ = timed(lambda: fit_fusion(retriever, valid, notify=lambda _: None))
    return {"fit_seconds": seconds, "fit_queries": len(valid)}


class _Stopwatch:
    """Adds up where the time of searches goes."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[[], Result]) -> Result:
        """Do some work and keep how long it took."""
        spent, result = timed(work)
        self.seconds.setdefault(name, []).append(spent)
        return result

    def medians(self) -> dict[str, float]:
        """Milliseconds by name, the longest first."""
        medians = {name: 1e3 * float(np.median(values)) for name, values in self.seconds.items()}
        return dict(sorted(medians.items(), key=lambda pair: -pair[1]))


@dataclass(frozen=True, slots=True, eq=False)
class _TimedCompanion:
    """A companion whose lists and scores are timed."""

    inner: Companion
    watch: _Stopwatch
    name: str

    @property
    def snapshot_hash(self) -> str:
        return self.inner.snapshot_hash

    def rank(self, queries: Sequence[Any], k: int) -> Any:
        return self.watch.time(f"{self.name} list", lambda: self.inner.rank(queries, k))

    def scores(self, queries: Sequence[Any], rows: Any) -> Any:
        return self.watch.time(f"{self.name} scores", lambda: self.inner.scores(queries, rows))

    def following(self, snapshot: Snapshot, kept: Any, vectors: Any) -> Companion:
        return self.inner.following(snapshot, kept, vectors)


class _TimedGenerator(Generator):
    """A generator whose candidates are timed: reading the query, beam, heads, and exact scores of others' items."""

    def __init__(self, timed: Generator, watch: _Stopwatch) -> None:
        super().__init__(timed.backbone, trained_on=timed.trained_on)
        self.watch = watch

    def candidates(self, *arguments: Any, **options: Any) -> Any:
        return self.watch.time(
            "generator and heads", lambda: super(_TimedGenerator, self).candidates(*arguments, **options)
        )


def part_times(retriever: Retriever, queries: Sequence[str], options: SearchOptions) -> dict[str, float]:
    """Median milliseconds of each part of a hybrid search, one query at a time; the first query is not counted."""
    watch = _Stopwatch()
    generator = _TimedGenerator(retriever.generator, watch)
    snapshot = retriever.snapshot
    timed_ones = [cast(Companion, _TimedCompanion(each, watch, each.name)) for each in snapshot.companions]
    snapshot = snapshot.with_companions(timed_ones)
    fusion, settled = retriever.fusion_of(snapshot), options.settled("search")

    def search(query: str) -> None:
        table = watch.time(
            "all candidates",
            lambda: collect_candidates(
                generator, snapshot, [query], settled, parts=fusion.parts, heads=retriever.heads
            ),
        )
        watch.time("fuse", lambda: best_candidates(table.rows, table.fused(fusion.weights), settled.k))

    search(queries[0])
    watch.seconds.clear()
    for query in queries[1:]:
        search(query)
    return watch.medians()
