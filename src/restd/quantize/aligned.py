"""A quantiser behind an alignment: items and queries are mapped into one space before anything is quantised."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Float16

from restd.codes import Codebooks
from restd.errors import ConfigError
from restd.quantize.alignment import Alignment
from restd.quantize.quantizer import Quantizer, Stage, StagedQuantizer, restore_bare_quantizer


@dataclass(frozen=True, slots=True, eq=False)
class AlignedQuantizer:
    """Any quantiser of aligned embeddings; it reconstructs aligned embeddings, not the encoder's."""

    alignment: Alignment
    inner: Quantizer

    @property
    def codebooks(self) -> Codebooks:
        """Codewords of every level."""
        return self.inner.codebooks

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values of the quantiser behind the alignment; the alignment is all tensors."""
        return self.inner.settings

    def latents(self, vectors: Float[np.ndarray, "item input"]) -> Float16[np.ndarray, "item dim"]:
        """Align item embeddings and project them into the space that is quantised."""
        return self.inner.latents(self.alignment.items(vectors))

    def query_latents(self, vectors: Float[np.ndarray, "query input"]) -> Float16[np.ndarray, "query dim"]:
        """Align query embeddings and project them into the space that is quantised."""
        return self.inner.latents(self.alignment.queries(vectors))

    def reconstruct(self, latents: Float[np.ndarray, "item dim"]) -> Float[np.ndarray, "item aligned"]:
        """Map latents back to aligned embeddings."""
        return self.inner.reconstruct(latents)

    def prepared(self, vectors: Float[np.ndarray, "item input"]) -> Float[np.ndarray, "item aligned"]:
        """Aligned embeddings, as `reconstruct` should give them back."""
        return self.inner.prepared(self.alignment.items(vectors))

    def tensors(self) -> dict[str, np.ndarray]:
        """Everything that was learned, codebooks aside."""
        return {**self.inner.tensors(), **self.alignment.tensors()}


def query_latents(quantizer: Quantizer, vectors: Float[np.ndarray, "query input"]) -> Float16[np.ndarray, "query dim"]:
    """Query embeddings in the space that is quantised; without an alignment they are projected as items are."""
    if isinstance(quantizer, AlignedQuantizer):
        return quantizer.query_latents(vectors)
    return quantizer.latents(vectors)


def query_stages(quantizer: Quantizer) -> tuple[Stage, ...]:
    """What `query_latents` computes, stage by stage; an error for a quantiser that cannot say it."""
    inner = quantizer.inner if isinstance(quantizer, AlignedQuantizer) else quantizer
    if not isinstance(inner, StagedQuantizer):
        raise ConfigError(
            f"The quantiser {inner.settings['kind']!r} has no `stage` that says how it projects embeddings, so nothing "
            "can start from its projection. Build the index with kmeans or rqvae, or do without (compact.geometry)."
        )
    if not isinstance(quantizer, AlignedQuantizer):
        return (inner.stage(),)
    alignment = quantizer.alignment
    first = Stage(True, (alignment.query_map,), (alignment.query_shift,))
    return first, replace(inner.stage(), unit=True)  # aligned embeddings have length one


def input_width(quantizer: Quantizer, latents: Float[np.ndarray, "item dim"]) -> int:
    """Width of the embeddings that a quantiser reads; `latents` are any that it made."""
    if isinstance(quantizer, AlignedQuantizer):
        return quantizer.alignment.input_dim
    return quantizer.reconstruct(latents[:1]).shape[1]


def restore_quantizer(settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray], codebooks: Codebooks) -> Quantizer:
    """Restore any registered quantiser from what its `settings` and `tensors` gave, with its alignment."""
    alignment = Alignment.of_tensors(arrays)
    others = {} if alignment is None else alignment.tensors()
    own = {name: array for name, array in arrays.items() if name not in others}
    quantizer = restore_bare_quantizer(settings, own, codebooks)
    return quantizer if alignment is None else AlignedQuantizer(alignment, quantizer)
