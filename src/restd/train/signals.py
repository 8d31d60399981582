"""Stopping on a signal: a job finishes the step it is at and saves, instead of dying in the middle."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def catch_stop_signals(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with the number of every SIGINT and SIGTERM; outside of the main thread signals stay as they are.

    >>> import os
    >>> received = []
    >>> with catch_stop_signals(received.append):
    ...     os.kill(os.getpid(), signal.SIGTERM)
    >>> received == [signal.SIGTERM]
    True
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, lambda received, _: act(received)) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
