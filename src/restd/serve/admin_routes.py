"""Routes for operators: what is served, health, counters, reload."""

import asyncio
import logging
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from restd._version import __version__
from restd.data import Task
from restd.errors import ConfigError, RestdError
from restd.search import SearchOptions
from restd.search.options import Mode
from restd.serve.gate import trace_of
from restd.serve.item_fields import ItemLimits
from restd.serve.item_updates import state_folder
from restd.serve.model_state import MAIN, ModelSource, ServedModel, ServerState
from restd.serve.problems import ALWAYS, BODY, WRITING, ConflictError, InvalidError, NotReadyError, documented
from restd.serve.schema import ReloadBody, ReloadResponse
from restd.serve.search_routes import json_response

logger = logging.getLogger(__name__)


class ModelInfo(BaseModel):
    """One of the models that are served."""

    name: str
    task: str
    model_hash: str
    snapshot: str
    layout: dict[str, Any]
    items: int
    columns: list[str]
    modes: list[str]
    default_mode: str
    beams: dict[str, int] = Field(description="Prefixes kept at every level in each mode, where a request names none.")
    parts: dict[str, float]
    heads: bool
    loaded: str


class Info(ModelInfo):
    """What is served, and how."""

    version: str
    limits: dict[str, float] = Field(description="Those of `restd serve`; max_items is for one update of items.")
    models: dict[str, ModelInfo]
    writable: bool
    sequence: int | None = Field(description="Number of the last update of items; null where writing is off.")
    journal_bytes: int | None = Field(description="Size of the journal of these updates.")
    reloads: list[str]
    started: str


class Health(BaseModel):
    """Whether the service lives, or takes requests."""

    status: str


def router(state: ServerState) -> APIRouter:
    """The routes for operators."""
    routes = APIRouter()
    under_way = asyncio.Lock()

    @routes.get("/v1/info", response_model=Info, responses=documented(*ALWAYS), tags=["service"])
    async def info() -> Response:
        """What is served: model, index, columns, modes, limits."""
        updates = state.updates
        own = {name: model_info(served).model_dump() for name, served in state.models.items()}
        return json_response(
            {
                **own[MAIN],
                "version": __version__,
                "limits": {**asdict(state.limits), "max_items": ItemLimits().items},
                "models": own,
                "writable": updates is not None,
                "sequence": None if updates is None else updates.sequence,
                "journal_bytes": None if updates is None else updates.journal_bytes,
                "reloads": list(state.reloads),
                "started": _time(state.started_at),
            }
        )

    @routes.post(
        "/v1/reload",
        response_model=ReloadResponse,
        responses=documented(*ALWAYS, *BODY, *WRITING, 409),
        tags=["service"],
    )
    async def reload(request: Request, body: ReloadBody) -> Response:
        """Serve another folder that the operator listed, once it is checked; if it is bad, the old one is kept."""
        source = state.reloads.get(body.model)
        if source is None:
            raise InvalidError(
                f"There is no model {body.model!r} to reload; listed with --reload: {', '.join(state.reloads)}.",
                field="model",
            )
        if under_way.locked():
            raise ConflictError("Another reload is under way; try again when it is done.", headers={"Retry-After": "5"})
        async with under_way:
            try:
                served = await asyncio.to_thread(_exchanged, state, source, body.model)
            except Exception as error:
                state.metrics.reload("refused")
                reason = str(error) if isinstance(error, RestdError) else repr(error)
                logger.warning("The reload of %s is refused: %s", source.path, reason)
                raise InvalidError(
                    f"{body.model!r} is refused, the old model is kept: {reason}", field="model"
                ) from error
        state.metrics.reload("done")
        trace_of(request.scope).snapshot = served.hash
        return json_response({"snapshot": served.hash, "model": body.model})

    @routes.get("/livez", response_model=Health, tags=["health"])
    async def livez() -> Response:
        """Whether the process answers."""
        return json_response({"status": "alive"})

    @routes.get("/readyz", response_model=Health, responses=documented(503), tags=["health"])
    async def readyz() -> Response:
        """Whether requests are answered: not before a model is loaded, and not any more while the service stops."""
        if not state.is_ready:
            raise NotReadyError("The service is stopping." if state.is_stopping else "The model is being loaded.")
        return json_response({"status": "ready"})

    @routes.get(
        "/metrics",
        response_class=Response,
        responses=documented(*ALWAYS) | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        tags=["health"],
    )
    async def metrics() -> Response:
        """Counters in Prometheus's format."""
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def _exchanged(state: ServerState, source: ModelSource, name: str) -> ServedModel:
    """Serve another model with the item updates that were made to it, if it is of the task of the current one."""
    served, current = source.load(), state.model()
    if served.task != current.task:
        raise ConfigError(f"it is made to {served.task}, and clients expect a model to {current.task}.")
    assert state.updates is not None, "there is a write key, or this request was refused"
    return state.updates.move_to(served, state_folder(source.path, name, state.state_root))


def model_info(served: ServedModel) -> ModelInfo:
    """What clients may know of a model; no folder of this machine is in it."""
    fusion = served.retriever.fusion
    modes: list[Mode] = ["generative", "hybrid"] if served.is_fitted else ["generative"]
    return ModelInfo(
        name=served.name,
        task=served.task,
        model_hash=served.model_hash,
        snapshot=served.hash,
        layout=dict(served.layout),
        items=len(served.snapshot),
        columns=list(served.columns),
        modes=list(modes),
        default_mode=served.default_mode(),
        beams={mode: _usual_beam(mode, served.task) for mode in modes},
        parts={} if fusion is None else dict(fusion.weights),
        heads=served.retriever.heads is not None,
        loaded=_time(served.loaded_at),
    )


def _usual_beam(mode: Mode, task: Task) -> int:
    beam = SearchOptions(mode=mode).settled(task).beam
    assert beam is not None, "settled options have one"
    return beam


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
