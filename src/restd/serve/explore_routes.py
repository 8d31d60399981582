"""Routes of the explorer: items, the tree of the catalogue, facets, the map, quality."""

import time
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Query, Request, Response

from restd.data import History
from restd.data import Query as ModelQuery
from restd.errors import ConfigError, RestdError
from restd.search import SearchOptions
from restd.search.queries import task_of_queries
from restd.serve.catalog_items import fields_of, find_row, items_containing, neighbours_of, prefix_counts, show_items
from restd.serve.catalog_tree import parse_prefix, tree_node
from restd.serve.explore_schema import (
    FacetParameters,
    FacetsResponse,
    ItemResponse,
    ItemsParameters,
    ItemsResponse,
    MapParameters,
    MapQueryResponse,
    MapResponse,
    Parameters,
    QualityResponse,
    TreeParameters,
    TreeResponse,
)
from restd.serve.gate import trace_of
from restd.serve.item_map import AXES, ItemMap, place_query
from restd.serve.model_state import ServedModel, ServerState
from restd.serve.model_views import ModelViews, ViewsOfModels
from restd.serve.problems import ALWAYS, BODY, MODEL, DeadlineError, InvalidError, NotFoundError, documented
from restd.serve.schema import MapQueryBody, request_models
from restd.serve.search_routes import in_turn, json_response, model_of, takes
from restd.serve.search_work import sentence_of

_SHOWN = 80


def router(state: ServerState) -> APIRouter:
    """The routes of the explorer."""
    routes = APIRouter(prefix="/v1", tags=["explore"])
    explorer = _Explorer(state)
    problems = documented(*ALWAYS, *MODEL, 422)

    @routes.get("/items", response_model=ItemsResponse, responses=problems)
    async def items(request: Request, parameters: Annotated[ItemsParameters, Query()]) -> Response:
        """List items whose title or id contains a text."""
        model, _ = explorer.begin(request, parameters)
        matches = await explorer.run(
            request, lambda: items_containing(model.snapshot, parameters.contains, limit=parameters.limit)
        )
        listed = [item.to_dict() for item in matches.items]
        return json_response({"snapshot": model.hash, "items": listed, "total": matches.total})

    @routes.get("/items/{item:path}", response_model=ItemResponse, responses={**problems, **documented(404)})
    async def item(request: Request, item: str, parameters: Annotated[Parameters, Query()]) -> Response:
        """Show an item: its columns, its Semantic ID, and its neighbours in the trie."""
        model, _ = explorer.begin(request, parameters)
        return json_response(await explorer.run(request, lambda: _item(model, item)))

    @routes.get("/tree", response_model=TreeResponse, responses=problems)
    async def tree(request: Request, parameters: Annotated[TreeParameters, Query()]) -> Response:
        """Show what is below a prefix of Semantic IDs, and the words that tell its children apart."""
        model, _ = explorer.begin(request, parameters)
        return json_response(await explorer.run(request, lambda: _tree(model, parameters)))

    @routes.get("/facets", response_model=FacetsResponse, responses=problems)
    async def facets(request: Request, parameters: Annotated[FacetParameters, Query()]) -> Response:
        """Count the values of the columns, of all items or of those that meet conditions."""
        model, views = explorer.begin(request, parameters)
        listed = await explorer.run(request, lambda: _facets(views, parameters.where))
        return json_response({"snapshot": model.hash, "facets": listed})

    @routes.get("/map", response_model=MapResponse, responses=problems)
    async def item_map(request: Request, parameters: Annotated[MapParameters, Query()]) -> Response:
        """Place items on the first two principal axes of their latents."""
        model, views = explorer.begin(request, parameters)
        placed = await explorer.run(request, lambda: _map(views, parameters.points))
        return json_response({"snapshot": model.hash, **placed})

    async def map_query(request: Request, body: MapQueryBody) -> Response:
        """Place a query on the map: where the heads expect its answer, or where its own latent is."""
        query: ModelQuery = body.query if body.query is not None else History(tuple(body.history or ()))
        trace, task = trace_of(request.scope), task_of_queries([query])
        model, options = model_of(state, trace, body.model, [query], task=task), SearchOptions().settled(task)
        views = explorer.views.of(model)

        def place() -> dict[str, Any]:
            try:
                search = model.retriever.snapshot_search
                point = place_query(search, views.axes, query, options, encoder=model.retriever.encoder)
            except RestdError as error:
                return {"absent": str(error)}
            return {"x": point.x, "y": point.y, "source": point.source}

        return json_response({"snapshot": model.hash, **await in_turn(state, trace, place)})

    routes.add_api_route(
        "/map/query",
        takes(map_query, request_models(state.limits).map_query),
        methods=["POST"],
        response_model=MapQueryResponse,
        responses=documented(*ALWAYS, *BODY, *MODEL),
    )

    @routes.get("/quality", response_model=QualityResponse, responses=documented(*ALWAYS, 422, 504))
    async def quality(request: Request, parameters: Annotated[Parameters, Query()]) -> Response:
        """Show the quality of the index, and the evaluations with their protocol cards found beside the run."""
        model, views = explorer.begin(request, parameters)
        until = state.deadline(trace_of(request.scope).arrived)
        reports = await views.reports(seconds=until - time.monotonic())
        if reports is None:
            raise DeadlineError("The quality of the index is still being measured; ask again in a moment.")
        return json_response({"snapshot": model.hash, **reports})

    return routes


class _Explorer:
    """What all routes of the explorer do alike."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.views = ViewsOfModels()

    def begin(self, request: Request, parameters: Parameters) -> tuple[ServedModel, ModelViews]:
        """The model that a request is about; its trace knows the snapshot."""
        model = self.state.model(parameters.model)
        trace_of(request.scope).snapshot = model.hash
        return model, self.views.of(model)

    async def run(self, request: Request, call: Any) -> Any:
        """Call a function in the thread of the model, when its turn comes."""
        return await in_turn(self.state, trace_of(request.scope), call)


def _item(model: ServedModel, item: str) -> dict[str, Any]:
    snapshot = model.snapshot
    row = find_row(snapshot, item)
    if row is None:
        raise NotFoundError(f"There is no item {item[:_SHOWN]!r}; GET /v1/items?contains= finds ids.", field="item")
    (shown,) = show_items(snapshot, np.array([row]))
    return {
        "snapshot": model.hash,
        **shown.to_dict(),
        "fields": fields_of(snapshot, row, [name for name in model.columns if name not in ("id", "title")]),
        "new": bool(snapshot.index.item_generations[row] > model.retriever.generator.trained_on),
        "neighbours": [
            {**neighbour.shown.to_dict(), "shared_levels": neighbour.shared_levels}
            for neighbour in neighbours_of(snapshot, row)
        ],
        "prefixes": [{"prefix": list(prefix), "items": count} for prefix, count in prefix_counts(snapshot, row)],
    }


def _tree(model: ServedModel, parameters: TreeParameters) -> dict[str, Any]:
    try:
        prefix = parse_prefix(parameters.prefix, model.snapshot.index.sizes)
        node = tree_node(model.snapshot, prefix, limit=parameters.limit, examples=parameters.examples)
    except ConfigError as error:
        raise InvalidError(str(error), field="prefix") from error
    return {
        "snapshot": model.hash,
        "prefix": list(node.prefix),
        "level": node.level,
        "items": node.items,
        "children": [
            {
                "code": child.code,
                "prefix": list(child.prefix),
                "items": child.items,
                "examples": [{"item": example.item, "title": example.title} for example in child.examples],
                "words": child.words,
            }
            for child in node.children
        ],
        "hidden": node.hidden,
        "members": [{"item": member.item, "title": member.title} for member in node.members],
    }


def _facets(views: ModelViews, where: list[str]) -> list[dict[str, Any]]:
    try:
        return [facet.to_dict() for facet in views.facets.of(where)]
    except (RestdError, pa.ArrowException) as error:
        raise InvalidError(sentence_of(error), field="where") from error


def _map(views: ModelViews, points: int) -> dict[str, Any]:
    try:
        axes = views.axes
    except ConfigError as error:
        empty: dict[str, Any] = {"points": [], "items": [], "titles": [], "shares": [], "sampled": False}
        return {**empty, "axes": AXES, "absent": str(error)}
    placed = ItemMap.of(views.snapshot, axes, points=points)
    shown = show_items(views.snapshot, placed.rows)
    return {
        "points": [
            [x, y, code, row]
            for (x, y), code, row in zip(
                placed.coordinates.tolist(), placed.first_codes.tolist(), placed.rows.tolist(), strict=True
            )
        ],
        "items": [item.item for item in shown],
        "titles": [item.title for item in shown],
        "axes": AXES,
        "shares": list(axes.shares),
        "sampled": placed.sampled,
        "absent": None,
    }
