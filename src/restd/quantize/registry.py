"""Quantisers by name: what the index needs to know of each kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from restd.registry import Registry


@dataclass(frozen=True, slots=True)
class QuantizerKind:
    """An entry of `QUANTIZERS`.

    Args:
        name: name of the quantiser, and of its section of settings; `Quantizer.settings["kind"]` of what it makes.
        summary: one sentence that says what it is.
        config: frozen dataclass of its settings; it has all of `QuantizerConfig`.
        fit: fits one: `fit(vectors, config, items=…)`, where `vectors` is a sample of a catalogue of `items` items.
        restore: restores one: `restore(settings, arrays, codebooks)`, from what `Quantizer.settings` and
            `Quantizer.tensors` gave.
        nested: whether the first levels of a fit are a fit of fewer levels, so that one fit tries several depths.
    """

    name: str
    summary: str
    config: type[Any]
    fit: Callable[..., Any]
    restore: Callable[..., Any]
    nested: bool = False


QUANTIZERS: Registry[QuantizerKind] = Registry(
    "quantiser", group="quantizers", homes=("restd.quantize.kmeans", "restd.quantize.rqvae")
)
"""Every quantiser that is installed. Listing it loads neither torch nor faiss."""
