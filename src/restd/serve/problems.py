"""Refusals: what is wrong with a request or not possible now, as an exception and as a JSON body."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, Field


class ProblemError(Exception):
    """A request that is not answered, with the status and the sentence that the client gets."""

    status: ClassVar[int] = 422
    code: ClassVar[str] = "invalid"

    def __init__(self, message: str, *, field: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        """The part of the request that is meant, where one is."""
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The body of the response.

        >>> NotFoundError("There is no item 'X'.", field="id").body()
        {'error': {'code': 'not_found', 'message': "There is no item 'X'.", 'field': 'id'}}
        """
        return {"error": {"code": self.code, "message": self.message, "field": self.field}}

    def content(self) -> bytes:
        """The body as JSON; escapes leave nothing that cannot be encoded."""
        return json.dumps(self.body()).encode("ascii")


class InvalidError(ProblemError):
    """A field that is not what was expected."""


class MalformedError(ProblemError):
    """A body that is no JSON."""

    status, code = 400, "malformed"


class UnauthorizedError(ProblemError):
    """No key, or an unknown one."""

    status, code = 401, "unauthorized"


class ForbiddenError(ProblemError):
    """A key that may not do this, or something that is switched off."""

    status, code = 403, "forbidden"


class NotFoundError(ProblemError):
    """No such address, or no such item."""

    status, code = 404, "not_found"


class MethodError(ProblemError):
    """An address that does not take this method."""

    status, code = 405, "method_not_allowed"


class SlowBodyError(ProblemError):
    """A body that did not arrive in time."""

    status, code = 408, "slow_body"


class ConflictError(ProblemError):
    """Something else is under way that excludes this."""

    status, code = 409, "conflict"


class TooLargeError(ProblemError):
    """A body above the limit."""

    status, code = 413, "too_large"


class OverloadedError(ProblemError):
    """More queries are waiting than the queue takes."""

    status, code = 429, "overloaded"


class InternalError(ProblemError):
    """A fault of the service; the log has the traceback."""

    status, code = 500, "internal"


class NotReadyError(ProblemError):
    """The service is loading or stopping."""

    status, code = 503, "not_ready"


class DeadlineError(ProblemError):
    """The answer was not ready in time."""

    status, code = 504, "deadline"


class StorageError(ProblemError):
    """An update that could not be written to disk; nothing was changed."""

    status, code = 507, "storage"


class ProblemDetail(BaseModel):
    """What is wrong."""

    code: str = Field(description="One word for programs.")
    message: str = Field(description="What was found, what was expected, what to do.")
    field: str | None = Field(description="The part of the request that is meant, such as queries.0.")


class ProblemBody(BaseModel):
    """The body of every 4xx and 5xx response."""

    error: ProblemDetail


_BY_STATUS = {
    kind.status: (kind.__doc__ or "").strip().splitlines()[0]
    for kind in (ProblemError, *ProblemError.__subclasses__())
    if kind is not ProblemError
}
ALWAYS = (401, 503)
"""Statuses that every endpoint under /v1 can answer: no key, and a service that is loading or stopping."""
WRITING = (403,)
"""Statuses of endpoints that change what is served."""
BODY = (400, 408, 413, 422)
"""Statuses of endpoints that read a body."""
MODEL = (429, 504)
"""Statuses of endpoints that wait for the model."""


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route says about the problems it can answer, for the OpenAPI document.

    >>> documented(429)[429]["description"]
    'More queries are waiting than the queue takes.'
    """
    return {status: {"model": ProblemBody, "description": _BY_STATUS[status]} for status in sorted(set(statuses))}
