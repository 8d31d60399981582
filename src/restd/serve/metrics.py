"""Counters of the service in Prometheus's format."""

from restd.errors import MissingExtraError

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of one service, in a registry of their own.

    >>> metrics = Metrics()
    >>> metrics.waiting(3)
    >>> b"restd_queue_queries 3.0" in metrics.text()
    True
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as error:
            raise MissingExtraError("prometheus-client", extra="serve", purpose="restd serve") from error
        registry = CollectorRegistry()
        self._registry = registry
        self._requests = Counter(
            "restd_requests", "Requests by route and status.", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "restd_request_seconds",
            "Seconds from a request to its answer.",
            ["route"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._waiting = Gauge("restd_queue_queries", "Queries that wait for the model.", registry=registry)
        self._in_flight = Gauge("restd_in_flight_requests", "Requests that are being answered.", registry=registry)
        self._batch_queries = Histogram(
            "restd_batch_queries", "Queries that were answered together.", registry=registry, buckets=_BATCHES
        )
        self._model_seconds = Counter("restd_model_seconds", "Seconds that the model was busy.", registry=registry)
        self._items = Gauge("restd_items", "Items that are served.", ["model"], registry=registry)
        self._reloads = Counter("restd_reloads", "Reloads by outcome.", ["outcome"], registry=registry)
        self._unlogged = Counter("restd_unlogged_requests", "Requests that the log had no room for.", registry=registry)

    def waiting(self, queries: int) -> None:
        """So many queries wait now."""
        self._waiting.set(queries)

    def batch(self, queries: int, seconds: float) -> None:
        """A batch was answered."""
        self._batch_queries.observe(queries)
        self._model_seconds.inc(seconds)

    def in_flight(self, requests: int) -> None:
        """So many requests are being answered now."""
        self._in_flight.set(requests)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered; `route` is the pattern, never the address with its ids."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def items(self, model: str, count: int) -> None:
        """A model serves so many items now."""
        self._items.labels(model).set(count)

    def reload(self, outcome: str) -> None:
        """A reload was `done` or `refused`."""
        self._reloads.labels(outcome).inc()

    def unlogged(self) -> None:
        """A line of the log was dropped."""
        self._unlogged.inc()

    def text(self) -> bytes:
        """All counters, as Prometheus reads them."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
