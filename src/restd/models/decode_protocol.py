"""Decoding one level at a time, with a cache: what search needs of a network, and nothing else.

A stepper is a snapshot of a backbone's weights made for decoding. Rows are laid out as [query, beam]: what a query's
beams share, the keys and values of its memory, is computed once and never repeated.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

Normalizer = Literal["full_vocab", "level_codes"]
"""Over what log-probabilities sum to one: every token the model could generate, or the codes of the level."""


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What the encoder made of the inputs; the decoder attends to it. A single position is allowed."""

    states: Float[Tensor, "text position width"]
    mask: Bool[Tensor, "row position"]
    text: Int64[Tensor, "row"] | None = None
    """Whose states each row sees, where several rows see parts of the same; None where each has its own."""
    latent: Float[Tensor, "row dim"] | None = None
    """Each row's own point in the space that the index quantised, where the backbone follows it; None elsewhere."""

    def __post_init__(self) -> None:
        if self.text is None and len(self.states) != len(self.mask):
            raise ValueError(
                f"A memory of {len(self.states)} texts was passed for {len(self.mask)} rows. Pass `text`, the "
                "text of each row."
            )

    def apart(self) -> "Memory":
        """The same with states of its own for every row."""
        return self if self.text is None else self.take(torch.arange(len(self.mask), device=self.mask.device))

    def take(self, rows: Int64[Tensor, "taken"]) -> "Memory":
        """Choose, repeat or reorder rows, each with states of its own."""
        latent = None if self.latent is None else self.latent[rows]
        return Memory(self.states[rows if self.text is None else self.text[rows]], self.mask[rows], latent=latent)


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """Everything known so far of some prefixes; never changed in place, so that a search may branch."""

    past: tuple[tuple[Tensor, ...], ...]
    """Keys and values of each layer's own positions, one tensor per position: [query, beam, 2, head, part]. A position
    that all beams of a query share, as the start and latent steps are, has a single beam."""
    memory: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values of each layer's memory: [query, head, position, part]."""
    seen: Bool[Tensor, "query 1 1 position"] | Float[Tensor, "query head 1 position"] | None
    """Which positions of the memory are real, or what is added to attention to each; None where all count alike."""
    level: int = 0
    """Codes so far."""
    first: Float[Tensor, "query 1 width"] | None = None
    """State that predicts the first code; dense retrieval and reranking read it."""
    residual: Float[Tensor, "query beam dim"] | None = None
    """What the codes so far left of the query's latent, where the backbone follows it; a single beam where all share
    it, as before the first code."""

    @property
    def length(self) -> int:
        """Positions so far, latent ones included."""
        return len(self.past[0])


@runtime_checkable
class Stepper(Protocol):
    """One step of decoding after another."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        ...

    def start(self, memory: Memory) -> tuple[Float[Tensor, "query 1 code"], Cache]:
        """Log-probabilities of the first code, one row per query; latent steps happen here, once."""
        ...

    def step(
        self, cache: Cache, parents: Int64[Tensor, "query beam"], codes: Int64[Tensor, "query beam"]
    ) -> tuple[Float[Tensor, "query beam code"], Cache]:
        """Log-probabilities of the next code after `codes` were appended to the beams `parents`."""
        ...
