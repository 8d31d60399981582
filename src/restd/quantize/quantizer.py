"""The seam between quantisers and the index: latents, codebooks, and a state that can be stored."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float16

from restd.errors import ConfigError
from restd.quantize.codebooks import Codebooks

AUTO_CODES = 0
_SMALLEST, _LARGEST = 16, 256


@runtime_checkable
class Quantizer(Protocol):
    """A latent space with codebooks.

    Latents are rounded to float16 before anything is assigned, so that what is stored and what was assigned agree.
    """

    @property
    def codebooks(self) -> Codebooks:
        """Codewords of every level."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values that, with the tensors, restore this quantiser; `kind` names its class."""
        ...

    def latents(self, vectors: Float[np.ndarray, "item input"]) -> Float16[np.ndarray, "item dim"]:
        """Project embeddings into the space that is quantised."""
        ...

    def reconstruct(self, latents: Float[np.ndarray, "item dim"]) -> Float[np.ndarray, "item input"]:
        """Map latents (or sums of codewords) back to normalised embeddings."""
        ...

    def prepared(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "item input"]:
        """Embeddings as `reconstruct` should give them back: the reference of the reconstruction error."""
        ...

    def tensors(self) -> dict[str, np.ndarray]:
        """Everything that was learned, codebooks aside."""
        ...


def automatic_codes(items: int) -> int:
    """Codes per level for a catalogue of this size: the power of two near √N/2, between 16 and 256.

    With 256² prefixes a catalogue of 10,000 would leave levels 3 and 4 nothing to decide.

    >>> [automatic_codes(items) for items in (500, 5_000, 20_000, 1_000_000)]
    [16, 32, 64, 256]
    """
    power = 2 ** round(float(np.log2(max(np.sqrt(items) / 2, 1.0))))
    most = 1 << (max(items, 1).bit_length() - 1)  # a tiny catalogue has fewer items than the smallest codebook
    return int(min(max(power, _SMALLEST), _LARGEST, most))


def level_sizes(codes: int | tuple[int, ...], *, levels: int, items: int) -> tuple[int, ...]:
    """Codes of each level: one number for all, one for each, or `AUTO_CODES`.

    >>> level_sizes(AUTO_CODES, levels=3, items=5_000), level_sizes((8, 16, 32), levels=3, items=100)
    ((32, 32, 32), (8, 16, 32))
    """
    if codes == AUTO_CODES:
        codes = automatic_codes(items)
    sizes = (codes,) * levels if isinstance(codes, int) else tuple(codes)
    if len(sizes) != levels:
        raise ConfigError(
            f"{len(sizes)} codebook sizes were given for {levels} levels; give one number, or one a level."
        )
    if min(sizes) < 1:
        raise ConfigError(f"A codebook of {min(sizes)} codes was asked for; wanted at least 1.")
    if max(sizes) > items:
        raise ConfigError(
            f"A codebook of {max(sizes)} codes was asked for and there are only {items:,} items; "
            f"lower --codes to at most {items:,}, or leave it to auto."
        )
    return sizes


def unit_length(vectors: Float[np.ndarray, "item dim"]) -> Float[np.ndarray, "item dim"]:
    """Scale rows to length one; a zero row (an item without text) stays zero."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.sqrt(np.einsum("id,id->i", vectors, vectors, dtype=np.float64))[:, None]
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0, casting="same_kind")


def check_shape(*, levels: int, dim: int, sample: int, seed: int) -> None:
    """Refuse what no quantiser can be made with, before anything is encoded."""
    for name, value, least in (("levels", levels, 1), ("dim", dim, 1), ("sample", sample, 2), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{name} = {value} cannot be used; wanted at least {least}.")


def refuse_identical(vectors: Float[np.ndarray, "item dim"]) -> None:
    """Codebooks cannot be fitted to a single point."""
    if len(vectors) == 0 or not (np.ptp(vectors, axis=0) > 1e-9).any():
        raise ConfigError(
            f"All {len(vectors):,} items have the same vector, so no code could tell them apart; "
            "check which columns hold the text (--text) and how it was encoded."
        )
