"""Parameters and responses of the explorer's routes as pydantic models."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_POINTS = 20_000
MAX_CHILDREN = 256
_TEXT = 200


class Parameters(BaseModel):
    """What follows the question mark of an address; an unknown name is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: Literal["main", "beside"] = Field("main", description="Which of two models; see --beside.")


class ItemsParameters(Parameters):
    """Which items to list."""

    contains: str = Field(min_length=1, max_length=_TEXT, description="A text in the title or the id, in any case.")
    limit: int = Field(20, ge=1, le=200, description="Items to list.")


class TreeParameters(Parameters):
    """Which node of the tree."""

    prefix: str = Field("", max_length=_TEXT, description="Codes joined by hyphens, such as 12-7; empty for the root.")
    limit: int = Field(64, ge=1, le=MAX_CHILDREN, description="Children, or members of a leaf, to list.")
    examples: int = Field(3, ge=0, le=10, description="Items to show of each child.")


class FacetParameters(Parameters):
    """Which items to count."""

    where: Annotated[list[Annotated[str, Field(max_length=2_000)]], Field(max_length=32)] = Field(
        [], description="Conditions such as price<=30; all must hold."
    )


class MapParameters(Parameters):
    """How much of the map."""

    points: int = Field(5_000, ge=1, le=MAX_POINTS, description="Items to place at most.")


class ListedItem(BaseModel):
    """An item as lists show it."""

    item: str
    title: str
    sid: list[int]


class ItemsResponse(BaseModel):
    """Items that contain a text."""

    snapshot: str
    items: list[ListedItem]
    total: int = Field(description="How many there are, listed or not.")


class NeighbourBody(ListedItem):
    """An item that shares the beginning of the Semantic ID."""

    shared_levels: int


class PrefixCount(BaseModel):
    """A beginning of the Semantic ID."""

    prefix: list[int]
    items: int = Field(description="Items that share it.")


class ItemResponse(ListedItem):
    """All that is known of an item."""

    snapshot: str
    fields: dict[str, Any]
    new: bool = Field(description="Whether it came after the model was trained.")
    neighbours: list[NeighbourBody]
    prefixes: list[PrefixCount]


class NamedItem(BaseModel):
    """An item by id and title."""

    item: str
    title: str


class ChildBody(BaseModel):
    """One way on from a prefix."""

    code: int
    prefix: list[int]
    items: int
    examples: list[NamedItem]
    words: list[str] = Field(description="Words of its titles that tell it from its siblings.")


class TreeResponse(BaseModel):
    """What is below a prefix."""

    snapshot: str
    prefix: list[int]
    level: int
    items: int
    children: list[ChildBody] = Field(description="Largest first; none at a leaf.")
    hidden: int = Field(description="Children, or members of a leaf, that are not listed.")
    members: list[NamedItem] = Field(description="Items of a leaf.")


class ValueCount(BaseModel):
    """A value and how many items have it."""

    value: str
    count: int


class ValueFacetBody(BaseModel):
    """Values of a column of texts, or category paths with all their beginnings."""

    column: str
    kind: Literal["text", "path"]
    values: list[ValueCount]
    more: int
    missing: int


class NumberFacetBody(BaseModel):
    """Range of a column of numbers; quantiles from 0 to 100 % in steps of ten."""

    column: str
    kind: Literal["number"]
    min: float
    max: float
    quantiles: list[float]
    missing: int


class FacetsResponse(BaseModel):
    """What the columns offer for filtering."""

    snapshot: str
    facets: list[ValueFacetBody | NumberFacetBody]


class MapResponse(BaseModel):
    """Items as points."""

    snapshot: str
    points: list[Annotated[list[float], Field(min_length=4, max_length=4)]] = Field(
        description="x, y, first code, row of the item."
    )
    items: list[str] = Field(description="Id of each point's item.")
    titles: list[str]
    axes: str
    shares: list[float] = Field(description="Of the latents' variance, along each axis.")
    sampled: bool = Field(description="Whether there are more items than points.")
    absent: str | None = Field(description="Why there is no map, where there is none.")


class MapQueryResponse(BaseModel):
    """Where a query is on the map, or why it is not."""

    snapshot: str
    x: float | None = None
    y: float | None = None
    source: str | None = Field(None, description="How the point was found.")
    absent: str | None = Field(None, description="Why there is no point.")


class QualityResponse(BaseModel):
    """Quality of the index, and evaluations found beside the run."""

    snapshot: str
    quality: dict[str, Any] = Field(description="As quality.json has it.")
    quality_source: str = Field(description="quality.json, or measured by the service.")
    evaluations: list[dict[str, Any]] = Field(description="Name, folder, protocol card and averages of each.")
    fit: dict[str, Any] | None = Field(description="What fitting the hybrid search measured.")
    summary: dict[str, Any] | None = Field(description="Figures of restd quickstart.")


class BeamNodeBody(BaseModel):
    """A prefix that the beam considered."""

    id: int
    parent: int | None
    prefix: list[int]
    code: int
    score: float
    kept: bool
    rank: int
    on_path: bool
    items: int
    example: str


class BeamLevelBody(BaseModel):
    """One level of the beam."""

    level: int
    candidates: int
    survivors: int
    edge: float
    nodes: list[BeamNodeBody]
    survivors_hidden: int
    pruned_hidden: int


class BeamTreeBody(BaseModel):
    """The beam, level by level."""

    levels: list[BeamLevelBody]
    beam: int
