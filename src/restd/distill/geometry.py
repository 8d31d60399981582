"""What the quantiser knew, as tensors: latents, stored SIDs, codebooks, and the residuals that follow from them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Float16, Int16, Int64
from torch import Tensor

from restd.errors import ConfigError

if TYPE_CHECKING:
    from restd.index import SidIndex


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Latents and stored SIDs of every item with the codebooks they belong to.

    Levels may have codebooks of different sizes: `sizes` says how many codes of the padded `codebooks` are real. SIDs
    may be longer than there are codebooks; what is beyond them (a disambiguation code) has no teacher and is ignored.
    """

    latents: Float16[Tensor, "item dim"]
    sids: Int16[Tensor, "item stored_level"]
    codebooks: Float[Tensor, "level code dim"]
    sizes: tuple[int, ...]

    @classmethod
    def of(
        cls,
        codebooks: Tensor,
        latents: Tensor,
        sids: Tensor,
        *,
        sizes: tuple[int, ...] | None = None,
    ) -> "Geometry":
        """Take [level, code, dim], [item, dim] and [item, level] made anywhere, after checking that they fit."""
        if codebooks.ndim != 3 or sids.ndim != 2:
            raise ConfigError(
                f"Codebooks of shape {tuple(codebooks.shape)} came with SIDs of shape {tuple(sids.shape)}; wanted "
                "[level, code, dim] and [item, level]."
            )
        levels, codes, dim = codebooks.shape
        sizes = sizes or (codes,) * levels
        if latents.shape != (len(sids), dim) or sids.shape[1] < levels:
            raise ConfigError(
                f"Codebooks [level, code, dim] = {tuple(codebooks.shape)} came with latents {tuple(latents.shape)} and "
                f"SIDs {tuple(sids.shape)}; wanted latents [item, {dim}] and SIDs [item, {levels} or more]."
            )
        stored = sids[:, :levels]
        outside = (stored < 0) | (stored >= torch.tensor(sizes))
        if outside.any():
            row, level = (int(value) for value in outside.nonzero()[0])
            raise ConfigError(
                f"Item row {row} has code {int(stored[row, level])} at level {level + 1}, whose codebook holds 0 to "
                f"{sizes[level] - 1}; these SIDs and codebooks are not of the same index."
            )
        if not (torch.isfinite(latents).all() and torch.isfinite(codebooks).all()):
            raise ConfigError("Latents or codebooks hold NaN or infinity; finite numbers are wanted.")
        return cls(latents.half(), sids.to(torch.int16), codebooks.float(), sizes)

    @classmethod
    def of_index(cls, index: "SidIndex") -> "Geometry":
        """Take an index; one without codebooks or latents is refused."""
        latents, codebooks = index.geometry()
        values, sids = torch.from_numpy(codebooks.values), torch.from_numpy(index.sids.copy())
        return cls(torch.from_numpy(latents), sids, values, codebooks.sizes)

    @property
    def levels(self) -> int:
        """Levels that have a codebook."""
        return len(self.sizes)

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.latents)

    @property
    def code_mask(self) -> Bool[Tensor, "level code"]:
        """Which entries of the padded codebooks are real codes."""
        places = torch.arange(self.codebooks.shape[1], device=self.codebooks.device)
        return places < torch.tensor(self.sizes, device=self.codebooks.device)[:, None]

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
        return Geometry(self.latents.to(device), self.sids.to(device), self.codebooks.to(device), self.sizes)


def trajectory(
    latents: Float[Tensor, "row dim"], sids: Int64[Tensor, "row level"], codebooks: Float[Tensor, "level code dim"]
) -> Float[Tensor, "row step dim"]:
    """Residuals r_0 .. r_L along stored SIDs: r_0 = x, r_t = r_{t-1} - c_{t, y_t}; float32 whatever the latents are.

    >>> books = torch.tensor([[[1.0], [4.0]], [[0.0], [0.5]]])
    >>> trajectory(torch.tensor([[4.5]]), torch.tensor([[1, 1]]), books).tolist()
    [[[4.5], [0.5], [0.0]]]
    """
    levels = torch.arange(codebooks.shape[0], device=sids.device)
    chosen = codebooks[levels, sids]
    start = latents.float()[:, None]
    return torch.cat([start, start - chosen.cumsum(dim=1)], dim=1)
