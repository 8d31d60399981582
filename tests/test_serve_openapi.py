"""Generated requests against the real server, made from its OpenAPI document: nothing breaks, all is as described."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving import WAIT, WRITE, service, write_keys

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
CASES = 150


@pytest.fixture(scope="module")
def server(served_run, tmp_path_factory):
    keys = write_keys(tmp_path_factory.mktemp("keys"))
    with service("--model", served_run, "--api-key-file", keys) as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json", timeout=WAIT)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_generated_requests_break_nothing(server, document, mode):
    statuses = Counter()

    @given(data=st.data())
    @settings(max_examples=CASES, suppress_health_check=list(HealthCheck), database=None)
    def send(data):
        case = data.draw(cases)
        headers = {"Authorization": f"Bearer {WRITE}"}
        response = case.call_and_validate(headers=headers, checks=CHECKS, timeout=WAIT)
        statuses[response.status_code] += 1
        assert "Traceback" not in response.text

    cases = document.as_strategy(generation_mode=mode)
    send()
    assert sum(statuses.values()) >= CASES
    assert statuses[422] > 0
    if mode is GenerationMode.POSITIVE:
        assert statuses[200] > 0
    assert server.process.poll() is None
    assert not any("Traceback" in line or '"status": 5' in line for line in server.log)


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
