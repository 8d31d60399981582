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
    "datasets": "restd.data:DATASETS",
    "encoders": "restd.encode:ENCODERS",
    "quantizers": "restd.quantize:QUANTIZERS",
    "policies": "restd.index:POLICIES",
    "backbones": "restd.models:BACKBONES",
    "objectives": "restd.train:OBJECTIVES",
    "rankers": "restd.rankers:RANKERS",
}
"""Where each registry is; imported when it is read, so that `restd --help` waits for none of them."""


def registry(name: str) -> "Registry[Any]":
    """Import a registry by its name in `restd list`."""
    module, _, attribute = REGISTRIES[name].partition(":")
    return getattr(import_module(module), attribute)


def list_parts(
    name: Annotated[
        str | None, typer.Argument(help=f"What to list: {', '.join(REGISTRIES)}. Default: all.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List encoders, backbones, objectives and everything else that is chosen by name.

    Parts that other installed packages have registered are included.
    """
    if name is not None and name not in REGISTRIES:
        raise ConfigError(f"Unknown list {name!r}. Known: {', '.join(REGISTRIES)}.")
    summaries = {each: registry(each).describe() for each in ([name] if name else REGISTRIES)}
    if as_json:
        show_json(summaries[name] if name else summaries)
        return
    for each, entries in summaries.items():
        show_table(each.capitalize(), ("name", "what it is"), list(entries.items()), numbers=False)
