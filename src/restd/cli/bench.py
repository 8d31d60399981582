"""`restd bench`: benchmarks of this machine."""

from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from restd.cli.command import described
from restd.cli.console import show, show_json
from restd.cli.options import Json
from restd.errors import ConfigError

_LEAST = 1_000
DESCRIPTIONS = {
    "index": "fit, assign and resolve collisions of a million items, against the residual quantiser of faiss",
    "trie": "memory and look-ups of a trie of ten million SIDs",
    "shop": "BM25 on the generated shop in every locale",
    "overhead": "a training update with distillation, against one without",
    "teacher": "targets of a batch, and shape-matched controls of a catalogue",
    "train": "our training loop, against a plain transformers loop",
    "decode": "our beam search, against generate of transformers",
    "search": "hybrid search, against plain beam search, and fitting its weights",
    "serve": "the HTTP service under load: batching, cost of HTTP, overload, memory",
    "recommend": "training and ranking with TIGER, against transformers",
    "jobs": "training runs side by side, against one after the other",
}


def bench(
    name: Annotated[
        str,
        typer.Argument(help="Name of a benchmark from the list above."),
    ],
    items: Annotated[
        int | None,
        typer.Option(help="Number of items (index, shop, teacher, search, serve). Default: the benchmark's own."),
    ] = None,
    sids: Annotated[
        int | None, typer.Option(help="Number of Semantic IDs (trie, decode). Default: the benchmark's own.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A run or a bundle to measure (serve). Default: a generated shop's.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, to see that it works (serve).")] = False,
    as_json: Json = False,
) -> None:
    """Run a benchmark, on the CPU. Results are ratios of two sides measured in the same run."""
    from restd.bench import BENCHMARKS

    if name not in BENCHMARKS:
        raise ConfigError(f"Unknown benchmark {name!r}. Known: {', '.join(BENCHMARKS)}.")
    given: dict[str, Any] = {"items": items, "sids": sids, "model": model, "quick": quick or None}
    options = {option: value for option, value in given.items() if value is not None}
    known = signature(BENCHMARKS[name]).parameters
    for option in options:
        if option not in known:
            raise ConfigError(f"Benchmark {name!r} has no option --{option}. Known: {', '.join(known) or 'none'}.")
        if option in ("items", "sids") and options[option] < _LEAST:
            raise ConfigError(f"--{option} must be at least {_LEAST:,} to measure anything, got {options[option]}.")
    result = BENCHMARKS[name](**options)
    if as_json:
        show_json(result)
    else:
        for key, value in result.items():
            show(f"{key}: {value}")


bench.__doc__ = described(bench.__doc__, DESCRIPTIONS)
