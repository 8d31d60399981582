"""Runs side by side, each in a process of its own.

Small models leave cores waiting for one another: two of them with a core each are faster than one after the other with
both. This is a head start and nothing more: whoever wants the models trains them as ever, finds most of them finished,
and goes on with the rest.
"""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Pipe, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from restd.artifacts.manifest import MANIFEST
from restd.errors import ConfigError, Interrupted, RestdError
from restd.evaluate import ranked_validation
from restd.models.store import FOLDER
from restd.progress import hidden, progress
from restd.train import Job, train_retriever
from restd.train.signals import when_told_to_stop

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    """A process at work, and the end of the pipe that hears it."""

    name: str
    process: SpawnProcess
    hears: Any
    """A connection; of which class depends on the system."""


def train_side_by_side(jobs: Sequence[Job], *, at_once: int, tell: Tell) -> None:
    """Train what is not finished of some jobs, so many at a time, and share the threads out among them.

    Nothing is decided here: a run that fails is left as it is, and says why to those who train it next.

    Processes import the caller's main module, so that a script of your own needs `if __name__ == "__main__":`.

    Args:
        jobs: each with a folder of its own.
        at_once: how many processes.
        tell: hears what they say, after the name of the run's folder.

    Raises:
        Interrupted: when told to stop; runs that were training have saved themselves by then.
    """
    refuse_bad_count(at_once)
    waiting = [job for job in jobs if not (job.out / FOLDER / MANIFEST).is_file()]
    if at_once == 1 or len(waiting) < 2:
        return
    at_once = min(at_once, len(waiting))
    threads = max(torch.get_num_threads() // at_once, 1)
    running: list[_Worker] = []
    told: list[int] = []

    def pass_on(received: int) -> None:
        told.append(received)
        for worker in running:
            worker.process.terminate()  # it saves itself first

    with when_told_to_stop(pass_on), progress("Runs", total=len(waiting)) as advance:
        while running or (waiting and not told):
            while waiting and not told and len(running) < at_once:
                running.append(_started(waiting.pop(0), threads))
                if told:  # it came while this one was started
                    running[-1].process.terminate()
            if not running:  # told to stop before the first one was started
                break
            heard = wait([worker.hears for worker in running])
            for worker in [held for held in running if held.hears in heard]:
                if _ended(worker, tell, stopping=bool(told)):
                    running.remove(worker)
                    advance(1)
    if told:
        raise Interrupted(
            "stopped; runs that were training saved themselves. Run the same command again to go on.", signal=told[0]
        )


def refuse_bad_count(at_once: int) -> None:
    """At least one run at a time."""
    if at_once < 1:
        raise ConfigError(f"{at_once} runs side by side were asked for; wanted 1 or more.")


def _started(job: Job, threads: int) -> _Worker:
    hears, says = Pipe(duplex=False)
    # not a daemon: a run that lost its parent is finished all the same, and found by the next one
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(job, threads, says), daemon=False)
    process.start()
    says.close()  # the worker has its own; ours would keep the pipe open behind it
    return _Worker(job.out.name, process, hears)


def _work(job: Job, threads: int, says: Any) -> None:
    """What a process does."""
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # while nothing is trained yet: the parent says when to stop

    def tell(sentence: str) -> None:
        with suppress(OSError):  # a parent that is gone does not listen
            says.send(sentence)

    try:
        with hidden():  # the parent shows how far all of them are
            train_retriever(job, tell=tell, validate=ranked_validation(job))
    except RestdError as error:
        tell(str(error))


def _ended(worker: _Worker, tell: Tell, *, stopping: bool) -> bool:
    """Pass on one sentence of a worker; true if there will be no other."""
    try:
        tell(f"{worker.name}: {worker.hears.recv()}")
    except EOFError:
        worker.process.join()
        if worker.process.exitcode and not stopping:
            tell(f"{worker.name} ended with code {worker.process.exitcode}; it is tried again by itself")
        return True
    return False
