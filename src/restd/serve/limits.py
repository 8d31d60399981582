"""How much one request, and all requests together, may ask of the service."""

from dataclasses import dataclass, fields

from restd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the service; what is above one is refused with a sentence that names it.

    Args:
        max_body_kb: size of a request's body, in KiB.
        max_queries: queries, or histories, in one request.
        max_query_chars: characters of a query, and of a condition of a filter.
        max_history: items in one history.
        max_k: results per query.
        max_beam: prefixes kept at every level.
        max_filter_items: ids in `allow`, and in `deny`.
        deadline_ms: milliseconds from a request's arrival to its answer.
        queue: queries that may wait for the model; more are refused.
        max_batch: queries that the model answers together.
        max_wait_ms: milliseconds a busy model waits for a fuller batch; an idle one never waits.
        drain_seconds: how long a stopping service lets requests finish.

    >>> Limits(max_queries=500)
    Traceback (most recent call last):
    restd.errors.ConfigError: max_queries (500) is above queue (256): such a request could never be answered. \
Raise the queue.
    """

    max_body_kb: int = 256
    max_queries: int = 64
    max_query_chars: int = 2_000
    max_history: int = 500
    max_k: int = 1_000
    max_beam: int = 500
    max_filter_items: int = 10_000
    deadline_ms: int = 10_000
    queue: int = 256
    max_batch: int = 32
    max_wait_ms: float = 4.0
    drain_seconds: float = 20.0

    def __post_init__(self) -> None:
        may_be_zero = ("max_wait_ms", "drain_seconds")
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in may_be_zero else 1
            if not least <= value < float("inf"):
                raise ConfigError(f"{field.name} = {value}: expected at least {least}.")
        if self.max_queries > self.queue:
            raise ConfigError(
                f"max_queries ({self.max_queries}) is above queue ({self.queue}): such a request could never be "
                "answered. Raise the queue."
            )

    @property
    def max_body(self) -> int:
        """Size of a request's body, in bytes."""
        return self.max_body_kb * 1024
