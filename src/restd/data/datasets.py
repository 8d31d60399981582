"""Data sets by name: what `restd data NAME` writes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from restd.data.dataset import Task
from restd.data.source import Source
from restd.errors import ConfigError
from restd.registry import Registry


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """A data set that is chosen by name.

    Args:
        name: what it is chosen by.
        summary: one sentence.
        task: what it is for: `search` (queries and judgments) or `recommend` (histories).
        make: returns its source; its parameters are the data set's.
        source: the paper or place it is from; empty for our own.
    """

    name: str
    summary: str
    task: Task
    make: Callable[..., Source]
    source: str = ""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """What `make` accepts, by name; parameters without a default are required."""
        return signature(self.make).parameters


DATASETS: Registry[DatasetEntry] = Registry(
    "data set",
    group="datasets",
    homes=(
        "restd.shop",
        "restd.data.public.tmdb",
        "restd.data.public.esci",
        "restd.data.public.nq320k",
        "restd.data.public.beir",
        "restd.data.public.ir_datasets",
        "restd.data.history_sources",
        "restd.data.public.movielens",
        "restd.data.public.amazon",
        "restd.data.public.yelp",
    ),
)
"""Every data set that can be generated, fetched or read."""


def make_source(name: str, **options: Any) -> Source:
    """Return the source of a data set; `write_dataset` writes it.

    >>> make_source("shop", items=500, locale="es").name
    'shop'
    >>> make_source("shop", size=500)
    Traceback (most recent call last):
    restd.errors.ConfigError: The data set 'shop' has no parameter 'size'; it has: locale, items, seed.
    """
    entry = DATASETS[name]
    known = entry.parameters
    for option in options:
        if option not in known:
            raise ConfigError(f"The data set {name!r} has no parameter {option!r}; it has: {', '.join(known)}.")
    missing = [key for key, parameter in known.items() if parameter.default is Parameter.empty and key not in options]
    if missing:
        raise ConfigError(f"The data set {name!r} needs: {', '.join(missing)}.")
    return entry.make(**options)
