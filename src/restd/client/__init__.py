"""A client for a service of `restd serve`, with the methods of `Retriever`; it loads no model and no web framework."""

from restd.client.client import Client
from restd.client.connection import Retries
from restd.client.errors import (
    AccessError,
    DeadlineError,
    InvalidRequestError,
    OverloadError,
    ResponseError,
    ServiceError,
    UnavailableError,
)

__all__ = [
    "AccessError",
    "Client",
    "DeadlineError",
    "InvalidRequestError",
    "OverloadError",
    "ResponseError",
    "Retries",
    "ServiceError",
    "UnavailableError",
]
