"""An open-loop load generator: requests leave at a fixed rate, however slow the answers are.

Latencies count from the moment a request was due, so a service that stalls cannot hide the requests that wait for it.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_BROKEN = 0
"""Status of a request whose connection broke or that was never answered."""
_LONGEST = 60.0
"""Seconds until a request counts as never answered."""
_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one request."""

    number: int
    """Its place among the requests that were offered together."""
    status: int
    """HTTP status; 0 where the connection broke or no answer came."""
    due: float
    """When it was to be sent, in seconds since the first one."""
    ended: float
    """When the last byte of the answer was there, on the same clock."""
    body: bytes

    @property
    def seconds(self) -> float:
        """From the moment it was due to the end of its answer."""
        return self.ended - self.due

    @property
    def is_answered(self) -> bool:
        """Whether the service did what was requested."""
        return self.status == 200

    @property
    def is_broken(self) -> bool:
        """Whether there was no answer at all."""
        return self.status == _BROKEN


def post(path: str, body: Mapping[str, Any]) -> bytes:
    r"""A request as it goes over the wire.

    >>> post("/v1/search", {"query": "kettle"}).partition(b"\r\n\r\n")[2]
    b'{"query": "kettle"}'
    """
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return head.encode() + _END_OF_HEAD + content


class OpenLoop:
    """Offers requests to one service over connections that are kept open.

    Args:
        url: address of the service, such as http://127.0.0.1:8000.
        longest: seconds until a request counts as never answered.
    """

    def __init__(self, url: str, *, longest: float = _LONGEST) -> None:
        address = urlsplit(url)
        self._host, self._port, self._longest = address.hostname, address.port, longest
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def offer(self, requests: Sequence[bytes], *, rate: float = math.inf) -> list[Reply]:
        """Send requests at a rate, and collect all replies, in the order of the requests.

        Args:
            requests: what to send, each made by `post`.
            rate: requests per second; by default all at once.
        """
        loop = asyncio.get_running_loop()
        start, pending = loop.time(), []
        for number, request in enumerate(requests):
            due = number / rate
            if (left := start + due - loop.time()) > 0:
                await asyncio.sleep(left)
            pending.append(loop.create_task(self._reply(number, request, start, due)))
        return list(await asyncio.gather(*pending))

    async def close(self) -> None:
        """Close all connections."""
        for _, writer in self._idle:
            writer.close()
        for _, writer in self._idle:
            with suppress(OSError):
                await writer.wait_closed()
        self._idle.clear()

    async def _reply(self, number: int, request: bytes, start: float, due: float) -> Reply:
        status, body, loop = _BROKEN, b"", asyncio.get_running_loop()
        with suppress(OSError, EOFError, ValueError, TimeoutError):
            async with asyncio.timeout(self._longest):
                status, body = await self._exchange(request)
        return Reply(number, status, due, loop.time() - start, body)

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        """One request and its answer, on a connection of its own for so long."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        try:
            writer.write(request)
            head = await reader.readuntil(_END_OF_HEAD)
            body = await reader.readexactly(_length(head))
        except BaseException:
            writer.close()
            raise
        if b"\r\nconnection: close" in head.lower():
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(head.split(b" ", 2)[1]), body


def _length(head: bytes) -> int:
    """Size of the body that follows a head."""
    _, name, rest = head.lower().partition(_LENGTH)
    if not name:
        raise ValueError("the answer does not say how long it is")
    return int(rest.partition(b"\r\n")[0])
