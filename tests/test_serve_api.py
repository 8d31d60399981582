"""The interface without a socket: answers are those of the library, and every refusal names its field."""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from restd.search import Retriever
from restd.serve import Limits, ServedModel, ServerState, make_app
from restd.serve.item_fields import ItemLimits
from restd.serve.keys import Keys
from tests.serving import WAIT, wait_for

LIMITS = Limits(
    max_body_kb=16, max_queries=4, max_query_chars=80, max_history=5, max_k=50, max_beam=60, max_filter_items=9, queue=8
)


@pytest.fixture(scope="module")
def model(served_run):
    return ServedModel.load(served_run)


@pytest.fixture(scope="module")
def state(model):
    state = ServerState.of(LIMITS)
    state.put(model)
    return state


@pytest.fixture(scope="module")
def client(state):
    with TestClient(make_app(state)) as client:
        yield client


def post(client, path="/v1/search", **body):
    return client.post(path, json=body)


def error_of(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error.keys() == {"code", "message", "field"}
    assert "Traceback" not in response.text
    return error


@pytest.fixture(scope="module")
def library(served_run):
    return Retriever.load(served_run, keep_heads=True, hybrid=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "mode": "generative", "beam": 20},
        {"where": ["category=desk", "title~oak"], "k": 4},
        {"deny": ["red-oak-desk"], "widen": False, "beam": 5, "k": 5, "mode": "generative"},
        {"allow": ["red-oak-desk", "blue-oak-desk"], "score_norm": "trie_children"},
        {"heads": {"mode": "fuse", "weight": 0.2}, "k": 5},
    ],
    ids=str,
)
def test_answers_are_those_of_the_library(client, library, options):
    from restd.search import HeadUse

    response = post(client, queries=["oak desk", "glass lamp"], **options)
    assert response.status_code == 200, response.text
    body = response.json()
    keywords = {**options, "mode": body["mode"]}
    if "heads" in options:
        keywords["heads"] = HeadUse(**options["heads"])
    expected = library.search(["oak desk", "glass lamp"], **keywords)
    assert body["mode"] == options.get("mode", "generative" if "heads" in options else "hybrid")
    for result, hits in zip(body["results"], expected, strict=True):
        assert [hit["item"] for hit in result["hits"]] == [hit.item for hit in hits]
        assert [hit["score"] for hit in result["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-5)
        assert [tuple(hit["sid"]) for hit in result["hits"]] == [hit.sid for hit in hits]
        assert [hit["title"] for hit in result["hits"]] == [hit.title for hit in hits]
    assert [result["query"] for result in body["results"]] == ["oak desk", "glass lamp"]


def test_the_headers_say_what_answered_and_how_long_it_took(client, model):
    response = post(client, query="oak desk", k=2)
    assert response.headers["x-restd-snapshot"] == model.hash == response.json()["snapshot"]
    assert float(response.headers["x-restd-compute-ms"]) > 0
    assert float(response.headers["x-restd-queue-ms"]) >= 0
    assert post(client, query="oak desk", k=0).headers["x-restd-snapshot"] == model.hash


def test_columns_come_with_each_hit(client):
    hits = post(client, query="oak desk", k=3, fields=["title", "category"]).json()["results"][0]["hits"]
    assert all(
        hit["fields"] == {"title": hit["title"], "category": ["Home", "desk"]} for hit in hits if "desk" in hit["item"]
    )
    assert post(client, query="oak desk", k=1).json()["results"][0]["hits"][0]["fields"] == {}


def test_fewer_than_k_items_are_partial(client):
    full = post(client, query="oak desk", k=4, where=["category=desk"]).json()["results"][0]
    assert (len(full["hits"]), full["partial"]) == (4, False)
    short = post(client, query="oak desk", k=4, allow=["red-oak-desk"]).json()["results"][0]
    assert (len(short["hits"]), short["partial"]) == (1, True)


def test_an_explanation_is_that_of_the_library(client, library):
    response = post(client, "/v1/explain", query="oak desk", item="red-glass-kettle", beam=1, k=1, mode="generative")
    assert response.status_code == 200, response.text
    expected = library.explain("oak desk", "red-glass-kettle", beam=1, k=1)
    assert response.json()["sentence"] == expected.sentence()
    assert response.json()["explanation"] == json.loads(json.dumps(expected.to_dict()))
    assert float(response.headers["x-restd-compute-ms"]) > 0


BAD = [
    ({"query": ""}, 422, "query"),
    ({"query": "  \t "}, 422, "query"),
    ({"query": "\x00\x07"}, 422, "query"),
    ({"queries": ["oak", "\x1b"]}, 422, "queries.1"),
    ({"query": 7}, 422, "query"),
    ({"query": ["oak"]}, 422, "query"),
    ({}, 422, None),
    ({"query": "oak", "queries": ["oak"]}, 422, None),
    ({"queries": []}, 422, "queries"),
    ({"queries": ["oak"] * 5}, 422, "queries"),
    ({"query": "o" * 81}, 422, "query"),
    ({"query": "oak", "kk": 3}, 422, "kk"),
    ({"query": "oak", "seen": True}, 422, "seen"),
    ({"query": "oak", "k": 0}, 422, "k"),
    ({"query": "oak", "k": 51}, 422, "k"),
    ({"query": "oak", "k": 10**30}, 422, "k"),
    ({"query": "oak", "k": "3"}, 422, "k"),
    ({"query": "oak", "k": 2.5}, 422, "k"),
    ({"query": "oak", "k": True}, 422, "k"),
    ({"query": "oak", "k": None}, 422, "k"),
    ({"query": "oak", "beam": 61}, 422, "beam"),
    ({"query": "oak", "beam": 0}, 422, "beam"),
    ({"query": "oak", "widen": "yes"}, 422, "widen"),
    ({"query": "oak", "score_norm": "magic"}, 422, "score_norm"),
    ({"query": "oak", "mode": "magic"}, 422, "mode"),
    ({"query": "oak", "model": "beside"}, 422, "model"),
    ({"query": "oak", "model": "../../etc/passwd"}, 422, "model"),
    ({"query": "oak", "where": "category=desk"}, 422, "where"),
    ({"query": "oak", "where": ["nonsense"]}, 422, "where.0"),
    ({"query": "oak", "where": [" " * 80]}, 422, "where.0"),
    ({"query": "oak", "where": ["colour=red"]}, 422, "where"),
    ({"query": "oak", "where": ["/etc/passwd=1"]}, 422, "where"),
    ({"query": "oak", "where": ["category<desk"]}, 422, "where"),
    ({"query": "oak", "where": ["title=nothing like it"]}, 422, "where"),
    ({"query": "oak", "where": ["title=red oak desk"], "deny": ["red-oak-desk"]}, 422, "where"),
    ({"query": "oak", "where": ["title~a"] * 33}, 422, "where"),
    ({"query": "oak", "allow": []}, 422, "allow"),
    ({"query": "oak", "allow": ["nobody"]}, 422, "allow"),
    ({"query": "oak", "allow": ["red-oak-desk"] * 10}, 422, "allow"),
    ({"query": "oak", "allow": [""]}, 422, "allow.0"),
    ({"query": "oak", "allow": ["x" * 513]}, 422, "allow.0"),
    ({"query": "oak", "deny": ["../../index/manifest.json"]}, 422, "deny"),
    ({"query": "oak", "deny": None}, 422, "deny"),
    ({"query": "oak", "fields": ["colour"]}, 422, "fields"),
    ({"query": "oak", "fields": ["../items.jsonl"]}, 422, "fields"),
    ({"query": "oak", "category_width": -1}, 422, "category_width"),
    ({"query": "oak", "heads": {"mode": "magic"}}, 422, "heads.mode"),
    ({"query": "oak", "heads": {"weight": -1}}, 422, "heads.weight"),
    ({"query": "oak", "heads": {"extra_candidates": 10**9}}, 422, "heads.extra_candidates"),
    ({"query": "oak", "heads": {"file": "heads.pickle"}}, 422, "heads.file"),
    ({"query": "oak", "heads": {}, "mode": "hybrid"}, 422, "heads"),
    ({"query": {"__reduce__": ["os.system", "true"]}}, 422, "query"),
]


@pytest.mark.parametrize(("body", "status", "field"), BAD, ids=lambda value: str(value)[:60])
def test_a_bad_search_names_its_field(client, body, status, field):
    error = error_of(client.post("/v1/search", json=body), status)
    assert error["field"] == field
    assert len(error["message"]) < 600


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"not json", 400),
        (b'{"query": "oak"', 400),
        (b'{"query": "\xff\xfe"}', 400),
        (b'{"query": "oak", "k": NaN}', 422),
        (b'{"query": "oak", "heads": {"weight": Infinity}}', 422),
        (b'{"query": "oak", "heads": {"weight": NaN}}', 422),
        (b'{"query": "\\ud800"}', 422),
        (b'{"query": "oak", "allow": ["\\udfff"]}', 422),
        (b'{"\\ud800": 1, "query": "oak"}', 422),
        (b'{"query": "oak", "k": ' + b"9" * 5000 + b"}", 400),
        (b"[" * 8000, 400),
        (b'{"query":' * 1000 + b"1" + b"}" * 1000, 400),
        (b"null", 422),
        (b"[]", 422),
        (b'"oak"', 422),
        (b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01a\x94.", 400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bodies_that_are_no_request_are_refused(client, content, status):
    response = client.post("/v1/search", content=content, headers={"Content-Type": "application/json"})
    error_of(response, status)


def test_a_body_of_another_type_is_refused(client):
    response = client.post(
        "/v1/search", content=b"query=oak", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    error_of(response, 422)


def test_a_body_above_the_limit_is_refused_with_and_without_its_length(client):
    large = json.dumps({"query": "x" * 10_000_000}).encode()
    assert "at most 16384" in error_of(client.post("/v1/search", content=large), 413)["message"]

    def parts():
        for _ in range(100):
            yield b" " * 1000

    error_of(client.post("/v1/search", content=parts()), 413)
    million = json.dumps({"query": "oak", "allow": [str(number) for number in range(1_000_000)]}).encode()
    error_of(client.post("/v1/search", content=million), 413)


def test_a_search_model_takes_no_history(client):
    error = error_of(post(client, "/v1/recommend", history=["red-oak-desk"]), 422)
    assert error["field"] == "model"
    assert "/v1/search" in error["message"]


def test_an_unknown_item_to_explain_is_refused(client):
    assert error_of(post(client, "/v1/explain", query="oak", item="nobody"), 422)["field"] == "item"
    assert error_of(post(client, "/v1/explain", query="oak"), 422)["field"] == "item"
    assert error_of(post(client, "/v1/explain", query="oak", item="red-oak-desk", seen=False), 422)["field"] == "seen"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/etc/passwd", 404),
        ("GET", "/v1/../../etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "/v1/search", 405),
        ("PATCH", "/livez", 405),
    ],
)
def test_other_addresses_and_methods_are_problems_too(client, method, path, status):
    error_of(client.request(method, path), status)


def test_odd_texts_come_back_as_they_are(client):
    odd = "<script>alert('x')</script> \"oak\" 電気 🫖"
    response = post(client, query=odd, k=1)
    assert response.json()["results"][0]["query"] == odd
    assert response.headers["content-type"] == "application/json"


@contextmanager
def busy(client, state):
    """While this lasts, the model is busy with something else."""
    gate = threading.Event()
    blocking = client.portal.start_task_soon(state.queue.run, gate.wait)
    try:
        wait_for(lambda: state.queue.is_busy, what="the call")
        yield
    finally:
        gate.set()
        blocking.result(WAIT)


def test_overload_is_counted_in_queries_and_says_when_to_come_again(client, state):
    with ThreadPoolExecutor(2) as pool:
        with busy(client, state):
            waiting = [pool.submit(post, client, queries=["oak", "mug", "lamp", "desk"]) for _ in range(2)]
            wait_for(lambda: state.queue.waiting == 8, what="eight waiting queries")
            refused = post(client, query="one more")
            assert error_of(refused, 429)["code"] == "overloaded"
            assert int(refused.headers["retry-after"]) >= 1
            assert client.get("/v1/info").status_code == 200, "what needs no model is answered"
        assert [answer.result(WAIT).status_code for answer in waiting] == [200, 200]


def test_an_answer_that_is_late_is_a_504(model):
    state = ServerState.of(replace(LIMITS, deadline_ms=50))
    state.put(model)
    with TestClient(make_app(state)) as client, busy(client, state):
        for path, body in (("/v1/search", {}), ("/v1/explain", {"item": "red-oak-desk"})):
            assert error_of(post(client, path, query="oak", **body), 504)["code"] == "deadline"


def test_info_says_what_is_served(client, model, served_run):
    info = client.get("/v1/info").json()
    assert (info["items"], info["task"], info["snapshot"]) == (60, "search", model.hash)
    assert info["modes"] == ["generative", "hybrid"]
    assert info["default_mode"] == "hybrid"
    assert info["beams"] == {"generative": 100, "hybrid": 40}
    assert info["parts"] == {"generator": 1.0, "bm25": 0.5}
    assert info["limits"]["max_queries"] == 4
    assert info["limits"]["max_items"] == ItemLimits().items
    assert info["heads"] is True
    assert info["writable"] is False
    assert info["columns"] == ["id", "title", "category"]
    assert str(served_run.parent) not in json.dumps(info), "folders of the machine are nobody's business"


def test_health_and_counters(client):
    assert client.get("/livez").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}
    post(client, query="oak desk")
    text = client.get("/metrics").text
    assert 'restd_requests_total{method="POST",route="/v1/search",status="200"}' in text
    assert 'restd_items{model="main"} 60.0' in text
    assert "restd_in_flight_requests 1.0" in text, "this request itself"


def test_nothing_is_answered_before_a_model_is_loaded_or_while_the_service_stops(model):
    state = ServerState.of(LIMITS)
    with TestClient(make_app(state)) as client:
        assert client.get("/livez").status_code == 200
        for path in ("/readyz", "/v1/info", "/metrics"):
            error_of(client.get(path), 503)
        state.put(model)
        assert client.get("/readyz").status_code == 200
        state.is_stopping = True
        error_of(client.get("/readyz"), 503)
        response = post(client, query="oak")
        assert "stopping" in error_of(response, 503)["message"]
        assert response.headers["connection"] == "close"


def test_keys_open_what_they_are_for(model):
    keys = Keys.parse(["read: " + "r" * 16, "write: " + "w" * 16])
    state = ServerState.of(LIMITS, keys=keys)
    state.put(model)
    with TestClient(make_app(state)) as client:

        def status(method, path, key=None, **options):
            headers = {} if key is None else {"Authorization": key}
            return client.request(method, path, headers=headers, **options).status_code

        assert status("GET", "/livez") == status("GET", "/docs") == status("GET", "/openapi.json") == 200
        assert status("GET", "/v1/info") == status("GET", "/metrics") == 401
        assert status("GET", "/v1/info", "Bearer " + "x" * 16) == 401
        assert status("GET", "/v1/info", "Basic " + "r" * 16) == 401
        assert status("GET", "/v1/info", "Bearer") == 401
        assert status("GET", "/v1/info", "bearer " + "r" * 16) == 200
        assert status("GET", "/v1/info", "Bearer " + "w" * 16) == 200
        assert status("POST", "/v1/reload", "Bearer " + "r" * 16, json={"model": "main"}) == 403
        assert status("POST", "/v1/reload", "Bearer " + "w" * 16, json={"model": "/etc/passwd"}) == 422
        assert client.get("/v1/info").headers["www-authenticate"] == "Bearer"
        assert status("POST", "/v1/search", content=b"x" * 99_999) == 401, "a body without a key is not even read"


def test_writing_is_off_without_a_write_key(client):
    error = error_of(client.post("/v1/reload", json={"model": "main"}), 403)
    assert "--api-key-file" in error["message"]


def test_other_origins_are_allowed_only_where_the_operator_says_so(client, model):
    asks = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client.options("/v1/search", headers=asks).headers
    state = ServerState.of(LIMITS, cors=("https://shop.example",))
    state.put(model)
    with TestClient(make_app(state)) as open_client:
        answer = open_client.options("/v1/search", headers=asks)
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        other = open_client.options("/v1/search", headers={**asks, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_numbers_that_json_does_not_have_become_null():
    from restd.serve.search_routes import json_response

    assert json.loads(json_response({"a": [1.5, math.nan, (math.inf,)]}).body) == {"a": [1.5, None, [None]]}


def test_the_page_of_the_endpoints_needs_no_other_host(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for address in ("/v1/search", "/v1/explain", "/v1/info", "/v1/reload", "/readyz"):
        assert address in page.text
    assert "http" not in page.text.replace("https://json-schema", "")
    assert "<script" not in page.text


def test_a_fault_of_the_service_is_a_problem_and_is_logged(model, caplog):
    state = ServerState.of(LIMITS)
    state.put(model)
    app = make_app(state)

    @app.get("/v1/broken")
    async def broken():
        raise ZeroDivisionError("of the test")

    with TestClient(app, raise_server_exceptions=False) as client:
        error = error_of(client.get("/v1/broken"), 500)
    assert "of the test" not in error["message"]
    assert "of the test" in caplog.text
