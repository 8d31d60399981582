"""The application: all routes, behind one gate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from restd._version import __version__
from restd.errors import MissingExtraError
from restd.serve.model_state import ServerState

if TYPE_CHECKING:
    from fastapi import FastAPI


def make_app(state: ServerState) -> "FastAPI":
    """Make the application that serves a state; models may be put into the state before or after it starts."""
    try:
        from fastapi import FastAPI
        from fastapi.middleware.cors import CORSMiddleware
    except ImportError as error:
        raise MissingExtraError("fastapi", extra="serve", purpose="restd serve") from error
    from restd.serve import (
        admin_routes,
        docs_page,
        explore_routes,
        item_routes,
        page_routes,
        problem_handlers,
        search_routes,
    )
    from restd.serve.gate import Gate

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.queue.start()
        try:
            yield
        finally:
            await state.queue.close()
            if state.updates is not None:
                state.updates.close()

    app = FastAPI(
        title="restd",
        version=__version__,
        description="Search and recommendation with Semantic IDs. Where the service has keys, send the header "
        "`Authorization: Bearer KEY`.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    for routes in (search_routes, item_routes, explore_routes, admin_routes, docs_page, page_routes):
        app.include_router(routes.router(state))
    problem_handlers.install(app)
    app.add_middleware(Gate, state=state)
    if state.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(state.cors),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["X-Restd-Snapshot", "X-Restd-Queue-Ms", "X-Restd-Compute-Ms", "Retry-After"],
        )
    return app
