"""The real server as a process: every endpoint, overload, reload under load, and an end that loses no request."""

import asyncio
import json
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from restd.search import Retriever
from tests.serving import READ, WAIT, WRITE, process, service, wait_for, write_keys, write_run

MANY = httpx.Limits(max_connections=60)
QUERIES = ["oak desk", "glass lamp", "steel mug"]


@pytest.fixture(scope="module")
def other_run(tmp_path_factory):
    """Another model of another index of the same items."""
    return write_run(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def server(served_run, other_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    bad = folder / "bad"
    bad.mkdir()
    (bad / "manifest.json").write_text("{}", encoding="utf-8")
    words = ["--model", served_run, "--beside", other_run, "--api-key-file", write_keys(folder)]
    words += ["--reload", f"other={other_run}", "--reload", f"bad={bad}", "--queue", 64, "--max-batch", 4]
    words += ["--state", folder / "state"]
    with service(*words) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client(READ) as client:
        yield client


def answers_of(folder: Path):
    """Hash of the snapshot of a run, and the items its model finds for each query."""
    retriever = Retriever.load(folder)
    hits = retriever.search(QUERIES, k=5)
    return retriever.snapshot_hash, dict(zip(QUERIES, [[hit.item for hit in one] for one in hits], strict=True))


def ask(client, query, **options):
    return client.post("/v1/search", json={"query": query, "k": 5, "mode": "generative", **options})


def test_it_says_where_it_is_and_that_only_this_machine_reaches_it(server):
    assert server.line.startswith("restd serves ")
    assert server.url.startswith("http://127.0.0.1:")
    assert "(60 items, search; for this machine alone)" in server.line


def test_every_endpoint_answers(server, client, served_run, other_run):
    for path in ("/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/v1/info"):
        assert client.get(path).status_code == 200, path
    for name, folder in (("main", served_run), ("beside", other_run)):
        snapshot, expected = answers_of(folder)
        response = ask(client, "oak desk", model=name)
        assert response.json()["snapshot"] == response.headers["x-restd-snapshot"] == snapshot
        assert [hit["item"] for hit in response.json()["results"][0]["hits"]] == expected["oak desk"]
    explained = client.post("/v1/explain", json={"query": "oak desk", "item": "red-oak-desk"})
    assert explained.json()["sentence"].startswith("red-oak-desk")
    assert set(client.get("/v1/info").json()["models"]) == {"main", "beside"}


def test_keys_are_needed(server):
    with server.client() as nobody:
        assert nobody.get("/readyz").status_code == 200
        assert ask(nobody, "oak").status_code == 401
    with server.client(READ) as reader:
        assert reader.post("/v1/reload", json={"model": "main"}).status_code == 403


def test_a_body_of_ten_megabytes_is_refused_over_the_wire(client):
    assert client.post("/v1/search", content=b"x" * 10_000_000).status_code == 413
    assert client.get("/livez").status_code == 200


def test_a_chunked_body_just_above_the_limit_is_refused_at_once(server):
    """Its last byte comes with the one that is too much, so there is nothing left to wait for."""
    host, port = server.url.removeprefix("http://").split(":")
    size = 256 * 1024 + 1
    head = (
        f"POST /v1/search HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {READ}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=WAIT) as connection:
        connection.sendall(head.encode() + f"{size:x}\r\n".encode() + bytes(size) + b"\r\n0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_bytes_that_are_no_http_are_refused(server):
    host, port = server.url.removeprefix("http://").split(":")
    for bad in (
        b"\x00\xff\x00\xff\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=WAIT) as connection:
            connection.sendall(bad)
            assert connection.recv(100).startswith(b"HTTP/1.1 400"), bad


def test_overload_refuses_by_the_number_of_queries(server):
    """Eight clients with 64 queries each, where 64 may wait."""
    together = threading.Barrier(8)

    def flood(_):
        with server.client(READ) as client:
            together.wait(WAIT)
            return client.post("/v1/search", json={"queries": ["oak desk"] * 64, "beam": 60, "k": 60})

    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(flood, range(8)))
    statuses = [response.status_code for response in responses]
    assert set(statuses) == {200, 429}
    for response in responses:
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
            assert "64 more" in response.json()["error"]["message"]
        else:
            assert len(response.json()["results"]) == 64


def test_work_of_a_client_that_left_is_dropped(server, client):
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.post, "/v1/search", json={"queries": ["oak desk"] * 64, "beam": 60, "k": 60})
        wait_for(lambda: waiting(client) > 0, what="the queue")
        with server.client(READ) as impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post("/v1/search", json={"query": "oak desk", "k": 3}, timeout=0.05)
        assert slow.result(WAIT).status_code == 200
    wait_for(lambda: any('"status": 499' in line for line in server.log), what="the line of the log")
    assert waiting(client) == 0


def waiting(client):
    return gauge(client, "restd_queue_queries")


def gauge(client, name):
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_a_reload_under_load_mixes_nothing_and_fails_nobody(server, served_run, other_run):
    expected = dict([answers_of(served_run), answers_of(other_run)])
    main, other = expected
    assert main != other

    async def scenario():
        current, answered, over = {main}, [], asyncio.Event()
        async with AsyncExitStack() as stack:
            common = {"base_url": server.url, "timeout": WAIT, "limits": MANY}
            reader, writer = [
                await stack.enter_async_context(httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, **common))
                for key in (READ, WRITE)
            ]

            async def keep_asking(number):
                query = QUERIES[number % 3]
                while not over.is_set():
                    possible = set(current)
                    response = await ask(reader, query)
                    if response.status_code == 429:  # fifty clients are too many for a busy machine: it says so
                        await asyncio.sleep(0.1)
                        continue
                    assert response.status_code == 200, response.text
                    body = response.json()
                    assert body["snapshot"] == response.headers["x-restd-snapshot"]
                    assert body["snapshot"] in possible | current, "neither what was served nor what is"
                    items = [hit["item"] for hit in body["results"][0]["hits"]]
                    assert items == expected[body["snapshot"]][query], "an answer of the one or the other, whole"
                    answered.append(body["snapshot"])

            clients = [asyncio.ensure_future(keep_asking(number)) for number in range(50)]
            for name, status, following in (("other", 200, other), ("bad", 422, other), ("main", 200, main)):
                current.add(following)
                response = await writer.post("/v1/reload", json={"model": name})
                assert response.status_code == status, response.text
                current &= {following}
                count = len(answered)
                while len(answered) < count + 100 and not any(client.done() for client in clients):
                    await asyncio.sleep(0.01)
            over.set()
            await asyncio.gather(*clients)
        return answered

    answered = asyncio.run(scenario())
    assert set(answered) == {main, other}
    assert answered[-50:] == [main] * 50


def test_the_log_has_a_line_for_each_request_and_no_query(server, client):
    ask(client, "a secret wish")
    wait_for(lambda: json.loads(server.log[-1])["path"] == "/v1/search", what="the line of the log")
    lines = [json.loads(line) for line in server.log if line.startswith("{")]
    assert {"time", "method", "path", "status", "ms", "client", "queries", "queue_ms", "compute_ms", "snapshot"} == set(
        lines[-1]
    )
    assert not any("secret" in line for line in server.log)
    assert not any("Traceback" in line for line in server.log)


def test_a_stop_answers_what_is_in_flight_and_refuses_what_comes(served_run):
    patient = ("--deadline-ms", 1000 * WAIT, "--drain-seconds", WAIT)
    with service("--model", served_run, "--max-batch", 1, "--queue", 400, "--log-queries", *patient) as server:
        with ThreadPoolExecutor(20) as pool, server.client() as client:
            body = {"queries": ["oak desk"] * 20, "beam": 60, "k": 60}
            pending = [pool.submit(client.post, "/v1/search", json=body) for _ in range(20)]
            wait_for(lambda: gauge(client, "restd_in_flight_requests") == 21, what="twenty requests and this one")
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: client.get("/readyz").status_code == 503, what="the end of being ready")
            assert client.get("/livez").status_code == 200
            late = client.post("/v1/search", json={"query": "oak desk"})
            assert (late.status_code, late.json()["error"]["code"]) == (503, "not_ready")
            responses = [answer.result(WAIT) for answer in pending]
        assert [response.status_code for response in responses] == [200] * 20
        assert all(len(response.json()["results"]) == 20 for response in responses)
        assert server.process.wait(WAIT) == 0
    assert any('"texts": ["oak desk"' in line for line in server.log)


def test_a_second_signal_ends_at_once(served_run):
    with service("--model", served_run, "--max-batch", 1, "--queue", 4000, "--max-queries", 2000) as server:

        def post():
            with server.client() as client, pytest.raises(httpx.HTTPError):
                client.post("/v1/search", json={"queries": ["oak desk"] * 2000, "beam": 60, "k": 60})

        with ThreadPoolExecutor(1) as pool, server.client() as client:
            pending = pool.submit(post)
            wait_for(lambda: gauge(client, "restd_in_flight_requests") == 2, what="a long request")
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: client.get("/readyz").status_code == 503, what="the end of being ready")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(WAIT) == 128 + signal.SIGTERM
            pending.result(WAIT)


def test_health_is_answered_while_the_model_is_loaded_and_a_stop_then_ends_at_once(served_run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with process("--model", served_run, "--port", port) as starting:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT) as client:

            def alive():
                try:
                    return client.get("/livez").status_code == 200
                except httpx.ConnectError:
                    return False

            wait_for(alive, what="the first sign of life")
            assert client.get("/readyz").status_code == 503
            assert client.post("/v1/search", json={"query": "oak"}).status_code == 503
        starting.send_signal(signal.SIGTERM)
        assert starting.wait(WAIT) == 0
        assert starting.stdout.read() == ""
