"""What every request passes: readiness, keys, size of the body; counting and logging; clients that leave."""

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from restd.serve.model_state import MAIN, ServerState
from restd.serve.problems import (
    InternalError,
    MethodError,
    NotReadyError,
    ProblemError,
    SlowBodyError,
    TooLargeError,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)
_TRACE = "restd.trace"
_CLIENT_LEFT = 499
"""Logged for a client that did not wait; nobody receives it."""
_DISCARDED = 1 << 25
"""Bytes of a body above the limit that are read all the same."""
_DIGITS = 16
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
_WRITING = ("PUT", "DELETE", "PATCH")
_RELOAD = "/v1/reload"


@dataclass(slots=True)
class Trace:
    """What is known of one request: filled in by the gate and by the routes."""

    arrived: float
    """`time.monotonic()` of its arrival."""
    queries: int = 0
    texts: list[str] = field(default_factory=list)
    """Queries, for a log that has them."""
    snapshot: str = ""
    queue_ms: float | None = None
    compute_ms: float | None = None
    status: int = 0
    error: str = ""
    """Traceback of a fault of the service."""


def trace_of(scope: Scope) -> Trace:
    """The trace of a request."""
    return scope[_TRACE]


class Gate:
    """Middleware in front of all routes."""

    def __init__(self, app: App, state: ServerState) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        trace = scope[_TRACE] = Trace(time.monotonic())
        path, method = scope["path"], scope["method"]
        is_counted = _is_guarded(path)
        answer = _Response(send, trace, self.state)
        if is_counted:
            self._count(1)
        try:
            try:
                await self._pass(scope, receive, answer, writing=method in _WRITING or path == _RELOAD)
            except ProblemError as problem:
                await answer.refuse(problem)
            except Exception:
                logger.exception("%s %s failed", method, path)
                trace.error = traceback.format_exc()
                if not answer.is_started:
                    await answer.refuse(InternalError("The service failed; its log has the reason."))
        finally:
            if is_counted:
                self._count(-1)
            self._log(scope, trace)

    async def _pass(self, scope: Scope, receive: Receive, answer: "_Response", *, writing: bool) -> None:
        headers = {name: value for name, value in scope["headers"] if name in (b"authorization", b"content-length")}
        if _is_guarded(scope["path"]):
            self._refuse_unready()
            authorization = headers.get(b"authorization")
            self.state.keys.check(authorization and authorization.decode("latin-1"), writing=writing)
        body = b""
        if scope["method"] not in _WITHOUT_BODY:
            body = await self._body(headers.get(b"content-length"), receive)
        if writing:  # never cancelled: what it changes is changed whole
            await self.app(scope, _replayed(body, receive), answer)
            return
        work = asyncio.ensure_future(self.app(scope, _replayed(body, _never), answer))
        left = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if work.cancelled():
            trace_of(scope).status = _CLIENT_LEFT
        else:
            work.result()

    def _refuse_unready(self) -> None:
        if self.state.is_stopping:
            raise NotReadyError(
                "The service is stopping; send the request to another one.",
                headers={"Retry-After": "1", "Connection": "close"},
            )
        self.state.model()

    async def _body(self, length: bytes | None, receive: Receive) -> bytes:
        limits = self.state.limits
        size = int(length) if length is not None and length.isdigit() and len(length) < _DIGITS else 0
        try:
            async with asyncio.timeout(limits.deadline_ms / 1000):
                if size > limits.max_body:
                    await _discard(receive, size)
                    raise _too_large(size, limits.max_body)
                return await _read(receive, limits.max_body)
        except TimeoutError as error:
            raise SlowBodyError(
                f"The body did not arrive within {limits.deadline_ms} ms; send the request again.",
                headers={"Connection": "close"},
            ) from error

    def _count(self, change: int) -> None:
        self.state.in_flight += change
        self.state.metrics.in_flight(self.state.in_flight)

    def _log(self, scope: Scope, trace: Trace) -> None:
        seconds = time.monotonic() - trace.arrived
        route = getattr(scope.get("route"), "path", "unmatched")
        # a word that no route takes is the client's own, and every one would be a counter for ever
        method = "any" if route == "unmatched" or trace.status == MethodError.status else scope["method"]
        self.state.metrics.request(method, route, trace.status, seconds)
        log = self.state.log
        if log is None:
            return
        record: dict[str, Any] = {
            "time": round(time.time(), 3),
            "method": scope["method"],
            "path": scope["path"],
            "status": trace.status,
            "ms": round(1000 * seconds, 2),
            "client": (scope.get("client") or ("",))[0],
        }
        if trace.queries:
            record["queries"] = trace.queries
        if trace.compute_ms is not None and trace.queue_ms is not None:
            record |= {"queue_ms": round(trace.queue_ms, 2), "compute_ms": round(trace.compute_ms, 2)}
        if trace.snapshot:
            record["snapshot"] = trace.snapshot
        if trace.error:
            record["error"] = trace.error
        if log.with_queries and trace.texts:
            record["texts"] = trace.texts
        log.add(record)


class _Response:
    """The response of one request, with the headers that all have."""

    def __init__(self, send: Send, trace: Trace, state: ServerState) -> None:
        self._send, self._trace, self._state = send, trace, state
        self.is_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            self._trace.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._headers()]
        await self._send(message)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        trace, headers = self._trace, []
        if not trace.snapshot and MAIN in self._state.models:
            trace.snapshot = self._state.models[MAIN].hash
        if trace.snapshot:
            headers.append((b"x-restd-snapshot", trace.snapshot.encode()))
        if trace.queue_ms is not None and trace.compute_ms is not None:
            headers.append((b"x-restd-queue-ms", b"%.2f" % trace.queue_ms))
            headers.append((b"x-restd-compute-ms", b"%.2f" % trace.compute_ms))
        return headers

    async def refuse(self, problem: ProblemError) -> None:
        """Send a problem."""
        content = problem.content()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), **problem.headers}
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": problem.status, "headers": pairs})
        await self({"type": "http.response.body", "body": content})


def _is_guarded(path: str) -> bool:
    """Whether an address needs a key and a model: the interface and the counters; pages and health checks do not."""
    return path.startswith("/v1/") or path == "/metrics"


def _too_large(size: int, limit: int) -> TooLargeError:
    return TooLargeError(
        f"The body has {size} bytes or more; at most {limit} are read. Send fewer queries or shorter lists.",
        headers={"Connection": "close"},
    )


async def _read(receive: Receive, limit: int) -> bytes:
    """A whole body; what a client sent before it left is as good as nothing."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        body += message.get("body", b"")
        is_whole = not message.get("more_body", False)
        if len(body) > limit:
            size = len(body)
            body.clear()
            if not is_whole:  # behind the end of a body there is nothing to wait for
                await _discard(receive, _DISCARDED)
            raise _too_large(size, limit)
        if is_whole:
            return bytes(body)


async def _discard(receive: Receive, size: int) -> None:
    """Read what is not wanted, up to a point: a client that is still sending would not see the refusal."""
    left = min(size, _DISCARDED)
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, then whatever comes after it."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


async def _never() -> Message:
    """What comes behind a body: nothing, as the gate itself watches for the client to leave."""
    await asyncio.get_running_loop().create_future()
    return {"type": "http.disconnect"}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
