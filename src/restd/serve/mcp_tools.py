"""Search, recommend and explain as tools of the Model Context Protocol, with the requests and limits of the service."""

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from restd._version import __version__
from restd.data import Task
from restd.errors import RestdError
from restd.serve.gate import Trace
from restd.serve.model_state import ServerState
from restd.serve.problem_handlers import validation_problem
from restd.serve.problems import InvalidError, ProblemError, TooLargeError
from restd.serve.schema import (
    ExplainBody,
    ExplanationBody,
    ModelRequest,
    RecommendBody,
    RecommendResponse,
    SearchBody,
    SearchResponse,
    request_models,
)
from restd.serve.search_routes import answer, explanation, json_text

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server
    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

logger = logging.getLogger(__name__)
_SHOWN = 40
"""Columns that a description names."""
_OTHER_TASK: Mapping[Task, tuple[str, ...]] = {"search": ("history",), "recommend": ("query",)}
"""Fields of an explanation that only models of the other task take."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as a model sees it, and what answers it."""

    name: str
    title: str
    description: str
    request: type[ModelRequest]
    response: type[BaseModel]
    hidden: tuple[str, ...]
    """Fields of the request that are not shown: there is nothing to choose."""
    run: Callable[[Trace, Any], Awaitable[dict[str, Any]]]

    def input_schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        schema = self.request.model_json_schema()
        schema["properties"] = {name: kind for name, kind in schema["properties"].items() if name not in self.hidden}
        return schema


class ToolBox:
    """The tools of one served model; which there are depends on what it was trained for.

    Arguments are checked by the same models as requests over HTTP, and searches wait in the same queue, so limits,
    deadlines and refusals are the service's.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        model, requests = state.model(), request_models(state.limits)
        searched = (
            f"The catalogue has {len(model.snapshot):,} items. Columns for `where` and `fields`: "
            f"{', '.join(model.columns[:_SHOWN])}. A condition is a column, one of = != < <= > >= ~ (contains), and a "
            "value, such as 'price<=30'; all conditions must hold."
        )
        if model.task == "search":
            first = Tool(
                "search",
                "Search the catalogue",
                "Find items of the catalogue for a text in plain words, best first: ids, titles, scores. Give `query` "
                f"for one text, or `queries` for several. {searched}",
                requests.search,
                SearchResponse,
                ("model",),
                self._search,
            )
        else:
            first = Tool(
                "recommend",
                "Recommend items",
                "Find what somebody will probably want next, best first, from the items they took so far: `history` "
                f"has their ids, the latest last; `histories` has several people's. {searched}",
                requests.recommend,
                RecommendResponse,
                ("model",),
                self._recommend,
            )
        explain = Tool(
            "explain",
            "Explain a result",
            f"Say why an item was found by `{first.name}` or not: its rank, the level of its Semantic ID at which the "
            "beam search lost it, and the beam that would have found it. Give the same options as for "
            f"`{first.name}`.",
            requests.explain,
            ExplanationBody,
            ("model", *_OTHER_TASK[model.task]),
            self._explain,
        )
        self.tools = {tool.name: tool for tool in (first, explain)}

    def listed(self) -> "list[ListedTool]":
        """The tools as the protocol lists them."""
        from mcp.types import Tool as ListedTool
        from mcp.types import ToolAnnotations

        return [
            ListedTool(
                name=tool.name,
                title=tool.title,
                description=tool.description,
                input_schema=tool.input_schema(),
                output_schema=tool.response.model_json_schema(mode="serialization"),
                annotations=ToolAnnotations(
                    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
                ),
            )
            for tool in self.tools.values()
        ]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> "CallToolResult":
        """Run a tool; whatever is wrong with the arguments is an error of the tool, with the service's sentence."""
        from mcp.types import CallToolResult, TextContent

        try:
            text = json_text(await self._answer(name, arguments))
        except (ProblemError, RestdError) as error:
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
        except Exception:
            logger.exception("The tool %s failed", name)
            failed = "The tool failed; the log of restd mcp has the reason."
            return CallToolResult(content=[TextContent(type="text", text=failed)], is_error=True)
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=json.loads(text))

    async def _answer(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        tool = self.tools.get(name)
        if tool is None:
            raise InvalidError(f"There is no tool {name[:_SHOWN]!r} here; there are: {', '.join(self.tools)}.")
        size, limit = len(json.dumps(arguments)), self._state.limits.max_body
        if size > limit:
            raise TooLargeError(
                f"The arguments have {size} bytes; at most {limit} are read. Send fewer or shorter ones."
            )
        try:
            request = tool.request.model_validate(arguments)
        except ValidationError as error:
            problems = [{**problem, "loc": ("arguments", *problem["loc"])} for problem in error.errors()]
            raise validation_problem(problems) from error
        return await tool.run(Trace(time.monotonic()), request)

    async def _search(self, trace: Trace, body: SearchBody) -> dict[str, Any]:
        return await answer(self._state, trace, body, body.texts(), task="search", name="query")

    async def _recommend(self, trace: Trace, body: RecommendBody) -> dict[str, Any]:
        return await answer(self._state, trace, body, body.users(), task="recommend", name="history")

    async def _explain(self, trace: Trace, body: ExplainBody) -> dict[str, Any]:
        return await explanation(self._state, trace, body, with_tree=False)


def make_server(box: ToolBox) -> "Server[Any]":
    """A server of the protocol with these tools, for any transport."""
    from mcp.server.lowlevel.server import Server
    from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        del context, params
        return ListToolsResult(tools=box.listed())

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        del context
        return await box.call(params.name, params.arguments or {})

    return Server(
        "restd",
        version=__version__,
        title="restd",
        instructions="Search and recommendation in one catalogue of items. Results are always items that exist.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(state: ServerState) -> None:
    """Serve the tools of a loaded model over standard input and output, until the input ends."""
    from mcp.server.stdio import stdio_server

    server = make_server(ToolBox(state))
    state.queue.start()
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await state.queue.close()
