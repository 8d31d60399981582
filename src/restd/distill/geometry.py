"""What the quantiser knew, as tensors: latents, stored SIDs, codebooks, and the residuals that follow from them."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float16, Int16, Int64
from torch import Tensor

from restd.codes import Codebooks, as_tensor, check_codes, spaces, trajectory
from restd.errors import ConfigError


@runtime_checkable
class ResidualIndex(Protocol):
    """What distillation needs of an index; `restd.index.SidIndex` has it."""

    @property
    def sids(self) -> Int16[np.ndarray, "item stored_level"]:
        """Stored SIDs."""
        ...

    @property
    def quantizer(self) -> Any:
        """What made the codes; its `settings["kind"]` decides about temperature mode `auto`. None if unknown."""
        ...

    def latents_and_codebooks(self) -> tuple[Float16[np.ndarray, "item dim"], Codebooks]:
        """Latents and codebooks; an error where the index has none."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Latents and stored SIDs of every item with the codebooks they belong to.

    SIDs may be longer than there are codebooks; what is beyond them (a disambiguation code) has no teacher and is
    ignored.
    """

    latents: Float16[Tensor, "item dim"]
    sids: Int16[Tensor, "item stored_level"]
    codebooks: Codebooks

    @classmethod
    def of(
        cls,
        codebooks: Tensor | Codebooks,
        latents: Tensor,
        sids: Tensor,
        *,
        sizes: tuple[int, ...] | None = None,
    ) -> "Geometry":
        """Take [level, code, dim], [item, dim] and [item, level] made anywhere, after checking that they fit.

        Args:
            codebooks: `Codebooks`, or one tensor padded to the largest level.
            latents: what was quantised.
            sids: stored codes.
            sizes: codes of each level where `codebooks` is a padded tensor; by default nothing is padding.
        """
        books = codebooks if isinstance(codebooks, Codebooks) else _codebooks_of(codebooks, sizes)
        if isinstance(codebooks, Codebooks) and sizes not in (None, books.sizes):
            raise ConfigError(f"The codebooks have sizes {books.sizes}, but sizes={sizes} was passed. Leave sizes out.")
        if sids.ndim != 2 or latents.shape != (len(sids), books.dim) or sids.shape[1] < books.levels:
            raise ConfigError(
                f"Codebooks {tuple(books.values.shape)} need latents [item, {books.dim}] and SIDs [item, "
                f"{books.levels} or more] of the same items; got {tuple(latents.shape)} and {tuple(sids.shape)}."
            )
        check_codes(sids, books)
        halved = latents.half()  # checked after halving: what float16 cannot hold is infinite only then
        if not (torch.isfinite(halved).all() and torch.isfinite(books.values).all()):
            raise ConfigError(
                "Latents and codebooks must be finite, and latents must fit float16 (at most 65,504 in size). "
                "Scale latents and codebooks down together if they do not."
            )
        spaces.refuse_outside(halved, books.space, what="Latents")
        return cls(halved, sids.to(torch.int16), books)

    @classmethod
    def of_index(cls, index: ResidualIndex) -> "Geometry":
        """Take an index; one without codebooks or latents is refused."""
        latents, codebooks = index.latents_and_codebooks()
        return cls(as_tensor(latents), torch.from_numpy(index.sids.copy()), codebooks)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        return self.codebooks.sizes

    @property
    def levels(self) -> int:
        """Levels that have a codebook."""
        return self.codebooks.levels

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.latents)

    def stored(self, rows: Int64[Tensor, "row"]) -> Int64[Tensor, "row level"]:
        """Stored codes of items, codebook levels only."""
        return self.sids[rows, : self.levels].long()

    def residuals(self, rows: Int64[Tensor, "row"]) -> Float[Tensor, "row level dim"]:
        """Residual that each level quantises, r_0 .. r_{L-1}, along the stored SIDs."""
        return trajectory(self.latents[rows], self.stored(rows), self.codebooks)[:, :-1]

    def residuals_by_level(self, rows: Int64[Tensor, "row level"]) -> Float[Tensor, "row level dim"]:
        """As `residuals`, but each level from an item of its own: entry (b, l) is r_l of item `rows[b, l]`."""
        steps = self.residuals(rows.flatten()).view(*rows.shape, self.levels, -1)
        return steps.diagonal(dim1=1, dim2=2).transpose(1, 2)

    def to(self, device: torch.device | str) -> "Geometry":
        """Return a copy on a device."""
        return Geometry(self.latents.to(device), self.sids.to(device), self.codebooks.to(device))


def _codebooks_of(values: Tensor, sizes: tuple[int, ...] | None) -> Codebooks:
    if values.ndim != 3:
        raise ConfigError(f"Expected codebooks [level, code, dim], got shape {tuple(values.shape)}.")
    levels, codes, _ = values.shape
    return Codebooks(values.float(), (codes,) * levels if sizes is None else tuple(sizes))
