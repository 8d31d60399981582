"""Training runs side by side: one process with all threads against several processes that share them."""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import torch

from restd.bench.measure import interleaved, machine
from restd.bench.recommend import some_shoppers, some_sids, tiger_updates
from restd.data import leave_one_out

_USERS = 2_000
_MICRO = 64
_SECONDS = 120.0
"""A worker that has not answered by then is taken for dead."""


def bench_jobs(updates: int = 3, rounds: int = 5, jobs: int | None = None, batch: int = 256) -> dict[str, Any]:
    """Time updates of several TIGER models: one after another, and side by side, in turn.

    Args:
        updates: updates of each model per round.
        rounds: how often both ways are timed.
        jobs: number of models; by default one per thread, and at least two.
        batch: pairs per update.
    """
    jobs = jobs or max(torch.get_num_threads(), 2)
    threads = max(torch.get_num_threads() // jobs, 1)
    with ExitStack() as stack:
        update = _updates(batch, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        workers = [stack.enter_context(_worker(updates, batch, threads)) for _ in range(jobs)]
        sides = {
            "one_after_another": lambda _: [update(number) for number in range(jobs * updates)],
            "side_by_side": lambda _: _all(workers),
        }
        seconds = interleaved(sides, rounds)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    return {
        "throughput_ratio": medians["one_after_another"] / medians["side_by_side"],
        "examples_per_second": {name: jobs * updates * batch / value for name, value in medians.items()},
        "jobs": jobs,
        "threads_each": threads,
        "updates": updates,
        "rounds": rounds,
        "machine": machine(),
    }


def _updates(batch: int, folder: Path) -> Callable[[int], None]:
    prefixes = leave_one_out(some_shoppers(_USERS), "train")
    return tiger_updates(prefixes, some_sids(), folder, batch=batch, micro=min(batch, _MICRO))


@contextmanager
def _worker(updates: int, batch: int, threads: int) -> Iterator[Any]:
    """A process that makes some updates for every message it receives."""
    ours, theirs = Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_work, args=(theirs, updates, batch, threads), daemon=True
    )
    process.start()
    theirs.close()
    try:
        _answer(ours)  # it is ready
        yield ours
    finally:
        with suppress(OSError):  # it may be gone
            ours.send(False)
        process.join(_SECONDS)
        process.terminate()


def _work(pipe: Any, updates: int, batch: int, threads: int) -> None:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        update = _updates(batch, Path(folder))
        pipe.send(True)
        while pipe.recv():
            for number in range(updates):
                update(number)
            pipe.send(True)


def _all(workers: list[Any]) -> None:
    for worker in workers:
        worker.send(True)
    for worker in workers:
        _answer(worker)


def _answer(pipe: Any) -> None:
    try:
        if pipe.poll(_SECONDS):
            pipe.recv()
            return
    except EOFError:
        pass
    raise RuntimeError(f"A worker of the benchmark died, or did not answer within {_SECONDS:.0f} s.")
