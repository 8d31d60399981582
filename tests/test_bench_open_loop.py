"""The load generator sends what it should, when it should, and counts what comes back; answers are checked."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from restd.bench.open_loop import OpenLoop, post
from restd.bench.serve import same_answer
from restd.bench.served import server_of
from restd.errors import RestdError
from restd.search import Hit


@contextmanager
def counting_server():
    """A server that answers with what it received; with another status, or not at all, where it is told to."""
    received, clients = [], set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, json.loads(body)))
            clients.add(self.client_address)
            status = json.loads(body).get("status", 200)
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received, clients
        finally:
            server.shutdown()
            thread.join()


def offered(url, *parts, **options):
    """Replies to lists of requests that are offered one after the other."""

    async def scenario():
        loop = OpenLoop(url, **options.pop("loop", {}))
        replies = [await loop.offer(requests, **options) for requests in parts]
        await loop.close()
        return replies

    return asyncio.run(scenario())


def test_every_request_is_sent_once_and_its_reply_is_its_own():
    bodies = [{"number": number, "text": "ß" * number} for number in range(20)]
    with counting_server() as (url, received, _):
        (replies,) = offered(url, [post("/v1/search", body) for body in bodies])
    assert sorted((body["number"] for _, body in received)) == list(range(20))
    assert {path for path, _ in received} == {"/v1/search"}
    assert [json.loads(reply.body) for reply in replies] == bodies
    assert [reply.number for reply in replies] == list(range(20))
    assert all(reply.is_answered and reply.ended > 0 for reply in replies)


def test_connections_are_kept():
    one = [post("/", {})]
    with counting_server() as (url, received, clients):
        offered(url, *[one] * 5)
    assert (len(received), len(clients)) == (5, 1)


def test_requests_are_due_at_their_rate_and_latency_counts_from_then():
    with counting_server() as (url, _, _):
        (replies,) = offered(url, [post("/", {"n": n}) for n in range(10)], rate=100.0)
    assert [reply.due for reply in replies] == pytest.approx([n / 100 for n in range(10)])
    assert all(reply.ended >= reply.due for reply in replies)
    assert all(reply.seconds == reply.ended - reply.due for reply in replies)


def test_refusals_and_broken_connections_are_counted_as_what_they_are():
    requests = [post("/", {"status": status}) for status in (200, 429, 503, 0, 200)]
    with counting_server() as (url, _, _):
        (replies,) = offered(url, requests)
    assert [reply.status for reply in replies] == [200, 429, 503, 0, 200]
    assert [reply.is_broken for reply in replies] == [False, False, False, True, False]


def test_a_server_that_is_not_there_or_never_answers_ends_nothing():
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert offered(url, [post("/", {})])[0][0].is_broken, "nobody listens"
        silent.listen()
        assert offered(url, [post("/", {})], loop={"longest": 0.2})[0][0].is_broken, "nobody answers"


def test_answers_with_other_items_or_scores_are_wrong():
    hits = [Hit("a", "A", -1.0, (0, 1)), Hit("b", "B", -30.0, (0, 2))]

    def body(*pairs):
        return {"results": [{"hits": [{"item": item, "score": score} for item, score in pairs]}]}

    assert same_answer(body(("a", -1.000001), ("b", -30.0001)), hits)
    assert not same_answer(body(("a", -1.0001), ("b", -30.0)), hits)
    assert not same_answer(body(("b", -30.0), ("a", -1.0)), hits)
    assert not same_answer(body(("a", -1.0)), hits)


def test_a_server_that_cannot_start_says_why(tmp_path):
    with pytest.raises(RestdError, match=r"(?s)The server did not start.*none"), server_of(tmp_path / "none"):
        pass
