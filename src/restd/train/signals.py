"""Being told to stop: whoever works finishes what it is at, and saves it, instead of dying in the middle."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def when_told_to_stop(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with the number of every SIGINT and SIGTERM; outside of the main thread signals stay as they are.

    >>> import os
    >>> came = []
    >>> with when_told_to_stop(came.append):
    ...     os.kill(os.getpid(), signal.SIGTERM)
    >>> came == [signal.SIGTERM]
    True
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda received, _: act(received)) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
