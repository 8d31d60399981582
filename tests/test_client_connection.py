"""Retries, errors and batches of the client, over a transport whose answers are given."""

import json
import random
from collections import Counter

import httpx
import pytest

from restd import Client
from restd.client import (
    AccessError,
    DeadlineError,
    InvalidRequestError,
    OverloadError,
    ResponseError,
    Retries,
    ServiceError,
    UnavailableError,
)
from restd.client.connection import Connection
from restd.errors import ConfigError, DataError

URL = "http://service.example"
INFO = {"limits": {"max_queries": 3, "max_items": 2, "max_body_kb": 1}}


def problem(status, message="Try again later.", headers=None):
    body = {"error": {"code": "some", "message": message, "field": None}}
    return httpx.Response(status, json=body, headers=headers or {})


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now, self.pauses = 0.0, []

    def sleep(self, seconds):
        self.now += seconds
        self.pauses.append(seconds)

    def __call__(self):
        return self.now


def connection(answers, clock, **options):
    """A connection to a service that gives these answers in turn, and then the last one for good."""
    waiting = list(answers)

    def answer(request):
        following = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(following, Exception):
            raise following
        return following

    return Connection(
        URL,
        transport=httpx.MockTransport(answer),
        sleep=clock.sleep,
        clock=clock,
        jitter=random.Random(7),
        **options,
    )


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_tried_again_not_before_it_says(status):
    clock = Clock()
    busy = [problem(status, headers={"Retry-After": "3"}), problem(status)]
    answer = connection([*busy, httpx.Response(200, json={"a": 1})], clock).request("POST", "/v1/search", {})
    assert answer == {"a": 1}
    assert 3.0 <= clock.pauses[0] <= 3.75
    assert 0.2 <= clock.pauses[1] <= 0.4
    assert len(clock.pauses) == 2


def test_pauses_grow_and_differ_between_clients():
    retries = Retries(first_delay=1.0, longest_delay=4.0)
    longest = [retries.delay(attempt, None, 1.0) for attempt in range(1, 6)]
    assert longest == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert retries.delay(2, None, 0.0) < retries.delay(2, None, 0.5) < retries.delay(2, None, 1.0)
    clock, other = Clock(), Clock()
    for own in (clock, other):
        with pytest.raises(OverloadError):
            connection([problem(429)], own).request("GET", "/v1/info")
    assert clock.pauses == other.pauses, "one generator, one sequence"


def test_attempts_are_bounded():
    clock = Clock()
    with pytest.raises(
        OverloadError, match=r"answered 429\. Try again later\. Given up after 4 attempts in"
    ) as given_up:
        connection([problem(429)], clock, retries=Retries(attempts=4)).request("GET", "/v1/info")
    assert len(clock.pauses) == 3
    assert (given_up.value.status, given_up.value.code) == (429, "some")


def test_time_is_bounded_even_if_the_service_names_a_longer_one():
    clock = Clock()
    with pytest.raises(UnavailableError, match="Given up after 1 attempt in 0 s") as given_up:
        connection([problem(503, headers={"Retry-After": "3600"})], clock).request("GET", "/v1/info")
    assert clock.pauses == []
    assert given_up.value.retry_after == 3600
    with pytest.raises(UnavailableError):
        connection([problem(503, headers={"Retry-After": "20"})], clock).request("GET", "/v1/info")
    assert clock.now <= 60


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (401, AccessError),
        (403, AccessError),
        (404, InvalidRequestError),
        (413, InvalidRequestError),
        (422, InvalidRequestError),
        (500, ResponseError),
        (504, DeadlineError),
        (507, ResponseError),
    ],
)
def test_what_is_refused_for_good_is_not_sent_again(status, kind):
    clock = Clock()
    with pytest.raises(kind, match=f"answered {status}. Not like this."):
        connection([problem(status, "Not like this.")], clock).request("POST", "/v1/search", {})
    assert clock.pauses == []


def test_answers_of_something_else_are_errors_that_say_so():
    clock = Clock()
    page = httpx.Response(502, text="<html>Bad Gateway</html>")
    with pytest.raises(ResponseError, match=r"not one of restd .*Bad Gateway"):
        connection([page], clock).request("GET", "/v1/info")
    for strange in (httpx.Response(200, text="<html>"), httpx.Response(200, json=[1])):
        with pytest.raises(ResponseError, match="expected a JSON object"):
            connection([strange], clock).request("GET", "/v1/info")
    with pytest.raises(ResponseError, match="answered 302"):
        connection([httpx.Response(302, headers={"Location": "/login"})], clock).request("GET", "/v1/info")


def test_connections_that_break_are_tried_again_unless_it_could_be_done_twice():
    good = httpx.Response(200, json={})
    for broken in (httpx.ConnectError("refused"), httpx.RemoteProtocolError("left")):
        clock = Clock()
        assert connection([broken, good], clock).request("GET", "/v1/info") == {}
        assert len(clock.pauses) == 1
    clock = Clock()
    with pytest.raises(UnavailableError, match="may have been done all the same"):
        connection([httpx.RemoteProtocolError("left"), good], clock).request(
            "DELETE", "/v1/items", {"ids": ["a"]}, is_repeatable=False
        )
    assert clock.pauses == []
    assert (
        connection([httpx.ConnectError("refused"), good], clock).request(
            "DELETE", "/v1/items", {"ids": ["a"]}, is_repeatable=False
        )
        == {}
    )
    with pytest.raises(DeadlineError, match="raise the timeout"):
        connection([httpx.ReadTimeout("slow")], clock).request("GET", "/v1/info")


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="expected one like http"):
        Client("127.0.0.1:8000")
    with pytest.raises(ConfigError, match="seconds = nan"):
        Retries(seconds=float("nan"))


def client_of(answer, **options):
    return Client(URL + "/", transport=httpx.MockTransport(answer), retries=Retries(attempts=1), **options)


def hit(item):
    return {"item": item, "title": item, "score": -1.0, "sid": [1, 2], "fields": {}, "parts": None}


class Service:
    """Answers searches with one hit per query, and remembers what it was sent."""

    def __init__(self, *, late=()):
        self.requests, self.late = [], list(late)

    def __call__(self, request):
        if request.url.path == "/v1/info":
            self.requests.append("info")
            return httpx.Response(200, json=INFO)
        body = json.loads(request.content)
        self.requests.append(body)
        late = self.late.pop(0) if self.late else ()
        queries = body.get("queries", body.get("histories", body.get("items", body.get("ids"))))
        results = [
            {"hits": [] if number in late else [hit(str(query))], "timed_out": number in late}
            for number, query in enumerate(queries)
        ]
        return httpx.Response(200, json={"results": results})

    def batches(self):
        return [body["queries"] for body in self.requests if body != "info"]


def test_many_queries_are_sent_in_as_many_requests_as_the_limits_take():
    sent = Service()
    with client_of(sent) as client:
        hits = client.search(list("abcdefgh"))
        assert [own[0].item for own in hits] == list("abcdefgh")
        assert sent.batches() == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]
        client.search(["x" * 500, "y" * 500, "z"])
        assert [len(batch) for batch in sent.batches()[3:]] == [1, 2], "a request has 1 KiB at most"
        assert Counter(map(str, sent.requests))["info"] == 1
    alone = Service()
    with client_of(alone) as client:
        client.search("a")
    assert "info" not in alone.requests, "one query needs no limits"


def test_items_and_ids_are_sent_in_batches_too():
    sent = Service()
    with client_of(sent) as client:
        client.add([{"id": "1"}, {"id": "2"}, {"id": "3"}], texts=["one", "two", "three"])
        client.remove(["1", "2", "3"])
        with pytest.raises(DataError, match="expected one text per item"):
            client.add([{"id": "1"}], texts=[])
    bodies = [body for body in sent.requests if body != "info"]
    assert bodies[:2] == [
        {"items": [{"id": "1"}, {"id": "2"}], "texts": ["one", "two"]},
        {"items": [{"id": "3"}], "texts": ["three"]},
    ]
    assert bodies[2:] == [{"ids": ["1", "2"]}, {"ids": ["3"]}]


def test_queries_that_the_deadline_cut_are_sent_again():
    sent = Service(late=[(1, 2), (1,)])
    with client_of(sent) as client:
        assert [own[0].item for own in client.search(["a", "b", "c"])] == ["a", "b", "c"]
    assert sent.batches() == [["a", "b", "c"], ["b", "c"], ["c"]]
    with client_of(Service(late=[(0,)])) as client, pytest.raises(DeadlineError, match="None of 1 queries"):
        client.search("a")


def test_only_what_differs_from_the_defaults_is_sent():
    sent = Service()
    with client_of(sent, model="beside") as client:
        client.search("a")
        client.search("a", k=3, deny=["x"], seen=True, contributions=True)
    assert sent.requests == [
        {"queries": ["a"], "mode": "generative", "model": "beside"},
        {
            "queries": ["a"],
            "mode": "generative",
            "model": "beside",
            "k": 3,
            "deny": ["x"],
            "contributions": True,
        },
    ]


def test_the_key_is_sent_and_never_shown():
    keys = []

    def answer(request):
        keys.append(request.headers.get("Authorization"))
        return problem(401, "The key is not known.")

    client = client_of(answer, api_key="secret-of-mine")
    with pytest.raises(AccessError) as refused:
        client.info()
    assert keys == ["Bearer secret-of-mine"]
    assert "secret" not in f"{refused.value}{client!r}{vars(refused.value)}"


@pytest.mark.parametrize(
    "answer",
    [{}, {"results": [{}]}, {"results": [{"hits": [{"item": "a"}]}]}, {"results": None}, {"results": []}],
    ids=str,
)
def test_an_answer_of_another_shape_is_an_error(answer):
    with client_of(lambda request: httpx.Response(200, json=answer)) as client:
        with pytest.raises(ResponseError, match="same version of restd"):
            client.search("a")
        with pytest.raises(ServiceError):
            client.explain("a", "b")
