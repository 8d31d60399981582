"""The explorer's files: what is served, with which headers, and what they may not contain."""

import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from restd.serve import page_routes
from restd.serve.app import make_app
from restd.serve.keys import Keys
from restd.serve.model_state import ServerState
from restd.serve.page_routes import FILES, INDEX, page_file

FOLDER = Path(page_routes.__file__).parent / "page"


@pytest.fixture(scope="module")
def client():
    """Of a service with keys, and without a model so far."""
    state = ServerState.of(keys=Keys.parse(["read: " + "r" * 16]))
    with TestClient(make_app(state)) as client:
        yield client


def address(name):
    return "/" if name == INDEX else f"/page/{name}"


def test_all_files_of_the_folder_are_served_and_no_others(client):
    assert sorted(FILES) == sorted(path.name for path in FOLDER.iterdir())
    for name in FILES:
        response = client.get(address(name))
        assert (response.status_code, response.content) == (200, (FOLDER / name).read_bytes()), name


def test_the_page_needs_neither_a_key_nor_a_model(client):
    assert client.get("/v1/info").status_code == 503
    assert "ResTD explorer" in client.get("/").text


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/%2e%2e%2fapp.py", "/page//etc/passwd", "/page/keys.py"],
)
def test_a_path_of_a_client_is_never_opened(client, path):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", FILES)
def test_every_file_has_its_type_and_is_safe_to_show(client, name):
    headers = client.get(address(name)).headers
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert headers["content-type"].split(";")[0] == kinds[name.rpartition(".")[2]]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]


def test_a_file_that_is_known_is_not_sent_again(client):
    first = client.get("/page/main.js")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = client.get("/page/main.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get("/page/main.js", headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.get("/page/api.js").headers["etag"] != tag
    head = client.head("/")
    assert (head.status_code, head.content) == (200, b"")


def test_the_page_is_no_part_of_the_interface(client):
    assert not [path for path in client.get("/openapi.json").json()["paths"] if "page" in path or path == "/"]
    assert client.post("/").status_code == 405


@pytest.mark.parametrize("name", FILES)
def test_files_are_small_and_name_no_other_host(name):
    text = page_file(name).decode()
    assert len(text.splitlines()) <= 400
    assert set(re.findall(r"https?://[^\"' >]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"(src|href)=\"//", text)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts_build_no_markup_from_text(name):
    text = page_file(name).decode()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in text
    imported = re.findall(r"from \"\./([\w.]+)\"", text)
    assert set(imported) <= set(FILES)


def test_the_page_has_no_inline_script_or_style():
    text = page_file(INDEX).decode()
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [""]
    assert "<style" not in text
    assert not re.search(r"\s(on\w+|style)=", text)
