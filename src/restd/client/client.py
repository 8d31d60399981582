"""`Client`: searches a served model as `Retriever` searches a loaded one."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from restd.client.connection import Connection, Retries, encoded
from restd.client.errors import DeadlineError, ResponseError
from restd.data import History, Query
from restd.errors import DataError
from restd.search.answers import Explanation, Hit, PartScore
from restd.search.options import SearchKeywords, SearchOptions
from restd.search.queries import as_histories

if TYPE_CHECKING:
    import httpx

Answer = TypeVar("Answer")
_SEPARATOR = 2
"""Bytes between two values of a list."""


class Client:
    """A served model, with the methods of a `Retriever`: code moves to the service by one line.

        retriever = Retriever.load(Path("better"))
        retriever = Client("http://127.0.0.1:8000")

    Options and results are the same values. As in the library, a search is generative unless `mode` says otherwise.
    A busy service (429, 503) is tried again, after the time that it names; many queries are sent in as many requests
    as the service's limits take. Whatever is refused for good is a `ServiceError` with the service's sentence. Safe for
    many threads; close it, or use it in a `with` statement.

    Args:
        url: address of the service.
        api_key: its key, where it needs one; a write key for `add` and `remove`.
        model: which of two models answers, where it serves a second one.
        timeout: seconds until a connection or an answer is given up.
        retries: how long to try while the service is busy.
        jitter: source of the random part of pauses between attempts.
        transport: what carries the requests, for tests and proxies of your own; the network unless given.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        model: Literal["main", "beside"] = "main",
        timeout: float = 30.0,
        retries: Retries | None = None,
        jitter: random.Random | None = None,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        self._connection = Connection(
            url, api_key=api_key, timeout=timeout, retries=retries, jitter=jitter, transport=transport
        )
        self._model = model
        self._limits: dict[str, float] | None = None

    def __repr__(self) -> str:
        return f"Client({self._connection.url!r})"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections to the service."""
        self._connection.close()

    def info(self) -> dict[str, Any]:
        """What is served: snapshot, task, items, columns, modes, limits, as `GET /v1/info` says it."""
        return self._connection.request("GET", "/v1/info")

    @overload
    def search(
        self,
        query: str,
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        query: list[str],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[list[Hit]]: ...
    def search(
        self,
        query: str | list[str],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit] | list[list[Hit]]:
        """Find the best items for a query, or for each of many.

        Args:
            query: a text or many.
            k: number of items to return (10).
            options: how to search.
            contributions: whether hits of a hybrid search say how their scores are made up (`Hit.parts`).
            keywords: fields of `SearchOptions`, which take precedence.
        """
        texts = [query] if isinstance(query, str) else list(query)
        body = self._options(options, k, keywords, contributions=contributions, with_seen=False)
        hits = self._ranked("/v1/search", "queries", texts, body)
        return hits[0] if isinstance(query, str) else hits

    @overload
    def recommend(
        self,
        history: History | Sequence[str],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit]: ...
    @overload
    def recommend(
        self,
        history: list[History],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[list[Hit]]: ...
    def recommend(
        self,
        history: History | Sequence[str] | list[History],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        contributions: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit] | list[list[Hit]]:
        """Find what a user will want next, or each of many.

        Args:
            history: ids of the items they took, the latest last; the service is not sent who they are.
            k: number of items to return (10).
            options: how to search; unless `seen` is set, items of the history do not come back.
            contributions: as for `search`.
            keywords: fields of `SearchOptions`, which take precedence.
        """
        histories, many = as_histories(history)
        body = self._options(options, k, keywords, contributions=contributions)
        hits = self._ranked("/v1/recommend", "histories", [list(one.items) for one in histories], body)
        return hits if many else hits[0]

    def explain(
        self,
        query: Query,
        item: str,
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Explanation:
        """Say where an item stands in the search for a query: level by level, and which beam would have kept it.

        Options are those of the search to explain. The service bounds its effort: in a large catalogue the exact rank
        and the beam needed may be None where the library finds them.
        """
        is_text = isinstance(query, str)
        body = self._options(options, k, keywords, with_seen=not is_text)
        body |= {"query": query} if isinstance(query, str) else {"history": list(query.items)}
        answer = self._connection.request("POST", "/v1/explain", {**body, "item": item})
        return self._read(lambda: Explanation.of_dict(answer["explanation"]))

    def add(self, items: Sequence[Mapping[str, Any]], *, texts: Sequence[str] | None = None) -> None:
        """Make new items findable, or replace those of the same id; they are on the service's disk when this returns.

        Each item is a mapping with an `id`. The service encodes it by the columns that its catalogue is encoded by,
        unless `texts` gives what it is found by. More items than one request takes are sent in several; each of these
        is done whole or not at all.
        """
        rows = [dict(item) for item in items]
        if texts is not None and len(texts) != len(rows):
            raise DataError(f"There are {len(texts)} texts for {len(rows)} items; expected one text per item.")
        pairs = list(zip(rows, [None] * len(rows) if texts is None else texts, strict=True))
        for batch in self._batches(pairs, "max_items", {}):
            body: dict[str, Any] = {"items": [row for row, _ in batch]}
            if texts is not None:
                body["texts"] = [text for _, text in batch]
            self._connection.request("PUT", "/v1/items", body)

    def remove(self, ids: Sequence[str]) -> None:
        """Make items unreachable; an unknown id is an error, and none of its request is removed then."""
        for batch in self._batches(list(ids), "max_items", {}):
            self._connection.request("DELETE", "/v1/items", {"ids": batch}, is_repeatable=False)

    def _options(
        self,
        options: SearchOptions | None,
        k: int | None,
        keywords: Mapping[str, Any],
        *,
        contributions: bool = False,
        with_seen: bool = True,
    ) -> dict[str, Any]:
        """The options of a request: those that are not the library's defaults, and the mode, whose default differs."""
        merged = SearchOptions.of(options, **({} if k is None else {"k": k}), **keywords)
        plain = SearchOptions()
        body: dict[str, Any] = {
            field.name: getattr(merged, field.name)
            for field in fields(SearchOptions)
            if getattr(merged, field.name) != getattr(plain, field.name)
        }
        body["mode"] = merged.mode
        for name in ("where", "allow", "deny"):
            if body.get(name) is not None:
                body[name] = [str(value) for value in body[name]]
        if merged.heads is not None:
            body["heads"] = asdict(merged.heads)
        if not with_seen:
            body.pop("seen", None)  # a text has no items that could be left out
        if contributions:
            body["contributions"] = True
        return {**body, "model": self._model}

    def _ranked(self, path: str, name: str, queries: Sequence[Any], body: Mapping[str, Any]) -> list[list[Hit]]:
        """Hits of every query, in as many requests as it takes."""
        hits: list[list[Hit]] = []
        for batch in self._batches(queries, "max_queries", body):
            answers: dict[int, list[Hit]] = {}
            while waiting := [number for number in range(len(batch)) if number not in answers]:
                answers |= self._answered(path, name, {number: batch[number] for number in waiting}, body)
            hits += [answers[number] for number in range(len(batch))]
        return hits

    def _answered(
        self, path: str, name: str, queries: Mapping[int, Any], body: Mapping[str, Any]
    ) -> dict[int, list[Hit]]:
        """Hits of the queries that were answered in time: at least one of them."""
        answer = self._connection.request("POST", path, {name: list(queries.values()), **body})

        def read() -> dict[int, list[Hit]]:
            results = zip(queries, answer["results"], strict=True)
            return {
                number: [hit_of(hit) for hit in result["hits"]]
                for number, result in results
                if not result.get("timed_out", False)
            }

        answers = self._read(read)
        if not answers:
            raise DeadlineError(
                f"None of {len(queries)} queries was answered within the service's deadline. Ask for less (a smaller "
                "beam or k), or try again later."
            )
        return answers

    def _read(self, read: Callable[[], Answer]) -> Answer:
        """What a function makes of an answer; whatever is missing in it is an error."""
        try:
            return read()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ResponseError(
                f"The answer of {self._connection.url} lacks what was expected ({error!r}). Use the same version of "
                "restd for client and service."
            ) from error

    def _batches(self, values: Sequence[Any], limit: str, body: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Values in as few requests as the service's limits allow; a single value needs no look at the limits.

        Args:
            values: queries, histories, items or ids.
            limit: name of the service's limit for how many one request takes.
            body: the rest of each request.
        """
        if len(values) <= 1:
            if values:
                yield list(values)
            return
        limits = self.info().get("limits", {}) if self._limits is None else self._limits
        self._limits = limits
        count, size = self._read(lambda: (int(limits[limit]), int(1024 * limits["max_body_kb"])))
        yield from batches(values, count, size, body)


def batches(values: Sequence[Any], count: int, size: int, body: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Values in order, at most so many in one batch, and at most so many bytes with the rest of the request.

    A single value that is larger makes a batch of its own: the service says what is wrong with it.

    >>> list(batches(["ab", "cd", "ef", "g"], 3, 100, {})), list(batches(["ab", "cd", "ef"], 3, 55, {}))
    ([['ab', 'cd', 'ef'], ['g']], [['ab', 'cd'], ['ef']])
    """
    rest = len(encoded(body)) + len('{"histories":[],"texts":[]}')
    batch: list[Any] = []
    used = rest
    for value in values:
        own = len(encoded({"": value})) + _SEPARATOR
        if batch and (len(batch) >= count or used + own > size):
            yield batch
            batch, used = [], rest
        batch.append(value)
        used += own
    if batch:
        yield batch


def hit_of(values: Mapping[str, Any]) -> Hit:
    """A result as the library has it."""
    parts = values["parts"]
    return Hit(
        values["item"],
        values["title"],
        values["score"],
        tuple(values["sid"]),
        None if parts is None else {name: PartScore(**part) for name, part in parts.items()},
    )
