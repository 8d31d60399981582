"""Routes that change items: PUT and DELETE /v1/items."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, WithJsonSchema

from restd.serve.gate import Trace, trace_of
from restd.serve.item_fields import ItemLimits
from restd.serve.item_updates import ItemUpdate, ItemUpdates
from restd.serve.model_state import ServerState
from restd.serve.problems import ALWAYS, BODY, ForbiddenError, OverloadedError, documented
from restd.serve.schema import ID_CHARS, ItemId, Strict
from restd.serve.search_routes import json_response

_WAITING = 16
"""Batches that may wait for the one before them; more are refused."""
_LIMITS = ItemLimits()
_ITEM_SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "string", "minLength": 1, "maxLength": ID_CHARS}},
    "additionalProperties": {
        "anyOf": [
            {"type": ["string", "number", "boolean", "null"]},
            {"type": "array", "items": {"type": "string"}, "maxItems": _LIMITS.list_values},
        ]
    },
}


class PutBody(Strict):
    """Items to add, or to replace where one of the same id is there."""

    items: Annotated[
        list[Annotated[dict[str, Any], WithJsonSchema(_ITEM_SCHEMA)]], Field(min_length=1, max_length=_LIMITS.items)
    ] = Field(description="Each an object with an `id`; its other fields are columns: texts, numbers, lists of texts.")
    texts: Annotated[list[str], Field(max_length=_LIMITS.items)] | None = Field(
        None, description="What each item is found by; by default the columns that the catalogue's items are found by."
    )


class DeleteBody(Strict):
    """Items to remove."""

    ids: Annotated[list[ItemId], Field(min_length=1, max_length=_LIMITS.items)] = Field(
        description="Ids of items; if one of them is unknown, none is removed."
    )


class PutResponse(BaseModel):
    """What a batch changed."""

    snapshot: str = Field(description="Hash of what is searched from now on.")
    added: int = Field(description="Items that are new.")
    replaced: int = Field(description="Items that took the place of one with the same id.")
    sequence: int = Field(description="Number of the update.")


class DeleteResponse(BaseModel):
    """What a batch removed."""

    snapshot: str = Field(description="Hash of what is searched from now on.")
    removed: int = Field(description="Items that are gone.")
    sequence: int = Field(description="Number of the update.")


def router(state: ServerState) -> APIRouter:
    """The routes that change items."""
    routes, writer = APIRouter(prefix="/v1", tags=["items"]), _Writer(state)
    problems = documented(*ALWAYS, *BODY, 429, 507)

    @routes.put("/items", response_model=PutResponse, responses=problems)
    async def put_items(request: Request, body: PutBody) -> Response:
        """Add or replace items: all of them or none, on disk before the answer, found by the next search."""
        update = await writer.run(trace_of(request.scope), lambda updates: updates.put(body.items, body.texts))
        return _answer(update, PutResponse)

    @routes.delete("/items", response_model=DeleteResponse, responses=problems | documented(404))
    async def delete_items(request: Request, body: DeleteBody) -> Response:
        """Remove items: all of them or none, on disk before the answer."""
        update = await writer.run(trace_of(request.scope), lambda updates: updates.delete(body.ids))
        return _answer(update, DeleteResponse)

    return routes


class _Writer:
    """One thread for updates, which is not the model's: searches go on while items are encoded."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="restd-items")
        self._waiting = 0

    async def run(self, trace: Trace, work: Callable[[ItemUpdates], ItemUpdate]) -> ItemUpdate:
        """Make one update once those before it are done."""
        updates = self._state.updates
        if updates is None:
            raise ForbiddenError("The items cannot be changed: the service was started without a write key.")
        if self._waiting >= _WAITING:
            raise OverloadedError(
                f"{self._waiting} updates are waiting already; send more items per request, or try again later.",
                headers={"Retry-After": "1"},
            )
        self._waiting += 1
        try:
            update = await asyncio.get_running_loop().run_in_executor(self._thread, work, updates)
        finally:
            self._waiting -= 1
        trace.snapshot = update.snapshot
        return update


def _answer(update: ItemUpdate, model: type[BaseModel]) -> Response:
    return json_response({name: value for name, value in asdict(update).items() if name in model.model_fields})
