"""A bounded queue in front of the model, and dynamic batching: one thread computes, the event loop never waits."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Generic, Protocol, TypeVar, cast

from restd.serve.problems import DeadlineError, NotReadyError, OverloadedError

Answer = TypeVar("Answer")
Given = TypeVar("Given", covariant=True)
_SMOOTHING = 0.2
"""Share of the latest batch in the running mean of seconds per query."""
_SHARE_OF_DEADLINE = 0.5
"""How much of the time until its deadline a request may be expected to take; the rest is for what nobody expected."""


class Work(Hashable, Protocol[Given]):
    """What is done with queries; equal values are done together. Answers come in the order of the queries."""

    def __call__(self, queries: Sequence[Any]) -> Sequence[Given]:
        """Answer each query; runs in the worker thread."""
        ...


class Watcher(Protocol):
    """What counts the queue's work."""

    def waiting(self, queries: int) -> None:
        """So many queries are waiting now."""
        ...

    def batch(self, queries: int, seconds: float) -> None:
        """A batch was answered."""
        ...


@dataclass(frozen=True, slots=True)
class Answers(Generic[Answer]):
    """Answers of one request, in the order of its queries; None for a query that the deadline cut."""

    answers: list[Answer | None]
    queue_ms: float
    """From arrival to the start of the request's last batch."""
    compute_ms: float
    """The model's time for all batches that the request was a part of."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """Work that is like no other: a function that is called alone."""

    function: Callable[[], Any]

    def __call__(self, queries: Sequence[Any]) -> list[Any]:
        del queries
        return [self.function()]


@dataclass(slots=True, eq=False)
class _Job:
    """A request's queries, or as many of them as a batch takes."""

    work: Work[Any]
    queries: Sequence[Any]
    cost: int
    arrived: float
    key: int
    """Hash of the work: most comparisons end here, however long the lists of a filter are."""
    future: asyncio.Future[Sequence[Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    started: float = 0.0
    seconds: float = 0.0
    is_dropped: bool = False

    def joins(self, first: "_Job") -> bool:
        """Whether it can be done together with another job."""
        return self.key == first.key and self.work == first.work


class BatchQueue:
    """Requests wait here for the one thread that runs the model.

    An idle model starts at once. While it runs, requests gather, and those with equal work are answered together. Only
    where there was a crowd (several requests in the last batch, or some waiting behind it) does the model wait, for
    `max_wait` seconds at most after that batch, so that the next gets fuller. A lone client never waits.

    Args:
        capacity: queries that may wait; more are refused with `OverloadedError`, and so is a request that would
            probably wait beyond its deadline.
        max_batch: queries that are answered together.
        max_wait: seconds that a crowd is waited for.
        watcher: counts what happens.
    """

    def __init__(
        self, *, capacity: int = 256, max_batch: int = 32, max_wait: float = 0.004, watcher: Watcher | None = None
    ) -> None:
        self.capacity, self.max_batch, self.max_wait = capacity, max_batch, max_wait
        self._watcher = watcher
        self._jobs: deque[_Job] = deque()
        self._batch: Sequence[_Job] = ()
        self._waiting = 0
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="restd-model")
        self._scheduler: asyncio.Task[None] | None = None
        self._last_end = -math.inf
        self._was_crowded = False
        self._seconds_per_query = 0.0

    @property
    def waiting(self) -> int:
        """Queries that wait now."""
        return self._waiting

    @property
    def is_busy(self) -> bool:
        """Whether the model computes."""
        return bool(self._batch)

    def start(self) -> None:
        """Begin to work, on the running event loop."""
        self._scheduler = asyncio.get_running_loop().create_task(self._schedule())

    async def close(self) -> None:
        """Refuse whatever waits; a batch that is being computed (`is_busy`) ends by itself, for nobody."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.cancel()
            await asyncio.gather(scheduler, return_exceptions=True)
        for job in (*self._batch, *self._jobs):
            if not job.future.done():
                job.future.set_exception(NotReadyError("The service is stopping; send the request to another one."))
        self._jobs.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def submit(
        self, work: Work[Answer], queries: Sequence[Any], *, deadline: float | None = None
    ) -> Answers[Answer]:
        """Answer queries, together with those of other requests for equal work.

        Args:
            work: what to do.
            queries: of one request; more than `max_batch` are answered in several batches.
            deadline: `time.monotonic()` at which the client gets what there is, or `DeadlineError`.
        """
        parts = [queries[start : start + self.max_batch] for start in range(0, len(queries), self.max_batch)]
        return await self._answers(work, parts, len(queries), deadline)

    async def run(self, call: Callable[[], Answer], *, deadline: float | None = None, cost: int = 1) -> Answer:
        """Do something else with the model, alone and in its turn; `run_timed` says how long it took, too."""
        return cast("Answer", (await self.run_timed(call, deadline=deadline, cost=cost)).answers[0])

    async def run_timed(
        self, call: Callable[[], Answer], *, deadline: float | None = None, cost: int = 1
    ) -> Answers[Answer]:
        """Do something else with the model, alone and in its turn; the result is the only answer.

        Args:
            call: what to do; runs in the worker thread.
            deadline: as for `submit`.
            cost: how many queries it counts as.
        """
        return await self._answers(_Call(call), [[None]], cost, deadline)

    async def _answers(
        self, work: Work[Answer], parts: Sequence[Sequence[Any]], cost: int, deadline: float | None
    ) -> Answers[Answer]:
        self._refuse(cost)
        self._refuse_late(cost, deadline)
        now, key = time.monotonic(), hash(work)
        jobs = [_Job(work, part, cost if len(parts) == 1 else len(part), now, key) for part in parts]
        self._jobs.extend(jobs)
        self._count(cost)
        self._arrival.set()
        await self._wait(jobs, deadline)
        answered = [job for job in jobs if not job.is_dropped]
        if not answered:
            raise DeadlineError(
                f"There was no answer after {1000 * (time.monotonic() - now):.0f} ms, the deadline of a request. Ask "
                "for less (fewer queries, a smaller beam), or try again later."
            )
        answers: list[Answer | None] = []
        for job in jobs:
            answers += [None] * len(job.queries) if job.is_dropped else job.future.result()
        queued = max(job.started for job in answered) - now
        return Answers(answers, 1000 * queued, 1000 * sum(job.seconds for job in answered))

    def _refuse(self, cost: int) -> None:
        if self._scheduler is None:
            raise NotReadyError("The service is not ready; try again in a moment.", headers={"Retry-After": "1"})
        if self._waiting + cost > self.capacity:
            raise OverloadedError(
                f"{self._waiting} queries are waiting, and the request has {cost} more; at most {self.capacity} may "
                "wait. Try again later, as Retry-After says.",
                headers={"Retry-After": str(self.retry_after())},
            )

    def _refuse_late(self, cost: int, deadline: float | None) -> None:
        """Refuse at once what would come too late; computed for nobody, it would make all behind it late as well."""
        if deadline is None or not (self._waiting or self._batch):
            return
        expected = self._seconds_ahead() + min(cost, self.max_batch) * self._seconds_per_query
        if expected > _SHARE_OF_DEADLINE * (deadline - time.monotonic()):
            raise OverloadedError(
                f"{self._waiting} queries are waiting, and the request has {cost} more; the answer would probably come "
                "too late. Try again later, as Retry-After says.",
                headers={"Retry-After": str(self.retry_after())},
            )

    def retry_after(self) -> int:
        """Seconds until what waits now is probably done."""
        return max(1, math.ceil(self._seconds_ahead()))

    def _seconds_ahead(self) -> float:
        """How long the queries that wait or are computed now will probably take."""
        return (self._waiting + sum(job.cost for job in self._batch)) * self._seconds_per_query

    async def _wait(self, jobs: Sequence[_Job], deadline: float | None) -> None:
        """Wait until all jobs are done or one has failed; drop what is left then, at the deadline, or if cancelled."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            done, _ = await asyncio.wait(
                [job.future for job in jobs], timeout=timeout, return_when=asyncio.FIRST_EXCEPTION
            )
        finally:
            for job in jobs:
                if not job.future.done():
                    self._drop(job)
        for future in done:
            future.result()  # raises what its batch raised

    def _drop(self, job: _Job) -> None:
        job.is_dropped = True
        job.future.cancel()
        if not job.started:
            self._jobs.remove(job)
            self._count(-job.cost)

    def _count(self, cost: int) -> None:
        self._waiting += cost
        if self._watcher is not None:
            self._watcher.waiting(self._waiting)

    async def _schedule(self) -> None:
        """Form batches and have them computed, for as long as the service runs."""
        loop = asyncio.get_running_loop()
        while True:
            while not self._jobs:
                self._arrival.clear()
                await self._arrival.wait()
            await self._gather_crowd()
            if not self._jobs:  # the last client left meanwhile
                continue
            batch = self._batch = self._next_batch()
            began = time.monotonic()
            for job in batch:
                job.started = began
            self._count(-sum(job.cost for job in batch))
            outcomes = await loop.run_in_executor(self._thread, _outcomes, batch)
            self._finish(batch, outcomes, time.monotonic() - began)

    async def _gather_crowd(self) -> None:
        """After a batch with a crowd, give its clients a moment to return."""
        until = self._last_end + self.max_wait
        while self._was_crowded and self._waiting < self.max_batch and (left := until - time.monotonic()) > 0:
            self._arrival.clear()
            try:
                await asyncio.wait_for(self._arrival.wait(), left)
            except TimeoutError:
                return

    def _next_batch(self) -> list[_Job]:
        """The job that has waited longest, and those behind it with equal work, as many as fit."""
        first = self._jobs.popleft()
        batch, queries = [first], len(first.queries)
        for job in tuple(self._jobs):
            if queries + len(job.queries) <= self.max_batch and job.joins(first):
                self._jobs.remove(job)
                batch.append(job)
                queries += len(job.queries)
        return batch

    def _finish(self, batch: Sequence[_Job], outcomes: Sequence[Any], seconds: float) -> None:
        """Hand the answers out, and remember how the model is doing."""
        for job, outcome in zip(batch, outcomes, strict=True):
            job.seconds = seconds
            if job.future.done():
                continue  # its client left, or its deadline passed
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)
        queries = sum(job.cost for job in batch)
        share = _SMOOTHING if self._seconds_per_query else 1.0
        self._seconds_per_query += share * (seconds / queries - self._seconds_per_query)
        self._last_end, self._was_crowded, self._batch = time.monotonic(), len(batch) > 1 or bool(self._jobs), ()
        if self._watcher is not None:
            self._watcher.batch(queries, seconds)


def _outcomes(batch: Sequence[_Job]) -> list[Any]:
    """Answers of each job, or what it raised; in the worker thread."""
    work = batch[0].work
    try:
        answers = work([query for job in batch for query in job.queries])
    except BaseException as error:
        # one request's fault must not fail the others
        return [_as_failure(error)] if len(batch) == 1 else [_outcomes([job])[0] for job in batch]
    ends = accumulate((len(job.queries) for job in batch), initial=0)
    return [answers[start:end] for start, end in pairwise(ends)]


def _as_failure(error: BaseException) -> Exception:
    """The error as a future can raise it: no end of an iteration, and nothing that would end the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"The model's work ended with {error!r}.")
    failure.__cause__ = error
    return failure
