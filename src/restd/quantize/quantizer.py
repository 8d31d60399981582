"""The seam between quantisers and the index: latents, codebooks, and a state that can be stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float16

from restd.codes import Codebooks
from restd.errors import ConfigError
from restd.quantize.registry import QUANTIZERS


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
        """Plain values that, with the tensors, restore this quantiser; `kind` is its name in `QUANTIZERS`."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Part of a projection as weights that a model can start from: linear layers with ReLU between them.

    Args:
        unit: whether inputs are scaled to length one first.
        weights: of each layer.
        biases: of each layer.
    """

    unit: bool
    weights: tuple[Float[np.ndarray, "_ _"], ...]
    biases: tuple[Float[np.ndarray, "_"], ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of the input and of what each layer gives."""
        return (self.weights[0].shape[1], *(len(weight) for weight in self.weights))


@runtime_checkable
class StagedQuantizer(Quantizer, Protocol):
    """A quantiser that can say what `latents` computes as a stage, the last rounding aside."""

    def stage(self) -> Stage:
        """The projection into the latent space."""
        ...


def unit_length(vectors: Float[np.ndarray, "item dim"]) -> Float[np.ndarray, "item dim"]:
    """Scale rows to length one; a zero row (an item without text) stays zero."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.sqrt(np.einsum("id,id->i", vectors, vectors, dtype=np.float64))[:, None]
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0, casting="same_kind")


def to_latents(values: Float[np.ndarray, "item dim"]) -> Float16[np.ndarray, "item dim"]:
    """Round to float16; values beyond its range become infinite and are refused by `check_latents`."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def check_latents(latents: Float16[np.ndarray, "item dim"]) -> None:
    """Refuse latents that float16 cannot hold: their codes would be arbitrary."""
    if not np.isfinite(latents).all():
        raise ConfigError(
            "Some latents are NaN or outside the range of float16 (±65,504). Keep kmeans.normalize on, or scale the "
            "vectors down."
        )


def refuse_identical(vectors: Float[np.ndarray, "item dim"]) -> None:
    """Codebooks cannot be fitted to a single point."""
    if len(vectors) == 0 or not (np.ptp(vectors, axis=0) > 1e-9).any():
        raise ConfigError(
            f"All {len(vectors):,} items have the same vector, so no code could tell them apart. Check which columns "
            "hold the text (--text), and how it was encoded."
        )


def restore_bare_quantizer(
    settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray], codebooks: Codebooks
) -> Quantizer:
    """Restore any registered quantiser from what its own `settings` and `tensors` gave."""
    restore = QUANTIZERS[settings["kind"]].restore
    assert restore is not None
    return restore(settings, arrays, codebooks)
