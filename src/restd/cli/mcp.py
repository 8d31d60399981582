"""`restd mcp`: a trained model as tools for language models."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from restd.cli.console import notify
from restd.cli.device import use_device
from restd.cli.options import Model, OptionalIndex, OptionalItems, SearchDevice
from restd.errors import MissingExtraError


def mcp(
    model: Model,
    index: OptionalIndex = None,
    catalog: OptionalItems = None,
    device: SearchDevice = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder of restd serve with changes of items. Default: served, in the model's folder."),
    ] = None,
    max_queries: Annotated[int, typer.Option(help="Limit: queries in one call.")] = 64,
    max_k: Annotated[int, typer.Option(help="Limit: results per query.")] = 1000,
    max_beam: Annotated[int, typer.Option(help="Limit: beam width.")] = 500,
    deadline_ms: Annotated[int, typer.Option(help="Limit: milliseconds from a call to its answer.")] = 10_000,
) -> None:
    """Offer a trained model to a language model, as tools of the Model Context Protocol (MCP).

    A desktop assistant or an agent starts this command and talks to it over standard input and output. It gets the
    tools search and explain; for a model that recommends, recommend and explain. Nothing can be changed through them.
    """
    import asyncio

    _refuse_missing_packages()

    from restd.serve import Limits, ModelSource, ServerState
    from restd.serve.item_updates import with_updates
    from restd.serve.mcp_tools import serve_stdio

    limits = Limits(max_queries=max_queries, max_k=max_k, max_beam=max_beam, deadline_ms=deadline_ms)
    server_state = ServerState.of(limits, state_root=state)
    with _stdout_to_stderr():
        notify(f"Loading {model}")
        served = with_updates(server_state, ModelSource(model, index, catalog, use_device(device)).load())
    server_state.put(served)
    notify(f"restd offers {model} over standard input and output ({len(served.snapshot):,} items, {served.task})")
    asyncio.run(serve_stdio(server_state))


def _refuse_missing_packages() -> None:
    """Refuse to start without the packages of the extra, before a model is loaded."""
    for package in ("mcp", "fastapi", "prometheus_client"):
        if find_spec(package) is None:
            raise MissingExtraError(package.replace("_", "-"), extra="mcp", purpose="restd mcp")


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Whatever a library prints goes to standard error: on standard output it would be a broken message."""
    sys.stdout.flush()
    original = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(original, 1)
        os.close(original)
