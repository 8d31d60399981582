"""Settings that every quantiser has in common: levels, codes per level, width, sample and seed."""

import math
from typing import Protocol, runtime_checkable

from restd.errors import ConfigError

AUTO_CODES = 0
_SMALLEST, _LARGEST = 16, 256


@runtime_checkable
class SchemeConfig(Protocol):
    """What the settings of every identifier scheme must have: a frozen dataclass with a default for each."""

    @property
    def seed(self) -> int:
        """Random seed."""
        ...


@runtime_checkable
class QuantizerConfig(SchemeConfig, Protocol):
    """What the settings of a quantiser with latents and codebooks must have too."""

    @property
    def levels(self) -> int:
        """Number of codes in a Semantic ID."""
        ...

    @property
    def codes(self) -> int | tuple[int, ...]:
        """Codes per level, one number or one per level; `AUTO_CODES` chooses by catalogue size."""
        ...

    @property
    def dim(self) -> int:
        """Width of the space that is quantised."""
        ...

    @property
    def sample(self) -> int:
        """Fit on at most this many items."""
        ...


def automatic_codes(items: int) -> int:
    """Codes per level for a catalogue of this size: the power of two near √N/2, between 16 and 256.

    With 256² prefixes a catalogue of 10,000 would leave levels 3 and 4 nothing to decide.

    >>> [automatic_codes(items) for items in (500, 5_000, 20_000, 1_000_000)]
    [16, 32, 64, 256]
    """
    power = 2 ** round(math.log2(max(math.sqrt(items) / 2, 1.0)))
    most = 1 << (max(items, 1).bit_length() - 1)  # a tiny catalogue has fewer items than the smallest codebook
    return min(max(power, _SMALLEST), _LARGEST, most)


def level_sizes(codes: int | tuple[int, ...], *, levels: int, items: int) -> tuple[int, ...]:
    """Codes of each level: one number for all, one for each, or `AUTO_CODES`.

    >>> level_sizes(AUTO_CODES, levels=3, items=5_000), level_sizes((8, 16, 32), levels=3, items=100)
    ((32, 32, 32), (8, 16, 32))
    """
    if codes == AUTO_CODES:
        codes = automatic_codes(items)
    sizes = (codes,) * levels if isinstance(codes, int) else tuple(codes)
    if len(sizes) != levels:
        raise ConfigError(f"Expected one codebook size, or one for each of {levels} levels; got {len(sizes)} sizes.")
    if min(sizes) < 1:
        raise ConfigError(f"A codebook needs at least 1 code, got {min(sizes)}.")
    if max(sizes) > items:
        raise ConfigError(
            f"A codebook of {max(sizes)} codes needs at least as many items, but there are only {items:,}. Lower "
            f"--codes to at most {items:,}, or leave it at auto."
        )
    return sizes


def check_shape(config: QuantizerConfig) -> None:
    """Refuse what no quantiser can be made with, before anything is encoded."""
    for name, least in (("levels", 1), ("dim", 1), ("sample", 2), ("seed", 0)):
        if getattr(config, name) < least:
            raise ConfigError(f"{name} must be at least {least}, got {getattr(config, name)}.")
