"""The queue in front of the model: bounded in queries, fair, batched, and the same answers as one by one."""

import asyncio
import threading
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.serve.batching import BatchQueue
from restd.serve.problems import DeadlineError, NotReadyError, OverloadedError

PATIENCE = 30


@dataclass(frozen=True)
class Doubling:
    """Work that doubles numbers; equal names are one group."""

    name: str = ""
    batches: list = field(default_factory=list, compare=False)
    gate: threading.Event | None = field(default=None, compare=False)

    def __call__(self, queries):
        if self.gate is not None:
            assert self.gate.wait(PATIENCE)
        self.batches.append(list(queries))
        if "bad" in queries:
            raise ValueError("a bad query")
        return [(self.name, 2 * query) for query in queries]


def running(scenario, **options):
    """Run a coroutine function with a queue that works."""

    async def inside():
        queue = BatchQueue(**options)
        queue.start()
        try:
            return await asyncio.wait_for(scenario(queue), PATIENCE)
        finally:
            await queue.close()

    return asyncio.run(inside())


async def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


@given(
    requests=st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(), min_size=1, max_size=9)), min_size=1, max_size=12
    ),
    max_batch=st.integers(1, 8),
)
def test_every_request_gets_its_own_answers_and_no_batch_is_too_large_or_mixed(requests, max_batch):
    batches, gate = [], threading.Event()
    works = {name: Doubling(name, [], gate) for name in "abc"}

    async def scenario(queue):
        pending = [asyncio.ensure_future(queue.submit(works[name], numbers)) for name, numbers in requests]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*pending)

    results = running(scenario, max_batch=max_batch, max_wait=0.0)
    for (name, numbers), result in zip(requests, results, strict=True):
        assert result.answers == [(name, 2 * number) for number in numbers]
    batches = [batch for work in works.values() for batch in work.batches]
    assert max(map(len, batches)) <= max_batch
    assert sum(map(len, batches)) == sum(len(numbers) for _, numbers in requests)


def test_requests_that_wait_are_answered_together_in_the_order_of_their_arrival():
    gate, batches = threading.Event(), []
    first, later = Doubling("first", batches, gate), Doubling("later", batches)

    async def scenario(queue):
        blocking = asyncio.ensure_future(queue.submit(first, [0]))
        await until(lambda: queue.is_busy)
        pending = [asyncio.ensure_future(queue.submit(later, [number])) for number in range(1, 6)]
        await until(lambda: queue.waiting == 5)
        gate.set()
        return await asyncio.gather(blocking, *pending)

    running(scenario, max_batch=4)
    assert batches == [[0], [1, 2, 3, 4], [5]]


def test_an_idle_model_starts_at_once_and_a_lone_client_never_waits():
    async def scenario(queue):
        return [(await queue.submit(Doubling(), [number])).queue_ms for number in range(20)]

    waits = running(scenario, max_wait=5.0)
    assert max(waits) < 2000, "none of twenty requests waited for others"


def test_a_crowd_is_waited_for():
    work = Doubling()

    async def scenario(queue):
        await asyncio.gather(*(queue.submit(work, [number]) for number in range(2)))
        one = asyncio.ensure_future(queue.submit(work, [2]))
        await until(lambda: queue.waiting == 1)
        await asyncio.gather(one, queue.submit(work, [3]))

    running(scenario, max_batch=2, max_wait=PATIENCE)
    assert work.batches == [[0, 1], [2, 3]]


def test_what_would_come_too_late_is_refused_at_once_and_an_idle_model_tries_anything():
    """A request that is computed after its deadline is answered to nobody, and makes those behind it late as well."""
    gate = threading.Event()

    async def scenario(queue):
        await queue.run(lambda: time.sleep(0.2))  # so a query takes 0.2 s
        assert await queue.run(lambda: "tried", deadline=time.monotonic() + 0.19) == "tried"
        blocking = asyncio.ensure_future(queue.submit(Doubling("", [], gate), [0]))
        await until(lambda: queue.is_busy)
        pending = asyncio.ensure_future(queue.submit(Doubling("", [], gate), list(range(9))))
        await until(lambda: queue.waiting == 9)
        with pytest.raises(OverloadedError, match=r"9 queries are waiting, .* would probably come too late") as refusal:
            await queue.submit(Doubling("", [], gate), [1], deadline=time.monotonic() + 0.5)
        assert queue.waiting == 9
        patient = asyncio.ensure_future(queue.submit(Doubling("", [], gate), [1], deadline=time.monotonic() + PATIENCE))
        await until(lambda: queue.waiting == 10)
        gate.set()
        await asyncio.gather(blocking, pending, patient)
        return int(refusal.value.headers["Retry-After"])

    assert running(scenario) >= 1


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt])
def test_no_error_of_the_work_ends_the_queue(error):
    def ending():
        raise error

    async def scenario(queue):
        with pytest.raises(RuntimeError, match=f"ended with {error.__name__}"):
            await queue.run(ending)
        return await queue.run(lambda: "still there", deadline=time.monotonic() + PATIENCE)

    assert running(scenario) == "still there"


def test_a_rare_kind_of_request_does_not_starve_behind_a_common_one():
    """New requests of one kind join earlier ones, but the one that waits longest always goes first."""
    gate, batches = threading.Event(), []

    class Logged(Doubling):
        def __call__(self, queries):
            batches.append(self.name)
            return super().__call__(queries)

    async def scenario(queue):
        blocking = asyncio.ensure_future(queue.submit(Logged("common", [], gate), [0]))
        await until(lambda: queue.is_busy)
        rare = asyncio.ensure_future(queue.submit(Logged("rare"), [1]))
        await until(lambda: queue.waiting == 1)
        crowd = [asyncio.ensure_future(queue.submit(Logged("common"), [number])) for number in range(20)]
        await until(lambda: queue.waiting == 21)
        gate.set()
        await asyncio.gather(blocking, rare, *crowd)

    running(scenario, max_batch=4)
    assert batches[:3] == ["common", "rare", "common"]


def test_the_bound_counts_queries_and_the_refusal_says_when_to_come_again():
    gate = threading.Event()
    work = Doubling("", [], gate)

    async def scenario(queue):
        running_one = asyncio.ensure_future(queue.submit(work, [0]))
        await until(lambda: queue.is_busy)
        waiting = asyncio.ensure_future(queue.submit(work, list(range(6))))
        await until(lambda: queue.waiting == 6)
        with pytest.raises(
            OverloadedError, match="6 queries are waiting, and the request has 3 more; at most 8"
        ) as one:
            await queue.submit(work, [1, 2, 3])
        fits = asyncio.ensure_future(queue.submit(work, [1, 2]))
        await until(lambda: queue.waiting == 8)
        with pytest.raises(OverloadedError):
            await queue.run(lambda: None)
        gate.set()
        await asyncio.gather(running_one, waiting, fits)
        assert queue.waiting == 0
        return int(one.value.headers["Retry-After"])

    assert running(scenario, capacity=8) >= 1


def test_retry_after_grows_with_what_waits():
    gate = threading.Event()

    async def scenario(queue):
        await queue.run(lambda: time.sleep(0.2))
        blocking = asyncio.ensure_future(queue.submit(Doubling("", [], gate), [0]))
        await until(lambda: queue.is_busy)
        pending = asyncio.ensure_future(queue.submit(Doubling("", [], gate), list(range(50))))
        await until(lambda: queue.waiting == 50)
        seconds = queue.retry_after()
        gate.set()
        await asyncio.gather(blocking, pending)
        return seconds

    assert running(scenario, max_batch=64) >= 10


def test_one_bad_request_does_not_fail_its_neighbours():
    gate = threading.Event()
    work = Doubling("", [], gate)

    async def scenario(queue):
        pending = [asyncio.ensure_future(queue.submit(work, [query])) for query in (0, 1, "bad", 3)]
        await until(lambda: queue.is_busy)
        gate.set()
        return await asyncio.gather(*pending, return_exceptions=True)

    results = running(scenario)
    assert [results[number].answers for number in (0, 1, 3)] == [[("", 0)], [("", 2)], [("", 6)]]
    assert isinstance(results[2], ValueError)
    assert work.batches[0] == [0, 1, "bad", 3], "they were one batch"


def test_work_of_clients_that_left_is_dropped():
    gate = threading.Event()
    work = Doubling("", [], gate)

    async def scenario(queue):
        running_one = asyncio.ensure_future(queue.submit(work, [0]))
        await until(lambda: queue.is_busy)
        leaving = asyncio.ensure_future(queue.submit(work, [1, 2, 3]))
        staying = asyncio.ensure_future(queue.submit(work, [4]))
        await until(lambda: queue.waiting == 4)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert queue.waiting == 1
        gate.set()
        await asyncio.gather(running_one, staying)

    running(scenario)
    assert work.batches == [[0], [4]]


def test_a_client_that_leaves_while_its_batch_runs_harms_nobody():
    gate = threading.Event()
    work = Doubling("", [], gate)

    async def scenario(queue):
        leaving = asyncio.ensure_future(queue.submit(work, [1]))
        await until(lambda: queue.is_busy)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        gate.set()
        return (await queue.submit(work, [2])).answers

    assert running(scenario) == [("", 4)]


def test_the_deadline_ends_the_wait_whether_the_work_has_begun_or_not():
    gate = threading.Event()
    work = Doubling("", [], gate)

    async def scenario(queue):
        begun = asyncio.ensure_future(queue.submit(work, [1], deadline=time.monotonic() + 0.05))
        await until(lambda: queue.is_busy)
        with pytest.raises(DeadlineError, match="deadline"):
            await queue.submit(work, [2], deadline=time.monotonic() + 0.05)
        with pytest.raises(DeadlineError):
            await begun
        assert queue.waiting == 0
        gate.set()
        return (await queue.submit(work, [3])).answers

    assert running(scenario) == [("", 6)]
    assert work.batches == [[1], [3]], "what had not begun was never computed"


def test_a_deadline_in_the_middle_of_a_request_leaves_what_is_done():
    gate = threading.Event()

    class Slow(Doubling):
        def __call__(self, queries):
            if 2 in queries:
                assert gate.wait(PATIENCE)
            return super().__call__(queries)

    async def scenario(queue):
        pending = asyncio.ensure_future(queue.submit(Slow(), [0, 1, 2, 3], deadline=time.monotonic() + 1.0))
        result = await pending
        gate.set()
        return result

    assert running(scenario, max_batch=2).answers == [("", 0), ("", 2), None, None]


def test_a_call_waits_for_its_turn_and_counts_as_it_costs():
    gate = threading.Event()

    async def scenario(queue):
        blocking = asyncio.ensure_future(queue.submit(Doubling("", [], gate), [0]))
        await until(lambda: queue.is_busy)
        call = asyncio.ensure_future(queue.run(lambda: threading.current_thread().name, cost=5))
        await until(lambda: queue.waiting == 5)
        gate.set()
        await blocking
        return await call

    assert running(scenario).startswith("restd-model")


def test_a_call_that_fails_raises_here():
    async def scenario(queue):
        with pytest.raises(ZeroDivisionError):
            await queue.run(lambda: 1 / 0)
        return await queue.run(lambda: "still there")

    assert running(scenario) == "still there"


def test_a_queue_that_closes_refuses_what_waits_and_what_runs():
    gate = threading.Event()
    work = Doubling("", [], gate)

    async def scenario():
        queue = BatchQueue()
        with pytest.raises(NotReadyError):
            await queue.submit(work, [1])
        queue.start()
        pending = [asyncio.ensure_future(queue.submit(work, [number])) for number in range(2)]
        await until(lambda: queue.is_busy)
        await queue.close()
        results = await asyncio.gather(*pending, return_exceptions=True)
        gate.set()
        return results

    assert [type(result) for result in asyncio.run(scenario())] == [NotReadyError, NotReadyError]


def test_the_event_loop_is_never_blocked_by_the_model():
    """While the model computes, the loop turns."""
    gate = threading.Event()

    async def scenario(queue):
        pending = asyncio.ensure_future(queue.run(lambda: gate.wait(PATIENCE)))
        await until(lambda: queue.is_busy)
        turns = 0
        for _ in range(50):
            await asyncio.sleep(0)
            turns += 1
        gate.set()
        await pending
        return turns

    assert running(scenario) == 50
