"""Targets in slots, the one loss that takes them, and the teacher made from an index."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.codes import spaces
from restd.distill.equations import ball_scores, cell_weights, cells, correct, kl_divergence, teacher_distribution
from restd.distill.geometry import Geometry
from restd.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """Target distributions of a batch.

    Several cells may share a slot: the residual's preference depends only on the absolute level, so an ordinary
    teacher has one slot per level and never a tensor of states times horizons. `slot_of[t, s]` is the slot of state t
    and offset s (anything where level t + s does not exist); all cells of a slot have the same target level.
    """

    values: Float[Tensor, "row slot code"]
    slot_of: Int64[Tensor, "level horizon"]


@runtime_checkable
class Teacher(Protocol):
    """Anything that has targets for items, and perhaps for the queries they are relevant to."""

    @property
    def geometry(self) -> Geometry:
        """The space its targets live in."""
        ...

    @property
    def replaced(self) -> float:
        """Share of item-level targets that are not the item's own."""
        ...

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """Targets of items, one row each."""
        ...


def level_slots(levels: int, device: torch.device | None = None) -> Int64[Tensor, "level level"]:
    """One slot per absolute level: cell (t, s) takes slot t + s.

    >>> level_slots(3).tolist()
    [[0, 1, 2], [1, 2, 2], [2, 2, 2]]
    """
    steps = torch.arange(levels, device=device)
    return (steps[:, None] + steps).clamp_max(levels - 1)


@dataclass(frozen=True, slots=True)
class Correction:
    """How targets are made to agree with the stored codes.

    Args:
        floor: least weight of the stored code in the mixture; 0 corrects only where it must.
        margin: by how much the stored code must lead.
        enabled: False leaves the residual's own preference.
    """

    floor: float = 0.1
    margin: float = 0.001
    enabled: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor < 1.0 or not 0.0 <= self.margin < 1.0:
            raise ConfigError(
                f"Correction floor and margin must be at least 0 and below 1, got {self.floor} and {self.margin}."
            )


@dataclass(frozen=True, slots=True, eq=False)
class ResidualTeacher:
    """ResTD's teacher: preferences of the residuals along the stored SID, corrected towards it; made per batch."""

    geometry: Geometry
    temperatures: Float[Tensor, "level"]
    correction: Correction = Correction()

    @property
    def replaced(self) -> float:
        """None: every item has its own."""
        return 0.0

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """One slot per level."""
        values = self.distributions(self.geometry.residuals(rows), self.geometry.stored(rows))
        return Targets(values, level_slots(self.geometry.levels, rows.device))

    def distributions(
        self, residuals: Float[Tensor, "row level dim"], stored: Int64[Tensor, "row level"]
    ) -> Float[Tensor, "row level code"]:
        """Corrected teacher of given residuals and stored codes."""
        books = self.geometry.codebooks
        raw = teacher_distribution(residuals, books.values, books.mask, self.temperatures, space=books.space)
        if not self.correction.enabled:
            return raw
        return correct(raw, stored, floor=self.correction.floor, margin=self.correction.margin)


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryLoss:
    """The loss, and the mean KL of every cell by state and offset (NaN where nothing was valid)."""

    loss: Float[Tensor, ""]
    by_cell: Float[Tensor, "level horizon"]


def trajectory_loss(
    projected: Float[Tensor, "cell row dim"],
    targets: Targets,
    geometry: Geometry,
    temperatures: Float[Tensor, "level"],
    mask: Bool[Tensor, "row level"],
    *,
    horizon: int,
    discount: float = 0.7,
) -> TrajectoryLoss:
    """L_RT = (1/Z) Σ m_{t+s} ρ^s KL(Q̃_{t,s} ‖ P_{t,s}): a weighted mean over the cells of a batch (eq. retrace).

    For a student that is a softmax of distances, KL needs of the teacher only its entropy, its mean codeword
    m = Σ Q̃_j c_j and the mean square e = Σ Q̃_j ‖c_j‖²: KL = -H(Q̃) + logsumexp_j a_j - (2 g·m - e)/τ with
    a_j = (2 g·c_j - ‖c_j‖²)/τ. These are computed once per slot, so no teacher is ever spread over states and horizons,
    and the gradient is (2/τ)(Σ P_j c_j - m) as in eq. rbd-geometry. With nothing valid the loss is exactly zero.

    Distances of the ball have no such mean: there the divergence of every cell is computed code by code.
    """
    levels = geometry.levels
    pairs = cells(levels, horizon)
    state, offset = (torch.tensor(part, device=projected.device) for part in zip(*pairs, strict=True))
    target = state + offset
    slot = targets.slot_of[state, offset]
    if geometry.codebooks.space == "euclidean":
        divergence = _flat_divergence(projected, targets, geometry, temperatures, target=target, slot=slot)
    else:
        divergence = _ball_divergence(projected, targets, geometry, temperatures, target=target, slot=slot)
    weights = cell_weights(mask, pairs, discount=discount).T
    counted = torch.where(weights > 0, divergence, 0.0)
    loss = (weights * counted).sum() / weights.sum().clamp_min(1e-12)
    by_cell = torch.full((levels, horizon), torch.nan, device=projected.device)
    valid = weights > 0
    with torch.no_grad():
        by_cell[state, offset] = counted.sum(1) / valid.sum(1)
    return TrajectoryLoss(loss, by_cell)


def _flat_divergence(
    projected: Float[Tensor, "cell row dim"],
    targets: Targets,
    geometry: Geometry,
    temperatures: Float[Tensor, "level"],
    *,
    target: Int64[Tensor, "cell"],
    slot: Int64[Tensor, "cell"],
) -> Float[Tensor, "cell row"]:
    with torch.autocast(projected.device.type, enabled=False):
        points = projected.float()
        books = geometry.codebooks.values
        squares = books.square().sum(-1)
        level_of_slot = torch.zeros(targets.values.shape[1], dtype=torch.int64, device=slot.device)
        level_of_slot = level_of_slot.index_copy(0, slot, target)
        values = targets.values.float()
        mean = torch.einsum("bsk,skd->bsd", values, books[level_of_slot])
        square = torch.einsum("bsk,sk->bs", values, squares[level_of_slot])
        entropy = torch.special.entr(values).sum(-1)
        tau = temperatures[target][:, None]
        # what does not depend on the states is small: scale it there, and let one product make the scores
        scaled = (2 / temperatures)[:, None, None] * books.transpose(1, 2)
        constant = (-squares / temperatures[:, None]).masked_fill(~geometry.codebooks.mask, -torch.inf)
        scores = torch.baddbmm(constant[target][:, None], points, scaled[target])
        normaliser = scores.logsumexp(dim=-1)
        expected = (2 * (points * mean[:, slot].transpose(0, 1)).sum(-1) - square[:, slot].T) / tau
        return normaliser - expected - entropy[:, slot].T


def _ball_divergence(
    projected: Float[Tensor, "cell row dim"],
    targets: Targets,
    geometry: Geometry,
    temperatures: Float[Tensor, "level"],
    *,
    target: Int64[Tensor, "cell"],
    slot: Int64[Tensor, "cell"],
) -> Float[Tensor, "cell row"]:
    books = geometry.codebooks
    with torch.autocast(projected.device.type, enabled=False):
        points = spaces.into_space(projected.float(), books.space).transpose(0, 1)
        scores = ball_scores(points, books.values[target], books.mask[target], temperatures[target])
        return kl_divergence(targets.values.float()[:, slot], scores.log_softmax(dim=-1)).T
