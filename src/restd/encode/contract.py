"""What an encoder is: text to vectors, and, for those that can, token states or a fit to the catalogue."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int64
from torch import Tensor

Role = Literal["query", "document"]
"""What a text is in a search; some encoders read the two differently."""


@runtime_checkable
class Encoder(Protocol):
    """Turns texts into float32 vectors of one width."""

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Plain values that tell encoders apart: `name`, `dim`, and `content`, a hash of what decides the vectors."""
        ...

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        """Encode texts, one vector each, in order."""
        ...


@runtime_checkable
class FittedEncoder(Encoder, Protocol):
    """An encoder that is fitted to a catalogue, and stored with whatever was made with it."""

    def state(self) -> tuple[dict[str, np.ndarray], pa.Table]:
        """Return what encodes the same way again: tensors and a table."""
        ...


@runtime_checkable
class TokenEncoder(Protocol):
    """An encoder that also gives a state for every token."""

    @property
    def token_dim(self) -> int | None:
        """Width of the states; None where this model has none after all."""
        ...

    def tokens(self, texts: Sequence[str], *, limit: int) -> tuple[list[Int64[np.ndarray, "_"]], int]:
        """Token ids of each text, at most `limit`, and how many texts were cut."""
        ...

    def token_states(
        self, ids: Int64[Tensor, "row position"], mask: Bool[Tensor, "row position"]
    ) -> Float[Tensor, "row position dim"]:
        """Run the encoder up to its last hidden states."""
        ...


@runtime_checkable
class RoleEncoder(Protocol):
    """An encoder that may read queries and documents differently."""

    def for_role(self, role: Role) -> Encoder:
        """The encoder of texts of this role."""
        ...


def for_role(encoder: Encoder, role: Role) -> Encoder:
    """The encoder of texts of a role: the same one where it makes no difference."""
    return encoder.for_role(role) if isinstance(encoder, RoleEncoder) else encoder
