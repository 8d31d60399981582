"""What can go wrong between a client and a service, one class for each thing that a caller can do about it."""

from restd.errors import RestdError


class ServiceError(RestdError):
    """A request that was not answered as it should be.

    Args:
        message: what was found, what was expected, what to do.
        status: HTTP status of the answer; None where there was none.
        code: the service's word for it, such as `invalid` or `overloaded`; empty where it gave none.
        field: the part of the request that is meant, such as `queries.0`; None where the service named none.
        retry_after: seconds that the service wants to be left alone; None where it gave none.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "",
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.field, self.retry_after = status, code, field, retry_after


class InvalidRequestError(ServiceError):
    """The service refuses this request; it must be changed."""


class AccessError(ServiceError):
    """The key is missing, unknown, or may not do this."""


class OverloadError(ServiceError):
    """More queries are waiting than the service takes, and were for as long as the client tried."""


class UnavailableError(ServiceError):
    """The service cannot be reached, or it is loading or stopping."""


class DeadlineError(ServiceError):
    """The answer was not there in time."""


class ResponseError(ServiceError):
    """An answer that a service of restd does not give, or a fault of the service."""


BY_STATUS: dict[int, type[ServiceError]] = {
    **dict.fromkeys((400, 404, 405, 408, 409, 413, 422), InvalidRequestError),
    **dict.fromkeys((401, 403), AccessError),
    429: OverloadError,
    503: UnavailableError,
    504: DeadlineError,
}
"""What each refusal of the service becomes; any other status is a `ResponseError`."""
