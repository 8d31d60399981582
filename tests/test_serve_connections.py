"""Connections of slow, silent and many clients: none of them keeps the others out."""

import asyncio
import errno
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient
from uvicorn.protocols.http.h11_impl import H11Protocol

from restd.serve import ServedModel, ServerState, connections, make_app
from restd.serve.connections import bounded, drop_lost_clients, most_connections
from restd.serve.server import listen
from tests.serving import WAIT, process, wait_for

GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
linux = pytest.mark.skipif(sys.platform != "linux", reason="sockets inherit these options on Linux")


async def answer(scope, receive, send):
    """Says how long the body was; slowly, where the path says so."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/slow":
        await asyncio.sleep(0.6)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(**options):
    """A server of the little application above, with bounded connections, in a thread; yields its address."""
    protocol = bounded(H11Protocol, **{"most": 100, "head_seconds": 0.3, **options})
    server = uvicorn.Server(uvicorn.Config(answer, http=protocol, lifespan="off", log_config=None, access_log=False))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            wait_for(lambda: server.started, what="the start")
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(WAIT)


def connected(stack, address):
    return stack.enter_context(socket.create_connection(address, timeout=WAIT))


def body_of(connection):
    """The body of the next answer, which is a success."""
    data = b""
    while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < length_in(data):
        received = connection.recv(1000)
        assert received, f"the connection ended after {data!r}"
        data += received
    assert data.startswith(b"HTTP/1.1 200")
    return data.partition(b"\r\n\r\n")[2]


def length_in(head):
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])


def is_closed(connection):
    """Whether the other side has ended the connection; what it sent before is read."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("beginning", [b"", b"GET / HT", GET[:-2]])
def test_a_head_that_does_not_come_ends_the_connection(beginning):
    with serving() as address, ExitStack() as stack:
        connection = connected(stack, address)
        connection.sendall(beginning)
        assert is_closed(connection)


def test_a_head_that_comes_drop_by_drop_ends_the_connection():
    with serving() as address, ExitStack() as stack:
        connection = connected(stack, address)
        began = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012
            for byte in GET[:-2] * 100:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
                assert time.monotonic() - began < WAIT
        assert is_closed(connection)


def test_a_second_head_on_the_same_connection_has_its_own_time():
    with serving() as address, ExitStack() as stack:
        connection = connected(stack, address)
        for _ in range(3):
            connection.sendall(GET)
            assert body_of(connection) == b"0"
            time.sleep(0.4)  # longer than a head may take: between requests nobody counts
        connection.sendall(GET[:5])
        assert is_closed(connection)


def test_slow_answers_and_slow_bodies_are_not_slow_heads():
    with serving() as address, ExitStack() as stack:
        slow, body = connected(stack, address), connected(stack, address)
        slow.sendall(GET.replace(b"/ ", b"/slow "))
        body.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            time.sleep(0.2)
            body.sendall(b"3\r\nabc\r\n")
        body.sendall(b"0\r\n\r\n")
        assert body_of(body) == b"12"
        assert body_of(slow) == b"0"


def test_too_many_connections_take_the_place_of_idle_ones():
    with serving(most=5, head_seconds=WAIT) as address, ExitStack() as stack:
        idle = connected(stack, address)
        idle.sendall(GET)
        assert body_of(idle) == b"0"
        others = [connected(stack, address) for _ in range(4)]
        for other in others:
            other.sendall(GET[:5])
        time.sleep(0.1)
        newest = connected(stack, address)
        newest.sendall(GET)
        assert body_of(newest) == b"0"
        assert is_closed(idle), "it was between two requests"
        for other in others:
            other.sendall(GET[5:])
            assert body_of(other) == b"0", "a request that had begun"


def test_more_connections_than_there_may_be_are_refused():
    with serving(most=3, head_seconds=WAIT) as address, ExitStack() as stack:
        begun = [connected(stack, address) for _ in range(3)]
        for connection in begun:
            connection.sendall(GET[:5])
        time.sleep(0.1)
        assert is_closed(connected(stack, address))
        begun[0].sendall(GET[5:])
        assert body_of(begun[0]) == b"0"


@linux
def test_a_client_that_never_reads_is_dropped(monkeypatch):
    monkeypatch.setattr(connections, "_UNREAD_SECONDS", 1)
    with socket.socket() as listener, ExitStack() as stack:
        drop_lost_clients(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        reader = stack.enter_context(socket.socket())
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
        reader.connect(listener.getsockname())
        accepted = stack.enter_context(listener.accept()[0])
        accepted.settimeout(WAIT)
        with pytest.raises(OSError) as error:  # noqa: PT012
            while True:
                accepted.sendall(bytes(1 << 20))
        assert error.value.errno == errno.ETIMEDOUT


@linux
def test_accepted_connections_have_the_options():
    with listen("127.0.0.1", 0) as listener, ExitStack() as stack:
        connected(stack, listener.getsockname())
        listener.setblocking(True)
        accepted = stack.enter_context(listener.accept()[0])
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


@linux
def test_the_limit_leaves_room_for_other_files(monkeypatch):
    import resource

    for soft, expected in ((1024, 896), (100, 64), (1 << 20, 10_000), (resource.RLIM_INFINITY, 10_000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, resource.RLIM_INFINITY))
        assert most_connections() == expected


@linux
def test_the_server_answers_while_more_clients_are_connected_than_it_may_open_files(served_run):
    """Before there was a bound, the service had no file left to accept another client with."""
    import resource

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    with process("--model", served_run, "--port", address[1]) as running, ExitStack() as stack:
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (200, 200))
        reader = threading.Thread(target=running.stderr.read)
        reader.start()
        stack.callback(reader.join, WAIT)
        stack.callback(running.kill)
        assert running.stdout.readline().startswith("restd serves")
        for _ in range(300):
            with suppress(ConnectionError):
                connected(stack, address)
        with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=WAIT) as client:

            def ready():
                with suppress(httpx.TransportError):
                    return client.get("/readyz").status_code == 200

            wait_for(ready, what="an answer")
            assert client.post("/v1/search", json={"query": "oak desk"}).status_code == 200


def test_methods_that_clients_make_up_are_one_counter(served_run):
    state = ServerState.of()
    state.put(ServedModel.load(served_run))
    with TestClient(make_app(state)) as client:
        for number in range(20):
            assert client.request(f"METHOD{number}", "/v1/search", json={}).status_code == 405
        counters = [
            line for line in client.get("/metrics").text.splitlines() if line.startswith("restd_requests_total")
        ]
    assert counters == ['restd_requests_total{method="any",route="/v1/search",status="405"} 20.0']


def test_an_answer_does_not_wait_for_the_receipt_of_its_head():
    """Or every answer takes 40 ms longer: head and body are written one after the other."""

    async def sends_at_once():
        is_immediate = asyncio.get_running_loop().create_future()

        async def answer(_, writer):
            own = writer.get_extra_info("socket")
            is_immediate.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
            writer.close()

        listener = listen("127.0.0.1", 0)
        async with await asyncio.start_server(answer, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await is_immediate

    assert asyncio.run(sends_at_once())
