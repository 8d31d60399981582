"""`/`: the explorer, a web page that needs no other host. Its files are in this package, in `page/`."""

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from restd.serve.model_state import ServerState

INDEX = "index.html"
FILES = (
    INDEX,
    "api.js",
    "app.js",
    "base.css",
    "beam.css",
    "beam_nodes.js",
    "beam_tree.js",
    "catalogue.css",
    "catalogue_view.js",
    "compare.css",
    "compare_view.js",
    "dom.js",
    "facets.css",
    "facets.js",
    "header.css",
    "icon.svg",
    "item_dialog.js",
    "item_picker.js",
    "key_dialog.js",
    "main.js",
    "map.css",
    "map_canvas.js",
    "map_view.js",
    "parts.js",
    "pieces.css",
    "query.css",
    "query_bar.js",
    "report.css",
    "report_view.js",
    "results.js",
    "search.css",
    "search_view.js",
    "settings.js",
    "state.js",
    "theme.js",
    "why.css",
    "why_view.js",
)
"""All files there are: each has a route of its own, and no path from a client is ever opened."""
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, and asked for again by its tag: a new release is seen at once
}


def router(state: ServerState) -> APIRouter:
    """The page and its files; they hold no data, so they need neither a key nor a model."""
    del state
    routes = APIRouter(include_in_schema=False)
    for name in FILES:
        _add(routes, "/" if name == INDEX else f"/page/{name}", name)
    return routes


def _add(routes: APIRouter, address: str, name: str) -> None:
    content = page_file(name)
    headers = {**_HEADERS, "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
    kind = _TYPES[name.rpartition(".")[2]]

    async def send(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if headers["ETag"] in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    routes.add_api_route(address, send, methods=["GET", "HEAD"], name=name)


def page_file(name: str) -> bytes:
    """The bytes of one of the page's files."""
    return files("restd.serve").joinpath("page", name).read_bytes()
