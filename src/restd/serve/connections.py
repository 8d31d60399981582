"""Connections that cannot be held for nothing: bounded in number, in the time of a request's head, and unread answers.

Bodies are bounded by the gate, and connections without a request by uvicorn's keep-alive timeout.
"""

import asyncio
import socket
from typing import Any, cast

_HEAD_SECONDS = 10.0
"""From the first byte of a request, or from the connection, until the head is there."""
_UNREAD_SECONDS = 30
"""How long a client may not read, or be gone, before what was sent to it is thrown away."""
_SILENT_SECONDS = 60
"""After so long without a byte, the system checks whether the client is still there."""
_RESERVED = 128
"""Open files that are not connections: models, the journal, the log."""
_FEWEST, _MOST = 64, 10_000


def most_connections() -> int:
    """How many clients may be connected: what the limit of open files leaves."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return _MOST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, soft - _RESERVED))


def drop_lost_clients(listener: socket.socket) -> None:
    """Have the system end connections whose client is gone or never reads; what is accepted inherits this on Linux."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _SILENT_SECONDS), ("TCP_USER_TIMEOUT", 1000 * _UNREAD_SECONDS)):
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Bounded:
    """What a slow client cannot keep: mixed into one of uvicorn's HTTP protocols."""

    most: int
    head_seconds: float
    connections: set[Any]
    transport: asyncio.Transport
    cycle: Any
    _head_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being read or answered."""
        return self._is_between_requests and self._head_timer is None

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for a head, where there is room."""
        cast("Any", super()).connection_made(transport)
        if len(self.connections) > self.most:
            idle = next((other for other in self.connections if other is not self and other.is_idle), None)
            (self if idle is None else idle).transport.abort()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Read on; bytes that do not complete a head are the beginning of one."""
        cast("Any", super()).data_received(data)
        if self._is_between_requests:
            self._await_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the head that never came."""
        self._stop_waiting()
        cast("Any", super()).connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = asyncio.get_running_loop().call_later(self.head_seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def bounded(protocol: type, *, most: int, head_seconds: float = _HEAD_SECONDS) -> type:
    """One of uvicorn's HTTP protocols, for clients that may be slow or many.

    Where there are too many connections, one that waits between two requests makes room; if there is none, the new one
    is refused.

    Args:
        protocol: `H11Protocol` or `HttpToolsProtocol`.
        most: connections at a time.
        head_seconds: how long the head of a request may take.
    """
    return type("BoundedProtocol", (_Bounded, protocol), {"most": most, "head_seconds": head_seconds})
