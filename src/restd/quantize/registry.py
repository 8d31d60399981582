"""Quantisers by name: what the index needs to know of each kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from restd.quantize.settings import level_sizes
from restd.registry import Registry

SignalName = Literal["categories", "queries"]
"""What an identifier scheme may learn from besides vectors; see `restd.quantize.signals`."""


@dataclass(frozen=True, slots=True)
class QuantizerKind:
    """An entry of `QUANTIZERS`: a scheme that gives items their codes.

    A scheme with a geometry has `fit` and `restore`: it makes a latent space with codebooks, and the index assigns and
    resolves. A scheme without one has `identify`, which makes the identifiers themselves.

    Args:
        name: name of the quantiser, and of its section of settings; `Quantizer.settings["kind"]` of what it makes.
        summary: one sentence that says what it is.
        config: frozen dataclass of its settings; it has all of `QuantizerConfig`, or without a geometry all of
            `SchemeConfig`.
        fit: fits one: `fit(vectors, config, items=…)`, where `vectors` is a sample of a catalogue of `items` items;
            with `signals=…` where it needs any.
        restore: restores one: `restore(settings, arrays, codebooks)`, from what `Quantizer.settings` and
            `Quantizer.tensors` gave.
        identify: for a scheme without latents and codebooks: `identify(vectors, config, signals)` of all items, which
            returns `Identifiers`.
        nested: whether the first levels of a fit are a fit of fewer levels, so that one fit tries several depths.
        needs: signals that it cannot do without.
        source: where it comes from: a paper, or empty for our own.
        sizes: codes of each level from the setting `codes`: `sizes(codes, levels=…, items=…)`.
    """

    name: str
    summary: str
    config: type[Any]
    fit: Callable[..., Any] | None = None
    restore: Callable[..., Any] | None = None
    identify: Callable[..., Any] | None = None
    nested: bool = False
    needs: frozenset[SignalName] = frozenset()
    source: str = ""
    sizes: Callable[..., tuple[int, ...]] = level_sizes

    @property
    def has_geometry(self) -> bool:
        """Whether it has latents and codebooks, which residual supervision needs."""
        return self.identify is None


_HOMES = ("kmeans", "rqvae", "merge", "cat_id2", "forge", "hyperbolic", "dsi", "hi_gen")

QUANTIZERS: Registry[QuantizerKind] = Registry(
    "quantiser", group="quantizers", homes=tuple(f"restd.quantize.{name}" for name in _HOMES)
)
"""Every quantiser that is installed. Listing it loads neither torch nor faiss."""
