"""Requests and responses as pydantic models; the options of a search are those of `SearchOptions`, made from it."""

import re
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator

from restd.data import History
from restd.errors import ConfigError
from restd.search import HeadUse, SearchOptions
from restd.search.options import Mode
from restd.search.queries import clean_queries
from restd.serve.explore_schema import BeamTreeBody
from restd.serve.limits import Limits
from restd.snapshot import Condition

ID_CHARS = 512
"""Characters of an item's id."""
MAX_CONDITIONS = 32
MAX_COLUMNS = 64
OPTIONS = tuple(field.name for field in fields(SearchOptions))


class Strict(BaseModel):
    """A part of a request: an unknown field is refused, and so is a number in place of a text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def _with_text(query: str) -> str:
    try:
        clean_queries([query])
    except Exception as error:
        raise ValueError("expected at least one word, found no text") from error
    return query


def _readable(condition: str) -> str:
    try:
        Condition.parse(condition)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return condition


ItemId = Annotated[str, Field(min_length=1, max_length=ID_CHARS)]


class ModelRequest(Strict):
    """A request to one of the models."""

    model: Literal["main", "beside"] = Field("main", description="Which of two models answers; see --beside.")


class OptionsRequest(ModelRequest):
    """What all searches have in common; `request_models` adds the options of the search."""

    contributions: bool = Field(
        False, description="Whether each hit says what every part of a hybrid search adds to its score."
    )
    fields: Annotated[list[Annotated[str, Field(max_length=ID_CHARS)]], Field(max_length=MAX_COLUMNS)] = Field(
        [], description="Columns of the items to return with each hit."
    )

    def search_options(self, default_mode: Mode) -> SearchOptions:
        """The options of the search; what the request leaves out keeps its default.

        Args:
            default_mode: how the model searches where the request says nothing.
        """
        values = {name: getattr(self, name) for name in OPTIONS if name in self.model_fields_set}
        if values.get("mode") is None:
            values["mode"] = default_mode
        if values.get("heads") is not None:
            values["heads"] = HeadUse(**values["heads"].model_dump())
        return SearchOptions.of(**values)


class SearchBody(OptionsRequest):
    """Texts to search for."""

    query: str | None = None
    queries: list[str] | None = None

    def texts(self) -> list[str]:
        """The queries, however many there are."""
        return [self.query] if self.query is not None else list(self.queries or ())

    @model_validator(mode="after")
    def _has_one(self) -> "SearchBody":
        return _one_of(self, "query", "queries")


class RecommendBody(OptionsRequest):
    """Histories to continue."""

    history: list[str] | None = None
    histories: list[list[str]] | None = None

    def users(self) -> list[History]:
        """The histories, however many there are."""
        lists = [self.history] if self.history is not None else list(self.histories or ())
        return [History(tuple(items)) for items in lists]

    @model_validator(mode="after")
    def _has_one(self) -> "RecommendBody":
        return _one_of(self, "history", "histories")


class ExplainBody(OptionsRequest):
    """One query or history, and the item to follow."""

    query: str | None = None
    history: list[str] | None = None
    item: str = ""

    @model_validator(mode="after")
    def _has_one(self) -> "ExplainBody":
        return _one_of(self, "query", "history")


class MapQueryBody(ModelRequest):
    """One query or history to place on the map."""

    query: str | None = None
    history: list[str] | None = None

    @model_validator(mode="after")
    def _has_one(self) -> "MapQueryBody":
        return _one_of(self, "query", "history")


class ReloadBody(Strict):
    """Which of the folders that the operator listed to serve."""

    model: Annotated[str, Field(min_length=1, max_length=ID_CHARS)] = Field(
        description="A name of `restd serve --reload NAME=FOLDER`, or `main` for the folder the service began with."
    )


Body = TypeVar("Body", bound=BaseModel)


def _one_of(body: Body, first: str, second: str) -> Body:
    if (getattr(body, first) is None) == (getattr(body, second) is None):
        raise ValueError(f"expected either {first!r} or {second!r}, and not both")
    return body


@dataclass(frozen=True, slots=True)
class RequestModels:
    """Models of the requests with this service's limits in them, so that the OpenAPI document states them."""

    search: type[SearchBody]
    recommend: type[RecommendBody]
    explain: type[ExplainBody]
    map_query: type[MapQueryBody]


def request_models(limits: Limits) -> RequestModels:
    """Make the models of the requests.

    >>> models = request_models(Limits(max_k=50))
    >>> models.search.model_validate({"query": "kettle", "k": 5}).search_options("generative").k
    5
    >>> models.search.model_json_schema()["properties"]["k"]["maximum"]
    50
    """
    query: Any = Annotated[str, Field(min_length=1, max_length=limits.max_query_chars), AfterValidator(_with_text)]
    history: Any = Annotated[list[ItemId], Field(min_length=1, max_length=limits.max_history)]
    options = option_fields(limits)
    searching = {name: option for name, option in options.items() if name != "seen"}
    a_query: Any = (query | None, Field(None, description="A text to search for."))
    a_history: Any = (history | None, Field(None, description="Ids of the items of a user so far, the latest last."))
    return RequestModels(
        search=create_model(
            "SearchRequest",
            __base__=SearchBody,
            query=a_query,
            queries=(_many(query, limits), Field(None, description="Many texts, answered in order.")),
            **searching,
        ),
        recommend=create_model(
            "RecommendRequest",
            __base__=RecommendBody,
            history=a_history,
            histories=(_many(history, limits), Field(None, description="Many histories, answered in order.")),
            **options,
        ),
        explain=create_model(
            "ExplainRequest",
            __base__=ExplainBody,
            query=a_query,
            history=a_history,
            item=(ItemId, Field(description="Id of the item to follow.")),
            **options,
        ),
        map_query=create_model("MapQueryRequest", __base__=MapQueryBody, query=a_query, history=a_history),
    )


def option_fields(limits: Limits) -> dict[str, Any]:
    """The fields of `SearchOptions` as a request has them: names, types, defaults, descriptions, and limits."""
    condition: Any = Annotated[str, Field(max_length=limits.max_query_chars), AfterValidator(_readable)]
    ids: Any = Annotated[list[ItemId], Field(max_length=limits.max_filter_items)]
    narrowed: dict[str, Any] = {
        "k": Annotated[int, Field(ge=1, le=limits.max_k)],
        "beam": _or_none(Annotated[int, Field(ge=1, le=limits.max_beam)]),
        "where": Annotated[list[condition], Field(max_length=MAX_CONDITIONS)],
        "allow": ids | None,
        "deny": ids,
        "category_width": Annotated[int, Field(ge=0, le=limits.max_filter_items)],
        "mode": Mode | None,  # unset, what the model was fitted for
        "heads": _or_none(heads_model(limits)),
    }
    types, descriptions = get_type_hints(SearchOptions), argument_descriptions(SearchOptions)
    defaults = {"where": [], "deny": [], "mode": None}
    return {
        field.name: (
            narrowed.get(field.name, types[field.name]),
            Field(defaults.get(field.name, field.default), description=descriptions[field.name]),
        )
        for field in fields(SearchOptions)
    }


def heads_model(limits: Limits) -> type[Strict]:
    """`HeadUse` as a part of a request."""
    types, descriptions = get_type_hints(HeadUse), argument_descriptions(HeadUse)
    narrowed: dict[str, Any] = {
        "weight": Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)],
        "extra_candidates": Annotated[int, Field(ge=0, le=limits.max_filter_items)],
    }
    made: dict[str, Any] = {
        field.name: (
            narrowed.get(field.name, types[field.name]),
            Field(field.default, description=descriptions[field.name]),
        )
        for field in fields(HeadUse)
    }
    return create_model("HeadUse", __base__=Strict, **made)


def _or_none(kind: Any) -> Any:
    return kind | None


def _many(kind: Any, limits: Limits) -> Any:
    items: Any = list[kind]
    return _or_none(Annotated[items, Field(min_length=1, max_length=limits.max_queries)])


def argument_descriptions(kind: type) -> dict[str, str]:
    """What the docstring of a class says of each argument.

    >>> argument_descriptions(SearchOptions)["deny"]
    'none of these items, by id.'
    """
    _, _, arguments = (kind.__doc__ or "").partition("Args:")
    parts = re.findall(r"\n        (\w+): (.*(?:\n            .*)*)", arguments)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in parts}


class PartScore(BaseModel):
    """What one part of a hybrid search adds to the score of a hit."""

    score: float | None = Field(description="As the part itself scores the item; null where it cannot.")
    scaled: float = Field(description="Scaled to 0..1 among the candidates of the query.")
    weight: float
    share: float = Field(description="Weight times scaled score.")


class HitBody(BaseModel):
    """One result."""

    item: str
    title: str
    score: float
    sid: list[int]
    fields: dict[str, Any] = Field(description="The columns that the request names.")
    parts: dict[str, PartScore] | None = Field(description="Contributions, where the request wants them.")


class SearchResult(BaseModel):
    """Results of one query."""

    query: str
    hits: list[HitBody]
    partial: bool = Field(description="Fewer than k items: a filter leaves fewer, or the deadline cut the answer.")
    timed_out: bool = Field(description="The deadline came before this query's turn; ask again.")


class RecommendResult(BaseModel):
    """Results of one history."""

    history: list[str]
    hits: list[HitBody]
    partial: bool = Field(description="Fewer than k items: a filter leaves fewer, or the deadline cut the answer.")
    timed_out: bool = Field(description="The deadline came before this history's turn; ask again.")


class _Response(BaseModel):
    snapshot: str = Field(description="Hash of the snapshot that answered.")
    model: str
    mode: Mode
    task: Literal["search", "recommend"]


class SearchResponse(_Response):
    """Results of every query, in the order of the request."""

    results: list[SearchResult]


class RecommendResponse(_Response):
    """Results of every history, in the order of the request."""

    results: list[RecommendResult]


class ExplanationBody(BaseModel):
    """What became of an item in a search, without the beam's tree."""

    snapshot: str
    sentence: str = Field(description="The gist.")
    explanation: dict[str, Any] = Field(description="Level by level, where the item stood.")
    parts: dict[str, PartScore] | None = Field(description="Contributions to the item's score in a hybrid search.")


class ExplainResponse(ExplanationBody):
    """What became of an item in a search."""

    tree: BeamTreeBody = Field(description="What the beam kept and pruned.")


class ReloadResponse(BaseModel):
    """What is served now."""

    snapshot: str
    model: str
