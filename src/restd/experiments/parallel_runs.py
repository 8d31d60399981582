"""Training runs side by side, each in its own process.

Small models leave cores idle: two runs with one core each finish sooner than one after the other with both. This is a
head start and nothing more: the caller trains the same jobs afterwards as usual, finds most of them finished, and
continues with the rest.
"""

import multiprocessing
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Pipe, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from restd.artifacts.manifest import MANIFEST
from restd.errors import ConfigError, Interrupted, RestdError
from restd.evaluate import beam_negatives, ranked_validation
from restd.models.store import FOLDER
from restd.progress import Notify, hidden, progress
from restd.train import Job, train_retriever
from restd.train.signals import catch_stop_signals


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    """A running process, and our end of its pipe."""

    name: str
    process: SpawnProcess
    messages: Any
    """A connection, whose class depends on the operating system."""


def train_side_by_side(jobs: Sequence[Job], *, workers: int, notify: Notify) -> None:
    """Train the jobs that are not finished, some at a time, with the threads divided among them.

    Errors are not raised here: a run that fails is left as it is, and fails again with its reason when the caller
    trains it.

    Processes import the caller's main module, so a script of your own needs `if __name__ == "__main__":`.

    Args:
        jobs: runs, each with its own folder.
        workers: number of processes.
        notify: receives their messages, each after the name of the run's folder.

    Raises:
        Interrupted: on SIGINT or SIGTERM, after the runs in progress have saved a checkpoint.
    """
    refuse_bad_count(workers)
    waiting = [job for job in jobs if not (job.out / FOLDER / MANIFEST).is_file()]
    if workers == 1 or len(waiting) < 2:
        return
    workers = min(workers, len(waiting))
    threads = max(torch.get_num_threads() // workers, 1)
    running: list[_Worker] = []
    signals: list[int] = []

    def stop(received: int) -> None:
        signals.append(received)
        for worker in running:
            worker.process.terminate()  # it saves a checkpoint first

    with catch_stop_signals(stop), progress("Runs", total=len(waiting)) as advance:
        while running or (waiting and not signals):
            while waiting and not signals and len(running) < workers:
                running.append(_start(waiting.pop(0), threads))
                if signals:  # the signal came while this one was being started
                    running[-1].process.terminate()
            if not running:  # the signal came before the first one was started
                break
            ready = wait([worker.messages for worker in running])
            for worker in [worker for worker in running if worker.messages in ready]:
                if _ended(worker, notify, stopping=bool(signals)):
                    running.remove(worker)
                    advance(1)
    if signals:
        raise Interrupted(
            "stopped; runs in progress have saved a checkpoint. Run the same command again to continue.",
            signal=signals[0],
        )


def refuse_bad_count(workers: int) -> None:
    """Refuse fewer than one run at a time."""
    if workers < 1:
        raise ConfigError(f"Expected 1 or more runs side by side, got {workers}.")


def _start(job: Job, threads: int) -> _Worker:
    messages, sender = Pipe(duplex=False)
    # not a daemon: a run that lost its parent finishes all the same, and the next comparison reuses it
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(job, threads, sender), daemon=False)
    process.start()
    sender.close()  # the worker has its own copy; ours would keep the pipe open after it ends
    return _Worker(job.out.name, process, messages)


def _work(job: Job, threads: int, sender: Any) -> None:
    """Train one job in a worker process."""
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until training starts: the parent decides when to stop

    def notify(sentence: str) -> None:
        with suppress(OSError):  # the parent may be gone
            sender.send(sentence)

    try:
        with hidden():  # the parent shows the progress of all runs
            train_retriever(job, notify=notify, validate=ranked_validation(job), refresh=beam_negatives(job))
    except RestdError as error:
        notify(str(error))


def _ended(worker: _Worker, notify: Notify, *, stopping: bool) -> bool:
    """Pass on one message of a worker; true if it was the last."""
    try:
        notify(f"{worker.name}: {worker.messages.recv()}")
    except EOFError:
        worker.process.join()
        if worker.process.exitcode and not stopping:
            notify(f"{worker.name} ended with code {worker.process.exitcode}; it will be trained again on its own")
        return True
    return False
