"""Work in processes of its own: one piece or several at a time, with the threads divided among them."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Pipe, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from restd.errors import ConfigError, Interrupted, RestdError
from restd.progress import Notify, hidden, progress
from restd.train.signals import catch_stop_signals


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work.

    Args:
        name: what its messages start with.
        work: a function that another process can import, with its arguments; it leaves its result on disk.
    """

    name: str
    work: Callable[[Notify], Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    """A running process, and our end of its pipe."""

    name: str
    process: SpawnProcess
    messages: Any
    """A connection, whose class depends on the operating system."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last message of a worker whose work raised an error of ours."""

    message: str


def run_pieces(
    pieces: Sequence[Piece], *, workers: int, notify: Notify, title: str, stopped: str, resume: str = ""
) -> dict[str, str]:
    """Do pieces of work, each in a new process, some at a time; returns the reasons of those that failed, by name.

    Processes import the caller's main module, so a script of your own needs `if __name__ == "__main__":`.

    Args:
        pieces: what to do, with distinct names.
        workers: number of processes.
        notify: receives their messages, each after the name of its piece.
        title: of the progress bar.
        stopped: what is said after SIGINT or SIGTERM, when all have ended.
        resume: what is said of a process that ended without a reason.

    Raises:
        Interrupted: on SIGINT or SIGTERM, after the pieces in progress have ended.
    """
    refuse_bad_count(workers)
    waiting = list(pieces)
    if not waiting:
        return {}
    workers = min(workers, len(waiting))
    threads = max(torch.get_num_threads() // workers, 1)
    running: list[_Worker] = []
    signals: list[int] = []
    failures: dict[str, str] = {}

    def stop(received: int) -> None:
        signals.append(received)
        for worker in running:
            worker.process.terminate()  # a training run saves a checkpoint first

    with catch_stop_signals(stop), progress(title, total=len(waiting)) as advance:
        while running or (waiting and not signals):
            while waiting and not signals and len(running) < workers:
                running.append(_start(waiting.pop(0), threads))
                if signals:  # the signal came while this one was being started
                    running[-1].process.terminate()
            if not running:  # the signal came before the first one was started
                break
            ready = wait([worker.messages for worker in running])
            for worker in [worker for worker in running if worker.messages in ready]:
                if _ended(worker, notify, failures, resume="" if signals else resume):
                    running.remove(worker)
                    advance(1)
    if signals:
        raise Interrupted(stopped, signal=signals[0])
    return failures


def refuse_bad_count(workers: int) -> None:
    """Refuse fewer than one run at a time."""
    if workers < 1:
        raise ConfigError(f"Expected 1 or more runs side by side, got {workers}.")


def _start(piece: Piece, threads: int) -> _Worker:
    messages, sender = Pipe(duplex=False)
    # not a daemon: a run that lost its parent finishes all the same, and the next comparison reuses it
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(piece, threads, sender), daemon=False)
    process.start()
    sender.close()  # the worker has its own copy; ours would keep the pipe open after it ends
    return _Worker(piece.name, process, messages)


def _work(piece: Piece, threads: int, sender: Any) -> None:
    """Do one piece in a worker process."""
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until training starts: the parent decides when to stop

    def send(message: Any) -> None:
        with suppress(OSError):  # the parent may be gone
            sender.send(message)

    try:
        with hidden():  # the parent shows the progress of all pieces
            piece.work(send)
    except RestdError as error:
        send(_Failure(str(error)))


def _ended(worker: _Worker, notify: Notify, failures: dict[str, str], *, resume: str) -> bool:
    """Pass on one message of a worker; true if it was the last."""
    try:
        message = worker.messages.recv()
    except EOFError:
        worker.process.join()
        if worker.process.exitcode and worker.name not in failures:
            failures[worker.name] = f"it ended with code {worker.process.exitcode}"
            if resume:
                notify(f"{worker.name} ended with code {worker.process.exitcode}; {resume}")
        return True
    if isinstance(message, _Failure):
        failures[worker.name] = message.message
        message = message.message
    notify(f"{worker.name}: {message}")
    return False
