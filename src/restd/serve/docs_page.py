"""`/docs`: the endpoints as one small page that needs no other host, made from the OpenAPI document."""

from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from restd.serve.model_state import ServerState

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "code{font-size:.9em}table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;"
    "border-bottom:1px solid #8884;vertical-align:top}summary{cursor:pointer}"
)


def router(state: ServerState) -> APIRouter:
    """The page; it is the same for every state."""
    del state
    routes = APIRouter()

    @routes.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(docs_page(request.app.openapi()), headers=headers)

    return routes


def docs_page(document: dict[str, Any]) -> str:
    """All endpoints of an OpenAPI document with their fields.

    >>> "GET <code>/livez</code>" in docs_page({"paths": {"/livez": {"get": {"summary": "Livez"}}}})
    True
    """
    schemas = document.get("components", {}).get("schemas", {})
    sections = [
        _section(method, path, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>restd: endpoints</title><style>{_STYLE}</style>'
        '<meta name="viewport" content="width=device-width"><h1>Endpoints</h1>'
        f'<p>The same for programs: <a href="/openapi.json">openapi.json</a>.</p>{"".join(sections)}</html>'
    )


def _section(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    statuses = ", ".join(operation.get("responses", {}))
    text = escape(operation.get("description", ""))
    fields = "".join(_row(*field) for field in _fields(operation, schemas))
    table = f"<details><summary>Fields</summary><table>{fields}</table></details>" if fields else ""
    title = f"<h2>{method.upper()} <code>{escape(path)}</code></h2>"
    return f"{title}<p>{text}</p>{table}<p><small>Answers: {statuses}</small></p>"


def _fields(operation: dict[str, Any], schemas: dict[str, Any]) -> list[tuple[str, Any, str]]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    properties = schemas.get(body.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
    fields = [(name, entry.get("default"), entry.get("description", "")) for name, entry in properties.items()]
    return fields + [
        (entry["name"], entry.get("schema", {}).get("default"), entry.get("description", ""))
        for entry in operation.get("parameters", ())
    ]


def _row(name: str, default: Any, description: str) -> str:
    return f"<tr><th><code>{escape(name)}</code></th><td>{escape(str(default))}</td><td>{escape(description)}</td></tr>"
