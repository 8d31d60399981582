"""The process: a socket, a model that is loaded behind it, and an end that loses no request."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

from restd.errors import ConfigError, MissingExtraError
from restd.serve.app import make_app
from restd.serve.model_state import ServerState

logger = logging.getLogger(__name__)
_FORCED = 130
_KEEP_ALIVE = 75


def serve(state: ServerState, *, host: str, port: int, load: Callable[[], None], ready: Callable[[str], None]) -> None:
    """Serve until a signal comes; health checks are answered while the model is loaded.

    The first SIGTERM or SIGINT refuses new work and lets requests in flight finish; a second one ends at once.

    Args:
        state: what is served.
        host: address to listen at.
        port: port to listen at; 0 for any that is free.
        load: puts the models into the state; runs in a thread. What it raises ends the service.
        ready: called with the address as soon as requests are answered.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", extra="serve", purpose="restd serve") from error

    class Server(uvicorn.Server):
        """Stops in our way."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            del frame
            if state.is_stopping:
                os._exit(_FORCED if sig == 2 else 128 + sig)
            state.is_stopping = True

    config = uvicorn.Config(
        make_app(state),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=1,
        backlog=2048,
    )
    server = Server(config)
    listener = listen(host, port)
    address = url_of(listener)
    asyncio.run(_run(server, listener, state, load, lambda: ready(address)))


async def _run(
    server: Any, listener: socket.socket, state: ServerState, load: Callable[[], None], ready: Callable[[], None]
) -> None:
    async def begin() -> None:
        while not server.started:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(load)
        if not state.is_stopping:
            ready()

    async def end() -> None:
        while not state.is_stopping:
            await asyncio.sleep(0.02)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_drained(state), state.limits.drain_seconds)
        server.should_exit = True

    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    beginning, ending = asyncio.ensure_future(begin()), asyncio.ensure_future(end())
    try:
        await asyncio.wait({serving, beginning}, return_when=asyncio.FIRST_COMPLETED)
        if beginning.done() and beginning.exception() is not None:
            server.should_exit = True
        await serving
        if beginning.done():
            beginning.result()
    finally:
        for task in (beginning, ending):
            task.cancel()


async def _drained(state: ServerState) -> None:
    while state.in_flight:
        await asyncio.sleep(0.01)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
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
