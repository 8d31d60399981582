"""Generated requests against the real server, made from its OpenAPI document: nothing breaks, all is as described."""

import pytest

from tests.service_fuzz import GenerationMode, Names, faults_in, operations_of, read_document, send_cases
from tests.serving import WRITE, service, write_keys

CASES, NAMED = 150, 60


@pytest.fixture(scope="module")
def server(served_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzzed")
    words = ("--model", served_run, "--api-key-file", write_keys(folder), "--state", folder / "state")
    with service(*words) as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    return read_document(server.url)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_generated_requests_break_nothing(server, document, mode):
    sent = send_cases(document, mode, cases=CASES)
    assert sent.faults == {}
    assert sent.requests > CASES // 2, "all but those whose address is too long to be sent"
    assert sent.statuses[422] > 0
    if mode is GenerationMode.POSITIVE:
        assert sent.statuses[200] > 0
    assert server.process.poll() is None
    assert faults_in(server.log) == []


@pytest.mark.parametrize("label", ["POST /v1/search", "POST /v1/explain", "PUT /v1/items"])
def test_generated_requests_with_known_names_give_the_model_something_to_do(server, document, label):
    with server.client(WRITE) as client:
        info = client.get("/v1/info").json()
        items = client.get("/v1/map", params={"points": 40}).json()["items"]
    names = Names(items, info["columns"], info["task"])
    sent = send_cases(operations_of(document)[label], GenerationMode.POSITIVE, cases=NAMED, names=names)
    assert sent.faults == {}
    assert sent.statuses[200] > NAMED // 10
    assert faults_in(server.log) == []


def test_every_answer_is_described(document):
    described = {
        (method, path): set(operation["responses"])
        for path, methods in document.raw_schema["paths"].items()
        for method, operation in methods.items()
    }
    assert described["post", "/v1/search"] == {"200", "400", "401", "408", "413", "422", "429", "503", "504"}
    assert described["get", "/v1/info"] == {"200", "401", "503"}
    assert {"403", "409", "422"} <= described["post", "/v1/reload"]
    assert described["get", "/livez"] == {"200"}
    for name in ("SearchRequest", "RecommendRequest", "ExplainRequest"):
        schema = document.raw_schema["components"]["schemas"][name]
        assert schema["additionalProperties"] is False
        assert schema["properties"]["k"]["maximum"] == 1000
