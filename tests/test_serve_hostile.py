"""What nobody should send: each is refused with a sentence, or shown as the text that it is, on every route."""

import json
import pickle

import pytest
from fastapi.testclient import TestClient

from restd.serve import Limits, ServedModel, ServerState, make_app
from restd.serve.item_updates import ItemUpdates
from restd.serve.keys import Keys

WRITE = "write-key-of-the-tests"
SCRIPT = "<script>alert(\"x\" + 'y')</script> & kettle"
FILES = ["/etc/passwd", "../../index/manifest.json", "..\\..\\windows\\win.ini", "file:///etc/passwd", "~/.ssh/id_rsa"]
BODIES = [
    ("POST", "/v1/search", {"query": "oak"}),
    ("POST", "/v1/recommend", {"history": ["red-oak-desk"]}),
    ("POST", "/v1/explain", {"query": "oak", "item": "red-oak-desk"}),
    ("POST", "/v1/map/query", {"query": "oak"}),
    ("POST", "/v1/reload", {"model": "main"}),
    ("PUT", "/v1/items", {"items": [{"id": "a", "title": "a"}]}),
    ("DELETE", "/v1/items", {"ids": ["red-oak-desk"]}),
]
ROUTES = [(method, path) for method, path, _ in BODIES]
NAMES = [
    ("POST", "/v1/search", lambda name: {"query": "oak", "model": name}),
    ("POST", "/v1/search", lambda name: {"query": "oak", "fields": [name]}),
    ("POST", "/v1/search", lambda name: {"query": "oak", "where": [f"{name}=1"]}),
    ("POST", "/v1/search", lambda name: {"query": "oak", "allow": [name]}),
    ("POST", "/v1/search", lambda name: {"query": "oak", "heads": {"mode": name}}),
    ("POST", "/v1/explain", lambda name: {"query": "oak", "item": name}),
    ("POST", "/v1/map/query", lambda name: {"query": "oak", "model": name}),
    ("POST", "/v1/reload", lambda name: {"model": name}),
    ("DELETE", "/v1/items", lambda name: {"ids": [name]}),
]


@pytest.fixture(scope="module")
def state(served_run, tmp_path_factory):
    state = ServerState.of(Limits(max_body_kb=32_768), keys=Keys.parse([f"write: {WRITE}"]))
    state.put(ServedModel.load(served_run))
    state.updates = ItemUpdates(state.model(), tmp_path_factory.mktemp("state"), publish=state.put)
    return state


@pytest.fixture(scope="module")
def client(state):
    with TestClient(make_app(state), headers={"Authorization": f"Bearer {WRITE}"}) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_changes(state):
    before = state.model().hash
    yield
    assert state.model().hash == before


def refusal(response):
    """The sentence of a refusal, which shows nothing of the machine."""
    assert 400 <= response.status_code < 500, response.text[:300]
    error = response.json()["error"]
    assert error["message"]
    assert len(error["message"]) < 1_000
    for word in ("Traceback", "root:", "site-packages"):
        assert word not in response.text
    return error


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("method", "path", "body"), NAMES, ids=lambda value: value if isinstance(value, str) else None)
def test_a_file_is_no_name(client, method, path, body, name):
    refusal(client.request(method, path, json=body(name)))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/items/../../etc/passwd",
        "/v1/items/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/items//etc/passwd",
        "/v1/items/%00",
        "/v1/items/a%0d%0aSet-Cookie:%20x=y",
        "/v1/tree?prefix=../..",
        "/v1/tree?prefix=1-%00",
        "/v1/facets?where=/etc/passwd=1",
        "/v1/items?contains=oak&limit=nan",
        "/v1/map?points=-1",
        "/v1/quality?model=../run",
        "/docs/../../etc/passwd",
    ],
)
def test_a_path_leads_nowhere(client, path):
    response = client.get(path)
    refusal(response)
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_pickle_is_not_read(client, method, path):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    for kind in ("application/json", "application/octet-stream", "application/x-pickle"):
        refusal(client.request(method, path, content=pickle.dumps(Trap()), headers={"Content-Type": kind}))


@pytest.mark.parametrize(("method", "path", "body"), BODIES, ids=str)
def test_an_unknown_field_and_numbers_that_json_does_not_have_are_refused(client, method, path, body):
    assert refusal(client.request(method, path, json={**body, "file": "/etc/passwd"}))["field"] == "file"
    for number in ("NaN", "Infinity", "-Infinity"):
        name = next(iter(body))
        content = json.dumps({key: value for key, value in body.items() if key != name})[:-1]
        content = f'{content}{", " if len(body) > 1 else ""}"{name}": {number}}}'
        refusal(client.request(method, path, content=content, headers={"Content-Type": "application/json"}))


@pytest.mark.parametrize("value", [None, 7, 1.5, True, [], {}, [[]], "", "\x00"], ids=str)
@pytest.mark.parametrize(("method", "path", "body"), BODIES, ids=str)
def test_a_wrong_type_is_refused_in_every_field(client, method, path, body, value):
    for name in body:
        error = refusal(client.request(method, path, json={**body, name: value}))
        assert error["field"] is None or error["field"].startswith((name, "items", "history", "quer", "model"))


def test_long_texts_and_long_lists_are_refused(client):
    for body in (
        {"query": "x" * 10_000_000},
        {"queries": ["oak"] * 100_000},
        {"query": "oak", "allow": [f"item {number}" for number in range(1_000_000)]},
        {"query": "oak", "where": ["title~" + "x" * 1_000_000]},
        {"query": "oak", "fields": ["title"] * 1_000_000},
    ):
        assert refusal(client.post("/v1/search", json=body))["field"] is not None
    refusal(client.request("DELETE", "/v1/items", json={"ids": [str(number) for number in range(1_000_000)]}))
    refusal(client.put("/v1/items", json={"items": [{"id": "a", "title": "x" * 10_000_000}]}))
    large = json.dumps({"query": "x" * 40_000_000})
    assert client.post("/v1/search", content=large).status_code == 413


def test_values_of_items_that_no_column_takes_are_refused(client):
    for item in (
        {"id": "../../etc/passwd\x00"},
        {"id": "a", "title": "\x00"},
        {"id": "a", "title": {"__reduce__": ["os.system", "true"]}},
        {"id": "a", "x\x00y": "b"},
        {"id": "a\r\nSet-Cookie: x=y", "title": "a"},
    ):
        refusal(client.put("/v1/items", json={"items": [item]}))
    content = '{"items": [{"id": "a", "title": "a", "price": NaN}]}'
    refusal(client.put("/v1/items", content=content, headers={"Content-Type": "application/json"}))


def test_scripts_quotes_and_control_characters_are_shown_as_text(client):
    item = {"id": SCRIPT, "title": f"{SCRIPT}\x1b[31m\u202e", "category": ["Home", SCRIPT]}
    assert client.put("/v1/items", json={"items": [item]}).status_code == 200
    try:
        query = f"{SCRIPT} \x07 kettle"
        response = client.post("/v1/search", json={"query": query, "k": 1, "allow": [SCRIPT], "fields": ["category"]})
        (result,) = response.json()["results"]
        assert result["query"] == query
        assert result["hits"][0]["title"] == item["title"]
        assert result["hits"][0]["fields"]["category"] == item["category"]
        for path, options in (
            ("/v1/items", {"contains": "<script>"}),
            ("/v1/facets", {"where": "title~<script>"}),
            ("/v1/tree", {}),
        ):
            shown = client.get(path, params=options)
            assert shown.status_code == 200
            assert shown.headers["content-type"] == "application/json", "a browser runs nothing of it"
        explained = client.post("/v1/explain", json={"query": "kettle", "item": SCRIPT}).json()
        assert explained["explanation"]["item"] == SCRIPT
    finally:
        assert client.request("DELETE", "/v1/items", json={"ids": [SCRIPT]}).status_code == 200
