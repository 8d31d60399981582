"""Controls: teachers that keep part of what ResTD's teacher knows and remove the rest.

Each is built once, is deterministic from its seed, and says which share of item-level targets it replaced. Rows stand
for item ids wherever an order is needed.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd._splitmix import splitmix64
from restd.distill.equations import cells, correct, teacher_distribution
from restd.distill.geometry import Geometry
from restd.distill.targets import ResidualTeacher, Targets, level_slots
from restd.errors import ConfigError

_ROWS = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class HardTeacher:
    """One-hot targets of the stored codes, at every horizon: what the identifier alone says."""

    geometry: Geometry

    @property
    def replaced(self) -> float:
        """All of them."""
        return 1.0

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """One slot per level."""
        return Targets(one_hot(self.geometry, rows), level_slots(self.geometry.levels, rows.device))


@dataclass(frozen=True, slots=True, eq=False)
class FutureHardTeacher:
    """RBD + future hard SID: the residual's preference at the current level, one-hot codes at later ones."""

    base: ResidualTeacher
    horizon: int | None = None
    """Offsets that are supervised, which decide about `replaced` alone; as many as there are levels by default."""

    @property
    def geometry(self) -> Geometry:
        """The base teacher's."""
        return self.base.geometry

    @property
    def replaced(self) -> float:
        """All future targets, and they alone: of all cells within the horizon, those with an offset."""
        levels = self.geometry.levels
        return 1 - levels / len(cells(levels, min(self.horizon or levels, levels)))

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """Two slots per level: the soft one for offset 0, the hard one for all others."""
        own = self.base.targets(rows)
        slots = own.slot_of + self.geometry.levels
        slots[:, 0] = own.slot_of[:, 0]
        return Targets(torch.cat([own.values, one_hot(self.geometry, rows)], dim=1), slots)


def one_hot(geometry: Geometry, rows: Int64[Tensor, "row"]) -> Float[Tensor, "row level code"]:
    """Stored codes as distributions."""
    codes = geometry.codebooks.values.shape[1]
    return torch.nn.functional.one_hot(geometry.stored(rows), codes).float()


@dataclass(frozen=True, slots=True, eq=False)
class DonorTeacher:
    """Every item-level target is that of a donor: `donors[item, level]` is a row, its own where nothing changed."""

    base: ResidualTeacher
    donors: Int64[Tensor, "item level"]
    considered: Int64[Tensor, "train"]
    """Rows that took part; others keep their own."""

    @property
    def geometry(self) -> Geometry:
        """The base teacher's."""
        return self.base.geometry

    @property
    def replaced(self) -> float:
        """Share of the considered item-level targets that come from another item."""
        own = self.considered[:, None]
        return float((self.donors[self.considered] != own).float().mean())

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """One slot per level, each from its donor, corrected towards the donor's own code."""
        donors = self.donors[rows]
        levels = torch.arange(self.geometry.levels, device=rows.device)
        stored = self.geometry.sids[donors, levels].long()
        values = self.base.distributions(self.geometry.residuals_by_level(donors), stored)
        return Targets(values, level_slots(self.geometry.levels, rows.device))


def shuffled(base: ResidualTeacher, train: Int64[Tensor, "train"], *, seed: int) -> DonorTeacher:
    """Each training item takes the whole trajectory of another (a derangement), hard codes included."""
    if len(train) < 2:
        raise ConfigError(f"Expected at least 2 training items to shuffle, got {len(train)}.")
    generator = torch.Generator().manual_seed(seed)
    order = train.sort().values[torch.randperm(len(train), generator=generator)]
    donors = own_donors(base.geometry)
    donors[order] = order.roll(1)[:, None].expand(-1, base.geometry.levels)
    return DonorTeacher(base, donors, train)


def entropy_shuffle(base: ResidualTeacher, train: Int64[Tensor, "train"], *, bins: int = 10) -> DonorTeacher:
    """Within level, stored code and entropy bin, teachers move on by one item in row order.

    An item alone in its bin takes the teacher of the item with the nearest entropy among those with its code (ties by
    row); alone with its code, it keeps its own.
    """
    geometry = base.geometry
    ordered = train.sort().values
    entropy = torch.cat([torch.special.entr(base.targets(rows).values).sum(-1) for rows in ordered.split(_ROWS)])
    donors = own_donors(geometry)
    stored = geometry.stored(ordered)
    for level in range(geometry.levels):
        rank = entropy[:, level].argsort(stable=True).argsort()
        decile = rank * bins // len(ordered)
        for code in stored[:, level].unique():
            members = (stored[:, level] == code).nonzero()[:, 0]
            donors[ordered[members], level] = ordered[_cyclic_donors(members, decile[members], entropy[members, level])]
    return DonorTeacher(base, donors, train)


def _cyclic_donors(
    members: Int64[Tensor, "member"], group: Int64[Tensor, "member"], entropy: Float[Tensor, "member"]
) -> Int64[Tensor, "member"]:
    donors = members.clone()
    if len(members) == 1:
        return donors
    for number in group.unique():
        inside = (group == number).nonzero()[:, 0]
        if len(inside) > 1:
            donors[inside] = members[inside.roll(1)]
        else:
            gap = (entropy - entropy[inside]).abs()
            gap[inside] = torch.inf
            nearest = (gap == gap.min()).nonzero()[0, 0]  # the first of equals: ties go by row
            donors[inside] = members[nearest]
    return donors


def own_donors(geometry: Geometry) -> Int64[Tensor, "item level"]:
    """Every item its own donor."""
    return torch.arange(geometry.items, device=geometry.latents.device)[:, None].repeat(1, geometry.levels)


@dataclass(frozen=True, slots=True, eq=False)
class TableTeacher:
    """Targets that depend on the stored code alone: `table[level, code]` is a distribution."""

    geometry: Geometry
    table: Float[Tensor, "level code target"]

    @property
    def replaced(self) -> float:
        """All of them."""
        return 1.0

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """One slot per level."""
        levels = torch.arange(self.geometry.levels, device=rows.device)
        return Targets(self.table[levels, self.geometry.stored(rows)], level_slots(self.geometry.levels, rows.device))


def codebook_only(base: ResidualTeacher) -> TableTeacher:
    """softmax(-‖c_y - c_j‖² / τ): the codebook's own geometry, no item's residual. Corrected by the same rule."""
    geometry = base.geometry
    levels, codes, _ = geometry.codebooks.values.shape
    points = geometry.codebooks.values.transpose(0, 1)  # every codeword as if it were a residual, [code, level, dim]
    books = geometry.codebooks
    table = teacher_distribution(points, books.values, books.mask, base.temperatures, space=books.space)
    if base.correction.enabled:
        own = torch.arange(codes)[:, None].expand(-1, levels).to(points.device)
        table = correct(table, own, floor=base.correction.floor, margin=base.correction.margin)
    return TableTeacher(geometry, table.transpose(0, 1).contiguous())


def code_mean(base: ResidualTeacher, train: Int64[Tensor, "train"]) -> TableTeacher:
    """Mean teacher of the training items with the same level and code (eq. code-conditioned-teacher).

    A code that no training item has takes the codebook-only target.
    """
    geometry = base.geometry
    levels, codes, _ = geometry.codebooks.values.shape
    total = torch.zeros(levels, codes, codes, device=geometry.latents.device)
    count = torch.zeros(levels, codes, device=geometry.latents.device)
    for rows in train.split(_ROWS):
        values, stored = base.targets(rows).values, geometry.stored(rows)
        for level in range(levels):
            total[level].index_add_(0, stored[:, level], values[:, level])
            count[level].index_add_(0, stored[:, level], torch.ones(len(rows), device=count.device))
    mean = total / count.clamp_min(1)[..., None]
    table = torch.where(count[..., None] > 0, mean, codebook_only(base).table)
    return TableTeacher(geometry, table)


@dataclass(frozen=True, slots=True, eq=False)
class PermutedTeacher:
    """Non-target permutation: an item's own probabilities, with those of the other codes permuted.

    The permutation of an item and level is a function of seed, row and level, and is made again whenever it is needed.
    """

    base: ResidualTeacher
    seed: int

    @property
    def geometry(self) -> Geometry:
        """The base teacher's."""
        return self.base.geometry

    @property
    def replaced(self) -> float:
        """All of them."""
        return 1.0

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """One slot per level."""
        own = self.base.targets(rows)
        levels, codes = own.values.shape[1:]
        stored = self.geometry.stored(rows)
        places = torch.arange(levels * codes, device=rows.device).view(levels, codes)
        draws = scramble(scramble(rows[:, None, None] + scramble(torch.tensor(self.seed))) + places)
        # sorting random numbers permutes the real other codes; the stored code and the padding sort to the end
        free = self.geometry.codebooks.mask[None].expand(len(rows), -1, -1).scatter(-1, stored[..., None], value=False)
        last = torch.iinfo(torch.int64).max
        order = torch.where(free, draws, last).argsort(dim=-1)
        slots = torch.where(free, places[0], last).sort(dim=-1).values.clamp_max(codes - 1)
        count = free.sum(-1, keepdim=True)
        dealt = own.values.gather(-1, order)
        target = torch.where(places[0] < count, slots, codes)  # what was not dealt goes to a column that is cut off
        spread = torch.cat([own.values, own.values[..., :1]], dim=-1).scatter(-1, target, dealt)
        return replace(own, values=spread[..., :codes])


def scramble(values: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Well-mixed non-negative integers, the same for the same input everywhere (the finaliser of splitmix64).

    >>> scramble(torch.tensor([1, 2])).tolist() == scramble(torch.tensor([1, 2])).tolist()
    True
    """
    return splitmix64(values) & 0x7FFFFFFFFFFFFFFE
