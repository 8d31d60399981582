"""The process: a socket, a model that is loaded behind it, and an end that loses no request."""

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from restd.errors import ConfigError, MissingExtraError
from restd.serve.app import make_app
from restd.serve.connections import bounded, drop_lost_clients, most_connections
from restd.serve.model_state import ServedModel, ServerState

logger = logging.getLogger(__name__)
_KEEP_ALIVE = 75
_BACKLOG, _ACCEPTED_TOGETHER = 2048, 16
"""Connections that may wait for us, and how many of them are accepted before any is looked at."""
_WATCH, _TICK = 0.05, 0.01
"""Seconds between two looks: for a signal, and for the end of the last request."""
_QUIET_TICKS = 5
"""A stopping service has nothing in flight for so long before it closes its socket: requests on their way get a 503."""


def serve(
    state: ServerState,
    *,
    host: str,
    port: int,
    load: Callable[[], Mapping[str, ServedModel]],
    ready: Callable[[str], None],
) -> None:
    """Serve until a signal comes; health checks are answered while the model is loaded.

    The first SIGTERM or SIGINT refuses new work and lets requests in flight finish; a second one ends at once.

    Args:
        state: what is served.
        host: address to listen at.
        port: port to listen at; 0 for any that is free.
        load: loads the models, by name; runs in a thread. What it raises ends the service.
        ready: called with the address as soon as requests are answered.
    """
    try:
        import uvicorn
        from uvicorn.protocols.http.auto import AutoHTTPProtocol
    except ImportError as error:
        raise MissingExtraError("uvicorn", extra="serve", purpose="restd serve") from error

    class Server(uvicorn.Server):
        """Leaves its end to us: signals are neither repeated nor do they close the socket at once."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            listener.listen(_BACKLOG)  # asyncio takes one number for both, and accepts all of them in one go

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            del frame
            if state.is_stopping:
                _leave(128 + sig)
            state.is_stopping = True

    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # bytes that are no HTTP are no news
    config = uvicorn.Config(
        make_app(state),
        http=bounded(AutoHTTPProtocol, most=most_connections()),
        backlog=_ACCEPTED_TOGETHER,  # or too many are accepted before the first is refused
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=1,
    )
    listener = listen(host, port)
    address = url_of(listener)
    unanswered = asyncio.run(_run(Server(config), listener, state, load, lambda: ready(address)))
    if state.log is not None:
        state.log.close()
    if unanswered:
        logger.warning("%d requests were not answered within %g s", unanswered, state.limits.drain_seconds)
    if unanswered or state.queue.is_busy:
        _leave(1 if unanswered else 0)  # nobody waits for what the model still computes


async def _run(
    server: Any,
    listener: socket.socket,
    state: ServerState,
    load: Callable[[], Mapping[str, ServedModel]],
    ready: Callable[[], None],
) -> int:
    """Serve; returns how many requests were left without an answer."""
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    loading = asyncio.ensure_future(asyncio.to_thread(load))
    begin, end = asyncio.ensure_future(_begin(server, state, loading, ready)), asyncio.ensure_future(_end(state))
    await asyncio.wait({serving, begin, end}, return_when=asyncio.FIRST_COMPLETED)
    if end.done() and not loading.done():
        _leave(0)  # a thread cannot be stopped, and nobody waits for it
    if begin.done() and begin.exception() is None:
        await asyncio.wait({serving, end}, return_when=asyncio.FIRST_COMPLETED)
    unanswered = state.in_flight
    server.should_exit = True
    end.cancel()
    await serving
    await begin
    return unanswered


async def _begin(
    server: Any, state: ServerState, loading: asyncio.Future[Mapping[str, ServedModel]], ready: Callable[[], None]
) -> None:
    """Put the models into the state once they are loaded."""
    models = await loading
    while not server.started:
        await asyncio.sleep(_TICK)
    for name, model in models.items():
        state.put(model, name)
    gc.collect()
    gc.freeze()  # what was loaded stays: later collections need not look at it
    ready()


async def _end(state: ServerState) -> None:
    """Return when a signal came and everything in flight is answered, or time is up."""
    while not state.is_stopping:
        await asyncio.sleep(_WATCH)
    quiet, ticks = 0, int(state.limits.drain_seconds / _TICK)
    while quiet < _QUIET_TICKS and ticks > 0:
        await asyncio.sleep(_TICK)
        quiet, ticks = quiet + 1 if not state.in_flight else 0, ticks - 1


def _leave(code: int) -> None:
    """End the process without waiting for its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this address.

    >>> with listen("127.0.0.1", 0) as listener:
    ...     url_of(listener).startswith("http://127.0.0.1:")
    True
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with the protocol named, asyncio sets TCP_NODELAY: or the body of an answer waits 40 ms for the head's receipt
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        drop_lost_clients(listener)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Nothing can listen at {host}:{port} ({error.strerror or error}). Choose another --host or --port; "
            "--port 0 takes any that is free."
        ) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """The address of a socket as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
