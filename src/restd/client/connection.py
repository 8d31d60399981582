"""Requests that are repeated while a service is busy, and refusals as errors."""

import json
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from restd.client.errors import BY_STATUS, DeadlineError, ResponseError, ServiceError, UnavailableError
from restd.errors import ConfigError, DataError, MissingExtraError

if TYPE_CHECKING:
    import httpx

_BUSY = (429, 503)
"""Statuses of requests that the service has not begun; they may be sent again, whatever they are."""
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Retries:
    """How long a client tries.

    Args:
        attempts: requests at most, the first one included; 1 never repeats any.
        seconds: from the first request to the beginning of the last one.
        first_delay: seconds before the second attempt; every further pause is twice as long as the one before.
        longest_delay: seconds of the longest of these pauses; a longer `Retry-After` is followed all the same.

    >>> Retries(attempts=0)
    Traceback (most recent call last):
    restd.errors.ConfigError: attempts = 0: expected at least 1.
    """

    attempts: int = 6
    seconds: float = 60.0
    first_delay: float = 0.2
    longest_delay: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"attempts = {self.attempts}: expected at least 1.")
        for name in ("seconds", "first_delay", "longest_delay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected at least 0.")

    def delay(self, attempt: int, retry_after: float | None, share: float) -> float:
        """Seconds to wait after a failed attempt.

        Clients that were refused together must not return together, so each waits a random part longer; none returns
        before `Retry-After`.

        Args:
            attempt: number of the attempt that failed, from 1.
            retry_after: what the service wants; None where it gave none.
            share: a random number from 0 to 1.

        >>> Retries().delay(1, None, 0.0), Retries().delay(3, None, 1.0), Retries().delay(1, 4.0, 1.0)
        (0.1, 0.8, 5.0)
        """
        own = min(self.longest_delay, self.first_delay * 2 ** (attempt - 1)) * (1 + share) / 2
        return own if retry_after is None else max(own, retry_after * (1 + share / 4))


class Connection:
    """Sends requests to one service; safe for many threads.

    Args:
        url: address of the service, such as http://127.0.0.1:8000.
        api_key: key of the service, where it needs one.
        timeout: seconds until a connection or an answer is given up.
        retries: how long to try while the service is busy.
        jitter: source of the random part of pauses.
        transport: what carries the requests; the network unless given.
        sleep: waits for so many seconds.
        clock: seconds that pass.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        retries: Retries | None = None,
        jitter: random.Random | None = None,
        transport: "httpx.BaseTransport | None" = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError("httpx", extra="client", purpose="restd.Client") from error
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is no address of a service; expected one like http://127.0.0.1:8000.")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and " " not in api_key and api_key):
            raise ConfigError("The API key has characters that no key has; expected ASCII without spaces.")
        self.url = url.rstrip("/")
        self._retries, self._jitter = retries or Retries(), jitter or random.Random()
        self._sleep, self._clock = sleep, clock
        self._httpx = httpx
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._http = httpx.Client(headers=headers, timeout=timeout, transport=transport)

    def close(self) -> None:
        """Close all connections to the service."""
        self._http.close()

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, is_repeatable: bool = True
    ) -> dict[str, Any]:
        """Send a request until it is answered, refused for good, or time is up.

        Args:
            method: of HTTP.
            path: such as /v1/search.
            body: JSON values; None for none.
            is_repeatable: whether doing it twice is the same as once; if not, it is sent again only where the service
                surely has not begun it.
        """
        content = None if body is None else encoded(body)
        began, attempt = self._clock(), 0
        while True:
            attempt += 1
            try:
                return self._send(method, path, content, is_repeatable=is_repeatable)
            except _BusyError as busy:
                problem = busy.problem
            delay = self._retries.delay(attempt, problem.retry_after, self._jitter.random())
            spent = self._clock() - began
            if attempt >= self._retries.attempts or spent + delay > self._retries.seconds:
                tries = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                raise _with_note(problem, f"Given up after {tries} in {spent:.0f} s.") from None
            self._sleep(delay)

    def _send(self, method: str, path: str, content: bytes | None, *, is_repeatable: bool) -> dict[str, Any]:
        httpx = self._httpx
        try:
            response = self._http.request(method, f"{self.url}{path}", content=content)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _BusyError(
                UnavailableError(f"Nothing answers at {self.url} ({error}); check the address, and that it runs.")
            ) from error
        except httpx.TimeoutException as error:
            raise DeadlineError(
                f"{self.url}{path} did not answer within the client's timeout. Ask for less, or raise the timeout."
            ) from error
        except httpx.HTTPError as error:
            problem = UnavailableError(f"The connection to {self.url} broke ({error}) before the answer was complete.")
            if is_repeatable:
                raise _BusyError(problem) from error
            raise _with_note(problem, "It may have been done all the same; look before you repeat it.") from error
        if response.status_code == httpx.codes.OK:
            return self._values(response)
        problem = refusal(response, f"{self.url}{path}")
        raise _BusyError(problem) if response.status_code in _BUSY else problem

    def _values(self, response: "httpx.Response") -> dict[str, Any]:
        try:
            values = response.json()
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise ResponseError(
                f"{response.url} answered with {response.text[:_SHOWN]!r}, expected a JSON object. Is it a service of "
                "restd?",
                status=response.status_code,
            )
        return values


class _BusyError(Exception):
    """A problem that may pass: the request can be sent again."""

    def __init__(self, problem: ServiceError) -> None:
        super().__init__(str(problem))
        self.problem = problem


def encoded(body: Mapping[str, Any]) -> bytes:
    """JSON of a request; a value that JSON does not have is an error."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:  # a lone surrogate is a ValueError, too
        raise DataError(
            f"The request cannot be written as JSON ({error}); expected texts, finite numbers, booleans and lists."
        ) from error


def refusal(response: "httpx.Response", address: str) -> ServiceError:
    """What an answer other than 200 means."""
    try:
        problem = response.json()["error"]
        message, code, field = str(problem["message"]), str(problem["code"]), problem.get("field")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code, field = "", "", None
    if not message:
        message = (
            f"The answer is not one of restd ({response.text[:_SHOWN]!r}). Check the address, and what stands between "
            "client and service."
        )
    kind = BY_STATUS.get(response.status_code, ResponseError)
    return kind(
        f"{address} answered {response.status_code}. {message}",
        status=response.status_code,
        code=code,
        field=field,
        retry_after=seconds_of(response.headers.get("Retry-After")),
    )


def seconds_of(retry_after: str | None) -> float | None:
    """Seconds that a `Retry-After` header names, as a number or as a date; None where it is neither.

    >>> seconds_of("3"), seconds_of("Wed, 21 Oct 2015 07:28:00 GMT"), seconds_of("soon")
    (3.0, 0.0, None)
    """
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _with_note(problem: ServiceError, note: str) -> ServiceError:
    return type(problem)(
        f"{problem} {note}",
        status=problem.status,
        code=problem.code,
        field=problem.field,
        retry_after=problem.retry_after,
    )
