"""What a generative retriever must offer, whatever network it is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.encode import Inputs, Ragged
from restd.errors import ConfigError
from restd.models.decoding import Memory, Normalizer, Stepper


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Decoder states under teacher forcing."""

    states: Float[Tensor, "row level width"]
    """The states that predict each code; `states[:, 0]` predicts the first one."""
    latents: Float[Tensor, "row step width"] | None = None
    """States of the latent steps; the last of them is `states[:, 0]`."""
    ending: Float[Tensor, "row width"] | None = None
    """The state that predicts the end, where the model has an end-of-sequence token."""


@runtime_checkable
class Backbone(Protocol):
    """A generative retriever: an `nn.Module` with these methods."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        ...

    @property
    def width(self) -> int:
        """Width of the decoder's states."""
        ...

    def prepare(self, texts: Any, *, task: str = "query", cache: Path | None = None) -> Ragged:
        """Turn texts (TIGER: histories) into what `encode` reads; `cache` is a folder that may keep what was costly."""
        ...

    def encode(self, inputs: Inputs) -> Memory:
        """Read a batch."""
        ...

    def states(self, memory: Memory, sids: Int64[Tensor, "row given"]) -> Output:
        """States that predict the codes after none, one, … all of the given ones: one more than given, at most all."""
        ...

    def logits(self, states: Float[Tensor, "row level width"]) -> Float[Tensor, "row level code"]:
        """Scores over each level's codes, from the first level on; codes that a level lacks get -inf."""
        ...

    def sid_loss(self, output: Output, sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
        """The model's own generation loss, a mean over its positions (the end included where there is one)."""
        ...

    def route(self, memory: Memory, *, width: int) -> Int64[Tensor, "row width"] | None:
        """The `width` likeliest categories of each row; None where the model knows no categories."""
        ...

    def stepper(self, *, normalizer: Normalizer = "full_vocab") -> Stepper:
        """Copy what decodes level by level, as it is now and without dropout."""
        ...


def code_mask(sizes: Sequence[int]) -> Bool[Tensor, "level code"]:
    """Which codes each level has.

    >>> code_mask((1, 3)).tolist()
    [[True, False, False], [True, True, True]]
    """
    return torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]


def code_loss(logits: Float[Tensor, "row level code"], sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of the stored codes over rows and levels."""
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), sids.flatten())


def refuse_bad_steps(steps: int) -> None:
    """Latent steps are counted from none."""
    if steps < 0:
        raise ConfigError(f"{steps} latent steps were asked for; wanted 0 (none) or more.")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw first weights from a seed, and leave the caller's randomness where it was.

    >>> before = torch.get_rng_state()
    >>> with seeded(1):
    ...     first = nn.Linear(2, 2)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
