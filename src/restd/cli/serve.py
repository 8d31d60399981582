"""`restd serve`: an HTTP service for a trained model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restd.cli.console import notify, show, warn
from restd.cli.device import use_device
from restd.cli.options import Model, OptionalIndex, OptionalItems, SearchDevice
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.serve import ModelSource

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    model: Model,
    beside: Annotated[
        Path | None, typer.Option(help="Folder of a second model, for comparisons: requests name it 'beside'.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at. 127.0.0.1 is reached from this machine alone; 0.0.0.0 from all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes any that is free.")] = 8000,
    index: OptionalIndex = None,
    catalog: OptionalItems = None,
    device: SearchDevice = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with lines 'read: KEY' and 'write: KEY'. Without a read key everybody reads; without a write "
            "key nobody changes items or reloads."
        ),
    ] = None,
    reload: Annotated[
        list[str] | None,
        typer.Option(help="A model that POST /v1/reload may load, as NAME=FOLDER (repeatable)."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder for changes of items. Default: served, in the model's folder."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(help="Origin of a web page that may call the service: https://shop.example (repeatable)."),
    ] = None,
    log_queries: Annotated[
        bool, typer.Option("--log-queries", help="Write the queries to the request log too, not only their number.")
    ] = False,
    max_body_kb: Annotated[int, typer.Option(help="Limit: size of a request, in KiB.")] = 256,
    max_queries: Annotated[int, typer.Option(help="Limit: queries in one request.")] = 64,
    max_query_chars: Annotated[int, typer.Option(help="Limit: characters of a query.")] = 2000,
    max_history: Annotated[int, typer.Option(help="Limit: items of a history.")] = 500,
    max_k: Annotated[int, typer.Option(help="Limit: results per query.")] = 1000,
    max_beam: Annotated[int, typer.Option(help="Limit: beam width.")] = 500,
    max_filter_items: Annotated[int, typer.Option(help="Limit: ids in allow and in deny.")] = 10_000,
    deadline_ms: Annotated[int, typer.Option(help="Limit: milliseconds from a request to its answer.")] = 10_000,
    queue: Annotated[int, typer.Option(help="Queries that may wait for the model; more are refused with 429.")] = 256,
    max_batch: Annotated[int, typer.Option(help="Queries that the model answers together.")] = 32,
    max_wait_ms: Annotated[
        float, typer.Option(help="Milliseconds a busy model waits for a fuller batch; an idle one never waits.")
    ] = 4.0,
    drain_seconds: Annotated[float, typer.Option(help="Seconds a stopping service lets requests finish.")] = 20.0,
) -> None:
    """Serve a trained model over HTTP: search, recommend, explain, on one machine and in one process.

    The service is reached from this machine alone unless --host says otherwise. One JSON line per request goes to
    standard error. SIGTERM and Ctrl+C let requests in flight finish; a second one ends at once.
    """
    from restd.serve import Limits, ModelSource, ServedModel, ServerState
    from restd.serve import serve as run_server
    from restd.serve.item_updates import with_updates
    from restd.serve.keys import Keys
    from restd.serve.request_log import RequestLog

    device = use_device(device)
    limits = Limits(
        max_body_kb=max_body_kb,
        max_queries=max_queries,
        max_query_chars=max_query_chars,
        max_history=max_history,
        max_k=max_k,
        max_beam=max_beam,
        max_filter_items=max_filter_items,
        deadline_ms=deadline_ms,
        queue=queue,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        drain_seconds=drain_seconds,
    )
    source = ModelSource(model, index, catalog, device)
    keys = Keys() if api_key_file is None else Keys.load(api_key_file)
    server_state = ServerState.of(
        limits,
        keys=keys,
        reloads={"main": source, **_named_sources(reload or [], device)},
        cors=tuple(cors or ()),
        state_root=state,
    )
    server_state.log = RequestLog(sys.stderr, with_queries=log_queries, dropped=server_state.metrics.unlogged)

    def load() -> dict[str, ServedModel]:
        notify(f"Loading {model}")
        models = {"main": with_updates(server_state, source.load())}
        if beside is not None:
            notify(f"Loading {beside}")
            models["beside"] = ModelSource(beside, device=device).load()
        return models

    def ready(address: str) -> None:
        served = server_state.model()
        reach = "this machine alone" if host in _LOOPBACK else "every machine that reaches this one"
        show(f"restd serves {model} on {address} ({len(served.snapshot):,} items, {served.task}; for {reach})")
        sys.stdout.flush()
        if host not in _LOOPBACK and not keys.read:
            warn("There is no read key, so everybody who reaches the address may search; see --api-key-file.")

    run_server(server_state, host=host, port=port, load=load, ready=ready)


def _named_sources(values: list[str], device: str | None) -> "dict[str, ModelSource]":
    from restd.serve import ModelSource

    sources = {}
    for value in values:
        name, _, folder = value.partition("=")
        if not name or not folder:
            raise ConfigError(f"--reload {value}: expected NAME=FOLDER.")
        sources[name] = ModelSource(Path(folder), device=device)
    return sources
