"""Routes that ask the model: search, recommend, explain."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar, cast

import pyarrow as pa
from fastapi import APIRouter, Request, Response

from restd.data import Query, Task
from restd.errors import RestdError
from restd.search import PartScore, SearchOptions
from restd.serve.batching import Answers
from restd.serve.gate import Trace, trace_of
from restd.serve.model_state import ServedModel, ServerState
from restd.serve.problems import ALWAYS, BODY, MODEL, InvalidError, documented
from restd.serve.schema import (
    ExplainBody,
    ExplainResponse,
    ModelRequest,
    OptionsRequest,
    RecommendBody,
    RecommendResponse,
    SearchBody,
    SearchResponse,
    request_models,
)
from restd.serve.search_work import QueryAnswer, SearchWork, blamed

Route = TypeVar("Route", bound=Callable[..., Any])
Answer = TypeVar("Answer")
_EFFORT, _EXPLAINING = 50_000, 8
"""Prefixes that explaining may decode, to rank an item exactly or to look for the beam that it needs; and how many
queries it counts as, since it keeps the model for about a second."""


def router(state: ServerState) -> APIRouter:
    """The routes that ask the model."""
    routes, models = APIRouter(prefix="/v1", tags=["search"]), request_models(state.limits)
    problems = documented(*ALWAYS, *BODY, *MODEL)

    async def search(request: Request, body: SearchBody) -> Response:
        """Find the best items for a query, or for each of many."""
        trace = trace_of(request.scope)
        return json_response(await answer(state, trace, body, body.texts(), task="search", name="query"))

    async def recommend(request: Request, body: RecommendBody) -> Response:
        """Find what a user will want next, or each of many."""
        trace = trace_of(request.scope)
        return json_response(await answer(state, trace, body, body.users(), task="recommend", name="history"))

    async def explain(request: Request, body: ExplainBody) -> Response:
        """Say where an item stands in the search for a query, level by level, and which beam would have kept it."""
        return json_response(await explanation(state, trace_of(request.scope), body))

    for endpoint, model, response in (
        (search, models.search, SearchResponse),
        (recommend, models.recommend, RecommendResponse),
        (explain, models.explain, ExplainResponse),
    ):
        routes.add_api_route(
            f"/{endpoint.__name__}",
            takes(endpoint, model),
            methods=["POST"],
            response_model=response,
            responses=problems,
            summary=endpoint.__name__.capitalize(),
        )
    return routes


def takes(endpoint: Route, model: type[ModelRequest]) -> Route:
    """Give a route's `body` the model that was made for the limits of this service."""
    endpoint.__annotations__["body"] = model
    return endpoint


def json_response(content: Any) -> Response:
    """A response of plain values; it is not validated again."""
    return Response(json_text(content).encode(), media_type="application/json")


def json_text(content: Any) -> str:
    """Plain values as JSON; numbers that JSON does not have become null."""
    try:
        return json.dumps(content, allow_nan=False, ensure_ascii=False, default=str)
    except ValueError:
        return json.dumps(_finite(content), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, (list, tuple)) else value


def prepared(
    state: ServerState, trace: Trace, body: OptionsRequest, queries: Sequence[Query], *, task: Task
) -> tuple[ServedModel, SearchOptions]:
    """The model that answers a request and the options of the search."""
    model = model_of(state, trace, body.model, queries, task=task)
    options = body.search_options(model.default_mode(getattr(body, "heads", None)))
    _refuse_impossible(model, body, options)
    return model, options.settled(task, seen=task == "search")


def model_of(state: ServerState, trace: Trace, name: str, queries: Sequence[Query], *, task: Task) -> ServedModel:
    """The model that answers these queries; the trace knows it and them."""
    model = state.model(name)
    trace.snapshot, trace.queries = model.hash, len(queries)
    if state.log is not None and state.log.with_queries:
        trace.texts = [str(query) for query in queries]
    if model.task != task:
        other = {"search": "POST /v1/recommend with a history", "recommend": "POST /v1/search with a query"}[task]
        raise InvalidError(f"This model does not {task}; use {other}.", field="model")
    return model


def _refuse_impossible(model: ServedModel, body: OptionsRequest, options: SearchOptions) -> None:
    if options.mode == "hybrid" and not model.is_fitted:
        raise InvalidError(
            "The model has no fitted hybrid search; use mode 'generative', or run restd fit.", field="mode"
        )
    if options.heads is not None and options.mode == "hybrid":
        raise InvalidError(
            "Heads are an option of mode 'generative'; leave 'heads' out, or set the mode.", field="heads"
        )
    if options.seen is False and model.task == "search":
        raise InvalidError("A text has no items that could be left out; leave 'seen' unset.", field="seen")
    if options.heads is not None and model.retriever.heads is None:
        raise InvalidError("The model has no saved horizon heads; leave 'heads' out.", field="heads")
    conditions = ("where", [_column(str(condition)) for condition in options.where])
    for field, names in (("fields", body.fields), conditions):
        unknown = [name for name in names if name not in model.columns]
        if unknown:
            raise InvalidError(
                f"There is no column {unknown[0]!r}; there are: {', '.join(model.columns)}.", field=field
            )


def _column(condition: str) -> str:
    from restd.snapshot import Condition

    return Condition.parse(condition).column


async def in_turn(state: ServerState, trace: Trace, call: Callable[[], Answer], *, cost: int = 1) -> Answer:
    """What a function returns that needs the model: called in the worker thread when its turn comes.

    Args:
        state: whose queue it is.
        trace: of the request; it has the times afterwards.
        call: the function.
        cost: how many queries it counts as.
    """
    answers = await state.queue.run_timed(call, deadline=state.deadline(trace.arrived), cost=cost)
    trace.queue_ms, trace.compute_ms = answers.queue_ms, answers.compute_ms
    return cast("Answer", answers.answers[0])


async def answer(
    state: ServerState, trace: Trace, body: OptionsRequest, queries: Sequence[Query], *, task: Task, name: str
) -> dict[str, Any]:
    """Hits of every query, as a `SearchResponse` or a `RecommendResponse` has them.

    Args:
        state: what is served.
        trace: of the request.
        body: how to search.
        queries: what for.
        task: what these queries want.
        name: what a query is called in the answer.
    """
    model, options = prepared(state, trace, body, queries, task=task)
    work = SearchWork(model, options, tuple(body.fields), body.contributions)
    answers: Answers[QueryAnswer] = await state.queue.submit(work, queries, deadline=state.deadline(trace.arrived))
    trace.queue_ms, trace.compute_ms = answers.queue_ms, answers.compute_ms
    expected = min(options.k, len(model.snapshot))
    results = [
        {name: query if isinstance(query, str) else list(query.items), **_result(own, expected)}
        for query, own in zip(queries, answers.answers, strict=True)
    ]
    return {"snapshot": model.hash, "model": body.model, "mode": options.mode, "task": task, "results": results}


def _result(answer: QueryAnswer | None, expected: int) -> dict[str, Any]:
    if answer is None:
        return {"hits": [], "partial": True, "timed_out": True}
    hits = [
        {
            "item": hit.item,
            "title": hit.title,
            "score": hit.score,
            "sid": list(hit.sid),
            "fields": columns,
            "parts": None if hit.parts is None else parts_body(hit.parts),
        }
        for hit, columns in zip(answer.hits, answer.fields, strict=True)
    ]
    return {"hits": hits, "partial": len(hits) < expected, "timed_out": False}


def parts_body(parts: Mapping[str, PartScore]) -> dict[str, dict[str, Any]]:
    """What each part of a hybrid search adds to a score, as plain values."""
    return {name: asdict(part) for name, part in parts.items()}


async def explanation(state: ServerState, trace: Trace, body: ExplainBody, *, with_tree: bool = True) -> dict[str, Any]:
    """Where an item stands in a search, as an `ExplainResponse` has it; without the tree, as an `ExplanationBody`."""
    from restd.data import History

    query: Query = body.query if body.query is not None else History(tuple(body.history or ()))
    task: Task = "search" if isinstance(query, str) else "recommend"
    model, options = prepared(state, trace, body, [query], task=task)

    def follow() -> dict[str, Any]:
        try:
            followed = model.retriever.explain(query, body.item, options=options, effort=_EFFORT)
            tree = model.retriever.beam_tree(query, body.item, options=options) if with_tree else None
        except (RestdError, pa.ArrowException) as error:
            raise blamed(error, model, options, [query], item=body.item) from error
        return {
            "snapshot": model.hash,
            "sentence": followed.sentence(),
            "explanation": followed.to_dict(),
            "parts": None if followed.parts is None else parts_body(followed.parts),
            **({} if tree is None else {"tree": tree.to_dict()}),
        }

    return await in_turn(state, trace, follow, cost=min(_EXPLAINING, state.limits.queue))
