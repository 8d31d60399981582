"""`restd list`: everything that is chosen by name, from the registries themselves."""

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restd.cli.console import show_json, show_table
from restd.cli.options import Json
from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.registry import Registry

REGISTRIES = {
    "systems": "restd.systems:SYSTEMS",
    "datasets": "restd.data:DATASETS",
    "encoders": "restd.encode:ENCODERS",
    "quantizers": "restd.quantize:QUANTIZERS",
    "policies": "restd.index:POLICIES",
    "backbones": "restd.models:BACKBONES",
    "objectives": "restd.train:OBJECTIVES",
    "rankers": "restd.rankers:RANKERS",
}
"""Where each registry is; imported when it is read, so that `restd --help` waits for none of them."""
ANY = "any"
"""The task of what serves search and recommendation alike."""


def registry(name: str) -> "Registry[Any]":
    """Import a registry by its name in `restd list`."""
    module, _, attribute = REGISTRIES[name].partition(":")
    return getattr(import_module(module), attribute)


def rows_of(name: str) -> list[dict[str, str]]:
    """Name, sentence, task and source of every entry of a registry."""
    return [
        {"name": entry.name, "sentence": entry.summary, "task": _task(entry), "source": entry.source}
        for entry in registry(name).entries()
    ]


def _task(entry: Any) -> str:
    """What an entry is for: one task, or any; a ranker does one or more tasks, each in its own way."""
    if hasattr(entry, "tasks"):
        return next(iter(entry.tasks)) if len(entry.tasks) == 1 else ANY
    return getattr(entry, "task", ANY)


def list_parts(
    name: Annotated[
        str | None, typer.Argument(help=f"What to list: {', '.join(REGISTRIES)}. Default: all.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List systems, encoders, backbones, objectives and everything else that is chosen by name.

    Parts that other installed packages have registered are included. With --json, an entry has a name, a sentence, a
    task (search, recommend or any) and a source, which is empty for our own.
    """
    if name is not None and name not in REGISTRIES:
        raise ConfigError(f"Unknown list {name!r}. Known: {', '.join(REGISTRIES)}.")
    lists = {each: rows_of(each) for each in ([name] if name else REGISTRIES)}
    if as_json:
        show_json(lists[name] if name else lists)
        return
    for each, entries in lists.items():
        sources = any(entry["source"] for entry in entries)
        columns = ("name", "what it is", "source") if sources else ("name", "what it is")
        keys = ("name", "sentence", "source") if sources else ("name", "sentence")
        show_table(each.capitalize(), columns, [[entry[key] for key in keys] for entry in entries], numbers=False)
