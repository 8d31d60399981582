"""`restd bench`: measure on this machine; each benchmark prints one JSON object."""

from inspect import signature
from typing import Annotated

import typer

from restd.cli.console import show, show_json
from restd.errors import ConfigError

_LEAST = 1_000


def bench(
    name: Annotated[
        str, typer.Argument(help="index, trie, shop, overhead, teacher, train, decode, recommend or jobs.")
    ],
    items: Annotated[int | None, typer.Option(help="Items (index, shop, teacher).")] = None,
    sids: Annotated[int | None, typer.Option(help="SIDs (trie, decode).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Run a benchmark: ratios of both sides, measured in the same run."""
    from restd.bench import BENCHMARKS

    if name not in BENCHMARKS:
        raise ConfigError(f"Benchmark {name!r} is unknown; wanted one of {', '.join(BENCHMARKS)}.")
    given = {key: value for key, value in {"items": items, "sids": sids}.items() if value is not None}
    known = signature(BENCHMARKS[name]).parameters
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"Benchmark {name!r} has no option --{key}; it has: {', '.join(known) or 'none'}.")
        if value < _LEAST:
            raise ConfigError(f"--{key} {value} is too few to measure anything; wanted at least {_LEAST:,}.")
    result = BENCHMARKS[name](**given)
    if as_json:
        show_json(result)
    else:
        for key, value in result.items():
            show(f"{key}: {value}")
