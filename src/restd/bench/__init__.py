"""Benchmarks: ratios of two sides measured in the same run, in turn where a run repeats."""

from collections.abc import Callable
from typing import Any

from restd.bench.decode import bench_decode
from restd.bench.index import bench_index
from restd.bench.jobs import bench_jobs
from restd.bench.overhead import bench_overhead
from restd.bench.recommend import bench_recommend
from restd.bench.search import bench_search
from restd.bench.serve import bench_serve
from restd.bench.shop import bench_shop
from restd.bench.teacher import bench_teacher
from restd.bench.train import bench_train
from restd.bench.trie import bench_trie

BENCHMARKS: dict[str, Callable[..., dict[str, Any]]] = {
    "index": bench_index,
    "trie": bench_trie,
    "shop": bench_shop,
    "overhead": bench_overhead,
    "teacher": bench_teacher,
    "train": bench_train,
    "decode": bench_decode,
    "search": bench_search,
    "serve": bench_serve,
    "recommend": bench_recommend,
    "jobs": bench_jobs,
}

__all__ = ["BENCHMARKS"]
