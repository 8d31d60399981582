"""Every error of a request becomes a problem with a sentence, whoever found it."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from restd.errors import RestdError
from restd.serve.problems import (
    InvalidError,
    MalformedError,
    MethodError,
    NotFoundError,
    ProblemError,
)

_SHOWN, _BEGINNING = 80, 32


def install(app: FastAPI) -> None:
    """Answer errors with problems."""

    @app.exception_handler(ProblemError)
    async def _problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, ProblemError)
        return problem_response(error)

    @app.exception_handler(RestdError)
    async def _refused(_: Request, error: Exception) -> Response:
        return problem_response(InvalidError(str(error)))

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem_response(validation_problem(error.errors()))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem_response(http_problem(request.method, request.url.path, error))


def problem_response(problem: ProblemError) -> Response:
    """A problem as a response."""
    return Response(problem.content(), problem.status, problem.headers, media_type="application/json")


def http_problem(method: str, path: str, error: HTTPException) -> ProblemError:
    """What the framework refuses by itself."""
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return NotFoundError(f"There is nothing at {path[:_SHOWN]}; /docs lists the addresses.", headers=headers)
    if error.status_code == 405:
        allowed = headers.get("Allow", headers.get("allow", "another method"))
        return MethodError(f"{path[:_SHOWN]} does not take {method[:_SHOWN]}; expected {allowed}.", headers=headers)
    return MalformedError("The body cannot be read; expected one JSON object in UTF-8.", headers=headers)


def validation_problem(errors: Any) -> ProblemError:
    """The first of pydantic's findings, with the field's name as the client knows it."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return MalformedError("The body is not JSON; expected one JSON object in UTF-8.")
    field = ".".join(str(part) for part in first["loc"][1:])[:_SHOWN] or None
    value = first.get("input")
    if first["type"] == "missing" and field is None:
        return InvalidError("There is no body; expected one JSON object.")
    if first["type"] == "extra_forbidden":
        return InvalidError(f"There is no field {field!r} here; /docs lists the fields. Leave it out.", field=field)
    message = first["msg"].removeprefix("Value error, ")
    if value is None or isinstance(value, (bool, int, float, str)):
        message += f" (got {_shown(value)})"
    return InvalidError(f"{field or 'The body'}: {message}", field=field)


def _shown(value: object) -> str:
    """The beginning of a value that a client sent.

    >>> _shown("a" * 99), _shown(10**99)
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…", '1000000000000000000000000000000…')
    """
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _BEGINNING else f"{text[: _BEGINNING - 1]}…"
