"""What runs side by side gain: one process with all threads against as many as there are threads, with one each."""

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import torch

from restd.bench.measure import machine, timed
from restd.bench.recommend import some_shoppers, some_sids, tiger_updates
from restd.data import leave_one_out

_USERS = 2_000
_MICRO = 64
_SECONDS = 120.0
"""A worker that says nothing for so long will not say anything."""


def bench_jobs(updates: int = 3, rounds: int = 5, jobs: int | None = None, batch: int = 256) -> dict[str, Any]:
    """Time updates of TIGER, as many models' as there are jobs: one after another, and side by side, turn by turn.

    Args:
        updates: of each model, in a turn.
        rounds: turns of both ways.
        jobs: models; as many as there are threads, and two at least.
        batch: pairs in an update.
    """
    jobs = jobs or max(torch.get_num_threads(), 2)
    threads = max(torch.get_num_threads() // jobs, 1)
    seconds: dict[str, list[float]] = {"one_after_another": [], "side_by_side": []}
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        alone = _updates(batch, folder)
        workers = [held.enter_context(_worker(updates, batch, threads)) for _ in range(jobs)]
        for number in range(rounds + 1):
            sides = {
                "one_after_another": lambda: [next(alone) for _ in range(jobs * updates)],
                "side_by_side": lambda: _all(workers),
            }
            for name in sides if number % 2 else reversed(sides):
                spent, _ = timed(sides[name])
                if number:  # the first warms up
                    seconds[name].append(spent)
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


def _updates(batch: int, folder: Path) -> Iterator[None]:
    held = leave_one_out(some_shoppers(_USERS), "train")
    return tiger_updates(held, some_sids(), folder, batch=batch, micro=min(batch, _MICRO))


@contextmanager
def _worker(updates: int, batch: int, threads: int) -> Iterator[Any]:
    """A process that makes some updates whenever it is asked to."""
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
        held = _updates(batch, Path(folder))
        pipe.send(True)
        while pipe.recv():
            for _ in range(updates):
                next(held)
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
