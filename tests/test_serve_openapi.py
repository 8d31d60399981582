"""Generated requests against the real server, made from its OpenAPI document: nothing breaks, all is as described."""

import pytest

from tests.service_fuzz import GenerationMode, faults_in, read_document, send_cases
from tests.serving import service, write_keys

CASES = 150


@pytest.fixture(scope="module")
def server(served_run, tmp_path_factory):
    keys = write_keys(tmp_path_factory.mktemp("keys"))
    with service("--model", served_run, "--api-key-file", keys) as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    return read_document(server.url)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_generated_requests_break_nothing(server, document, mode):
    sent = send_cases(document, mode, cases=CASES)
    assert sent.faults == {}
    assert sent.requests >= CASES
    assert sent.statuses[422] > 0
    if mode is GenerationMode.POSITIVE:
        assert sent.statuses[200] > 0
    assert server.process.poll() is None
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
