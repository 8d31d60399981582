"""The request log: one JSON line per request, written by a thread of its own."""

import json
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, TextIO

_LONGEST = 10_000


class RequestLog:
    """Writes lines without ever keeping the event loop waiting; where the stream is too slow, lines are dropped.

    Args:
        stream: where the lines go.
        with_queries: whether texts and histories are logged too.
        dropped: called for each line that there was no room for.
    """

    def __init__(
        self, stream: TextIO, *, with_queries: bool = False, dropped: Callable[[], None] | None = None
    ) -> None:
        self.with_queries = with_queries
        self._stream = stream
        self._dropped = dropped
        self._lines: queue.Queue[str | None] = queue.Queue(_LONGEST)
        self._thread = threading.Thread(target=self._write, name="restd-request-log", daemon=True)
        self._thread.start()

    def add(self, record: Mapping[str, Any]) -> None:
        """Log one request."""
        try:
            self._lines.put_nowait(json.dumps(record) + "\n")
        except queue.Full:
            if self._dropped is not None:
                self._dropped()

    def close(self, *, seconds: float = 2.0) -> None:
        """Write what is left, for so long at most."""
        try:
            self._lines.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line)
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # the stream is closed or full
                if self._dropped is not None:
                    self._dropped()
