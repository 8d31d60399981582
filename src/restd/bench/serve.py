"""The service under load: what batching gains, what HTTP costs, and what is left of it when there is too much to do."""

import asyncio
import json
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from restd.bench.measure import interleaved, machine, timed
from restd.bench.open_loop import OpenLoop, Reply, post
from restd.bench.served import ServerProcess, server_of, write_shop_model
from restd.data import History, Query
from restd.search import Hit, SearchOptions
from restd.serve import Limits, ModelSource, ServedModel

_NARROW = 10
"""Beam at which one query leaves room in the processor for others; a beam of 100 is a batch by itself."""
_K = 10
_TOLERANCE = 1e-5
_QUERIES = 200
_DEADLINE_BATCHES = 8
"""Deadline of the service that is overloaded, in full batches: what its queue takes."""
_TARGETS = {
    "batching_gain": 2.0,
    "overhead": 1.15,
    "overload_goodput": 0.9,
    "wrong_answers": 0,
    "server_errors": 0,
    "memory_growth": 0.05,
}
_LATE = 504


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        rounds: how often every block is repeated; both sides of a ratio take turns.
        burst: queries that arrive together, to see how many per second are answered.
        alone: queries that are timed one at a time.
        seconds: length of a block with a fixed rate.
        queries: queries until the memory is read again.
        limit: seconds after which nothing is repeated any more, for each figure; the memory has twice as many.
    """

    rounds: int = 5
    burst: int = 64
    alone: int = 100
    seconds: float = 3.0
    queries: int = 10_000
    limit: float = 20.0


QUICK = Sizes(rounds=2, burst=32, alone=20, seconds=1.0, queries=1_000, limit=5.0)


def bench_serve(items: int = 3_000, model: Path | None = None, quick: bool = False) -> dict[str, Any]:
    """Drive the real server, as a process, with requests that arrive at a fixed rate; every answer is checked.

    A request has one query. A beam of 10 leaves room in the processor for other queries, so batches gain there
    (`batching_gain`); with the default beam of 100 a single query fills a core (`batching_gain_default_beam`).
    `overhead` compares lone requests with the bare library, at the default beam. Overload is twice what a burst was
    answered at, with a deadline that the queue alone would use up.

    Args:
        items: in the generated shop, whose model has random weights.
        model: a run or a bundle to measure instead.
        quick: measure less, to see that it works.
    """
    return measure(items, model, QUICK if quick else Sizes())


def measure(items: int, model: Path | None, sizes: Sizes) -> dict[str, Any]:
    """All figures, in blocks of these sizes."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        path = write_shop_model(Path(folder), items) if model is None else model
        work = _Workload(ModelSource(path).load())
        session = _Session(runner, work, sizes)
        seconds_per_query = work.seconds_per_query(Limits().max_batch)
        with server_of(path) as batching:
            with server_of(path, "--max-batch", 1) as single:
                saturation = session.saturation(batching, single)
            before = batching.resident_bytes()
            overhead = {name: session.overhead(batching, name) for name in work.options}
            steady = session.steady(batching, rate=0.7 * saturation["narrow"]["queries_per_second"]["batching"])
            sent = session.fill(batching)
            growth = batching.resident_bytes() / before - 1
        deadline = max(100, math.ceil(1e3 * _DEADLINE_BATCHES * Limits().max_batch * seconds_per_query))
        with server_of(path, "--deadline-ms", deadline) as hurried:
            overload = session.overload(hurried, deadline=deadline / 1e3)
    return {
        "batching_gain": saturation["narrow"]["gain"],
        "batching_gain_default_beam": saturation["default"]["gain"],
        "overhead": overhead["default"]["ratio"],
        "overhead_narrow_beam": overhead["narrow"]["ratio"],
        "overhead_processor_time": overhead["default"]["processor_time_ratio"],
        "overload_goodput": overload["ratio"],
        "p99_over_p50": steady["p99_over_p50"],
        "wrong_answers": session.wrong,
        "server_errors": session.errors,
        "memory_growth": growth,
        "wanted": _TARGETS,
        "saturation": saturation,
        "overhead_milliseconds": overhead,
        "at_70_percent": steady,
        "overload": {**overload, "deadline_ms": deadline},
        "memory": {"megabytes": round(before / 1e6, 1), "queries": sent},
        "checked_answers": session.checked,
        "task": work.served.task,
        "items": len(work.served.snapshot),
        "beams": {name: options.beam for name, options in work.options.items()},
        "k": _K,
        "machine": {**machine(), "cores": os.cpu_count()},
    }


class _Workload:
    """Queries of a model, as requests and as the library answers them."""

    def __init__(self, served: ServedModel) -> None:
        self.served = served
        mode = served.default_mode()
        self.options = {
            "narrow": SearchOptions(k=_K, beam=_NARROW, mode=mode).settled(served.task, seen=served.task == "search"),
            "default": SearchOptions(k=_K, mode=mode).settled(served.task, seen=served.task == "search"),
        }
        """How each kind of request searches."""
        self._expected: dict[tuple[int, str], list[Hit]] = {}

    @cached_property
    def queries(self) -> Sequence[Query]:
        """Titles of items spread over the catalogue, or histories that begin there."""
        snapshot = self.served.snapshot
        rows = np.unique(np.linspace(0, len(snapshot) - 1, _QUERIES).astype(int))
        if self.served.task == "search":
            titles = snapshot.items.titles()
            return list(dict.fromkeys(title for row in rows if (title := str(titles[row]).strip())))
        ids = snapshot.ids.to_pylist()
        return [History(tuple(ids[row : row + 5])) for row in rows]

    def search(self, number: int, name: str) -> list[Hit]:
        """Answer one query with the library."""
        query = self.queries[number % len(self.queries)]
        return self.served.retriever.snapshot_search.hits([query], self.options[name])[0]

    def expected(self, number: int, name: str) -> list[Hit]:
        """The same, computed once."""
        place = number % len(self.queries), name
        if place not in self._expected:
            self._expected[place] = self.search(*place)
        return self._expected[place]

    def seconds_per_query(self, batch: int) -> float:
        """Time of a query with a narrow beam in a full batch."""
        queries = [self.queries[number % len(self.queries)] for number in range(batch)]
        search, options = self.served.retriever.snapshot_search, self.options["narrow"]
        seconds = interleaved({"batch": lambda _: search.hits(queries, options)}, 3)
        return float(np.median(seconds["batch"])) / batch

    def request(self, number: int, name: str) -> bytes:
        """The request for one query."""
        query = self.queries[number % len(self.queries)]
        options = self.options[name]
        common = {"k": options.k, "beam": options.beam, "mode": options.mode}
        if isinstance(query, History):
            return post("/v1/recommend", {"history": list(query.items), **common})
        return post("/v1/search", {"query": query, **common})


@dataclass(eq=False)
class _Session:
    """Measures one figure after the other, and checks every answer on the way."""

    runner: asyncio.Runner
    work: _Workload
    sizes: Sizes
    checked: int = 0
    wrong: int = 0
    errors: int = 0

    def offer(
        self, server: ServerProcess, name: str, count: int, *, rate: float = math.inf, may_be_late: bool = False
    ) -> list[Reply]:
        """Send requests of one kind, and check what comes back."""
        requests = [self.work.request(number, name) for number in range(count)]
        replies = self.runner.run(self._offered(server.url, requests, rate))
        self._check(replies, name, may_be_late=may_be_late)
        return replies

    async def _offered(self, url: str, requests: Sequence[bytes], rate: float) -> list[Reply]:
        loop = OpenLoop(url)
        try:
            return await loop.offer(requests, rate=rate)
        finally:
            await loop.close()

    def _check(self, replies: Iterable[Reply], name: str, *, may_be_late: bool) -> None:
        for reply in replies:
            if reply.is_answered:
                self.checked += 1
                self.wrong += not same_answer(json.loads(reply.body), self.work.expected(reply.number, name))
            elif reply.is_broken or (reply.status >= 500 and not (may_be_late and reply.status == _LATE)):
                self.errors += 1

    def rounds(self) -> Iterator[int]:
        """Numbers of rounds, as many as there is time for; the first one, 0, warms up."""
        end = time.monotonic() + self.sizes.limit
        for number in range(self.sizes.rounds + 1):
            if number < 2 or time.monotonic() < end:
                yield number

    def saturation(self, batching: ServerProcess, single: ServerProcess) -> dict[str, Any]:
        """Queries per second when all arrive together: with batches, and one at a time."""
        sides, results = {"batching": batching, "single": single}, {}
        for name in self.work.options:
            speeds: dict[str, list[float]] = {side: [] for side in sides}
            for number in self.rounds():
                order = list(sides) if number % 2 else list(sides)[::-1]
                for side in order:
                    replies = self.offer(sides[side], name, self.sizes.burst)
                    if number:
                        speeds[side].append(goodput(replies))
            medians = {side: float(np.median(values)) for side, values in speeds.items()}
            gains = np.array(speeds["batching"]) / np.array(speeds["single"])
            results[name] = {
                "gain": float(np.median(gains)),
                "gain_spread": spread(gains),
                "queries_per_second": medians,
                "burst": self.sizes.burst,
                "rounds": len(gains),
            }
        return results

    def overhead(self, server: ServerProcess, name: str) -> dict[str, Any]:
        """Median of a lone request over that of the bare library, for the same queries in turn.

        On a busy machine every process that wakes up waits for the others, and a request wakes several. The ratio of
        processor time is free of that; it leaves out the client.
        """
        loop, replies = OpenLoop(server.url), []
        count = len(self.work.queries)
        alone, _ = timed(lambda: self.work.search(0, name))
        pairs = max(2, min(self.sizes.alone, int(self.sizes.limit / (2 * alone))))
        requests = [self.work.request(number, name) for number in range(count)]

        own_cpu: list[float] = []

        def ask(number: int) -> None:
            replies.extend(self.runner.run(loop.offer([requests[number % count]])))

        def search(number: int) -> None:
            before = time.process_time()
            self.work.search(number, name)
            own_cpu.append(time.process_time() - before)

        before = server.cpu_seconds()
        seconds = interleaved({"http": ask, "library": search}, pairs)
        cpu = {"http": server.cpu_seconds() - before, "library": sum(own_cpu)}
        self.runner.run(loop.close())
        in_order = (replace(reply, number=number) for number, reply in enumerate(replies))
        self._check(in_order, name, may_be_late=False)
        medians = {side: 1e3 * float(np.median(values)) for side, values in seconds.items()}
        extra = 1e3 * (seconds["http"] - seconds["library"])
        return {
            "ratio": medians["http"] / medians["library"],
            **medians,
            "extra_median": float(np.median(extra)),
            "extra_spread": spread(extra),
            "processor_time": {side: 1e3 * value / len(replies) for side, value in cpu.items()},
            "processor_time_ratio": cpu["http"] / cpu["library"],
            "queries": pairs,
        }

    def steady(self, server: ServerProcess, *, rate: float) -> dict[str, Any]:
        """Latencies at a rate that the service can keep up with."""
        count = max(20, int(rate * self.sizes.seconds))
        ratios, latencies = [], []
        for number in self.rounds():
            seconds = [reply.seconds for reply in self.offer(server, "narrow", count, rate=rate) if reply.is_answered]
            if not number:
                continue
            latencies += seconds
            ratios.append(np.percentile(seconds, 99) / np.median(seconds))
        return {
            "p99_over_p50": float(np.median(ratios)),
            "p99_over_p50_spread": spread(ratios),
            "p50_ms": 1e3 * float(np.median(latencies)),
            "p99_ms": 1e3 * float(np.percentile(latencies, 99)),
            "queries_per_second": rate,
            "requests": len(latencies),
        }

    def overload(self, server: ServerProcess, *, deadline: float) -> dict[str, Any]:
        """Answers in time per second at twice the capacity, over those at the capacity; both in turn."""
        in_time: dict[str, list[float]] = {"capacity": [], "twice": []}
        statuses: dict[int, int] = {}
        for number in self.rounds():
            capacity = goodput(self.offer(server, "narrow", self.sizes.burst, may_be_late=True))
            loads = {"capacity": capacity, "twice": 2 * capacity}
            for load in list(loads) if number % 2 else list(loads)[::-1]:
                rate = max(1.0, loads[load])
                count = max(1, int(rate * self.sizes.seconds))
                replies = self.offer(server, "narrow", count, rate=rate, may_be_late=True)
                if not number:
                    continue
                in_time[load].append(goodput(replies, deadline=deadline))
                if load == "twice":
                    for reply in replies:
                        statuses[reply.status] = statuses.get(reply.status, 0) + 1
        ratios = np.array(in_time["twice"]) / np.array(in_time["capacity"])
        return {
            "ratio": float(np.median(ratios)),
            "spread": spread(ratios),
            "rounds": len(ratios),
            "in_time_per_second": {load: float(np.median(values)) for load, values in in_time.items()},
            "statuses_at_twice": {str(status): count for status, count in sorted(statuses.items())},
        }

    def fill(self, server: ServerProcess) -> int:
        """Send queries until the server has answered as many as were wanted, or time is up; returns how many."""
        end, sent = time.monotonic() + 2 * self.sizes.limit, 0
        while sent < self.sizes.queries and time.monotonic() < end:
            sent += len(self.offer(server, "narrow", min(_QUERIES, self.sizes.queries - sent)))
        return sent


def goodput(replies: Sequence[Reply], *, deadline: float = math.inf) -> float:
    """Answers per second, until the last one.

    >>> goodput([Reply(0, 200, 0.0, 0.5, b""), Reply(1, 200, 0.0, 2.0, b""), Reply(2, 429, 0.0, 0.1, b"")])
    1.0
    >>> goodput([Reply(0, 200, 0.0, 0.5, b""), Reply(1, 200, 0.0, 2.0, b"")], deadline=1.0)
    0.5
    """
    in_time = sum(reply.is_answered and reply.seconds <= deadline for reply in replies)
    return in_time / max(reply.ended for reply in replies)


def same_answer(body: Mapping[str, Any], expected: Sequence[Hit]) -> bool:
    """Whether an answer has the items that the library finds, in their order, with the same scores."""
    hits = body["results"][0]["hits"]
    return [hit["item"] for hit in hits] == [hit.item for hit in expected] and all(
        abs(hit["score"] - own.score) <= _TOLERANCE * max(1.0, abs(own.score))
        for hit, own in zip(hits, expected, strict=True)
    )


def spread(values: Sequence[float] | np.ndarray) -> list[float]:
    """The quartiles around a median."""
    return [float(value) for value in np.percentile(values, [25, 75])]
