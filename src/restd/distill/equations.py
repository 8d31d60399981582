"""The mathematics of residual trajectory distillation, one function per equation; states may come from anywhere."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.codes import Space, spaces
from restd.errors import ConfigError

# a share of a smaller mass would be made of float32's last bits
DIVISIBLE_MASS = 1e-30


def code_scores(
    points: Float[Tensor, "*batch level dim"],
    codebooks: Float[Tensor, "level code dim"],
    code_mask: Bool[Tensor, "level code"],
    temperatures: Float[Tensor, "level"],
    *,
    space: Space = "euclidean",
) -> Float[Tensor, "*batch level code"]:
    """Negative squared distances over the temperature, up to a constant per point; padding scores -inf.

    -‖p - c‖² / τ = (2 p·c - ‖c‖² - ‖p‖²) / τ, and ‖p‖² cancels in every softmax. Autocast is switched off inside. The
    product is a float32 matrix product like any other: `torch.set_float32_matmul_precision` applies to it. In the ball
    nothing cancels: the scores are the distances themselves.
    """
    if space != "euclidean":
        return ball_scores(points, codebooks, code_mask, temperatures)
    with torch.autocast(points.device.type, enabled=False):
        products = torch.einsum("...ld,lkd->...lk", points.float(), codebooks)
        scores = (2 * products - codebooks.square().sum(-1)) / temperatures[:, None]
        return scores.masked_fill(~code_mask, -torch.inf)


def ball_scores(
    points: Float[Tensor, "*batch level dim"],
    codebooks: Float[Tensor, "level code dim"],
    code_mask: Bool[Tensor, "level code"],
    temperatures: Float[Tensor, "level"],
) -> Float[Tensor, "*batch level code"]:
    """-d(p, c)² / τ in the Poincaré ball, for points that are in it; padding scores -inf."""
    with torch.autocast(points.device.type, enabled=False):
        *batch, levels, dim = points.shape
        by_level = points.float().reshape(-1, levels, dim).transpose(0, 1)
        distances = spaces.squared_distances(by_level, codebooks, "poincare").transpose(0, 1)
        scores = -distances.reshape(*batch, levels, -1) / temperatures[:, None]
        return scores.masked_fill(~code_mask, -torch.inf)


def teacher_distribution(
    residuals: Float[Tensor, "row level dim"],
    codebooks: Float[Tensor, "level code dim"],
    code_mask: Bool[Tensor, "level code"],
    temperatures: Float[Tensor, "level"],
    *,
    space: Space = "euclidean",
) -> Float[Tensor, "row level code"]:
    """Q_t(j) = softmax_j(-‖r_{t-1} - c_{t,j}‖² / τ_T) (eq. teacher; eq. mhteacher with t + s for t).

    >>> books = torch.tensor([[[0.0], [1.0]]])
    >>> every = torch.ones(1, 2, dtype=torch.bool)
    >>> q = teacher_distribution(torch.tensor([[[0.0]]]), books, every, torch.tensor([1.0]))
    >>> [round(value, 4) for value in q[0, 0].tolist()]
    [0.7311, 0.2689]
    """
    return code_scores(residuals, codebooks, code_mask, temperatures, space=space).softmax(dim=-1)


def student_distribution(
    projected: Float[Tensor, "row level dim"],
    codebooks: Float[Tensor, "level code dim"],
    code_mask: Bool[Tensor, "level code"],
    temperatures: Float[Tensor, "level"],
    *,
    space: Space = "euclidean",
) -> Float[Tensor, "row level code"]:
    """P_{t,s}(j) = softmax_j(-‖g_s(h_t) - c_{t+s,j}‖² / τ_S) (eq. student, eq. mhstudent), by target level.

    The same map as the teacher's, from a projected state instead of a residual: both sides share the geometry. In the
    ball, what a head projects is a vector at the origin, and the exponential map makes it a point.
    """
    points = spaces.into_space(projected, space)
    return code_scores(points, codebooks, code_mask, temperatures, space=space).softmax(dim=-1)


def correction_weight(
    stored: Float[Tensor, "*cell"], rival: Float[Tensor, "*cell"], *, margin: float = 0.001
) -> Float[Tensor, "*cell"]:
    """Smallest mixing weight ε* that lets the stored code lead its best rival by `margin` (eq. collision-minimal).

    ε* = clip((q_max - q_y + δ) / (1 - q_y + q_max), 0, 1): zero where the stored code leads already, never above
    (1 + δ) / 2.

    >>> correction_weight(torch.tensor(0.2), torch.tensor(0.3)).item() # doctest: +ELLIPSIS
    0.0918...
    """
    return ((rival - stored + margin) / (1 - stored + rival).clamp_min(1e-12)).clamp(0.0, 1.0)


def correct(
    teacher: Float[Tensor, "row level code"],
    stored: Int64[Tensor, "row level"],
    *,
    floor: float = 0.1,
    margin: float = 0.001,
) -> Float[Tensor, "row level code"]:
    """Q̃ = (1 - ε) Q + ε onehot(y) with ε = max(floor, ε*) (eq. collision, eq. collision_eps).

    Ratios between the other codes stay as they are. The floor also sharpens targets that need no correction.
    """
    at = stored[..., None]
    own = teacher.gather(-1, at)
    rival = teacher.scatter(-1, at, 0.0).amax(dim=-1, keepdim=True)
    weight = correction_weight(own, rival, margin=margin).clamp_min(floor)
    return (teacher * (1 - weight)).scatter_add(-1, at, weight)


def cells(levels: int, horizon: int) -> tuple[tuple[int, int], ...]:
    """Return the valid pairs of state and offset, 0-based: state t, offset s, target level t + s < L; offset by offset.

    >>> cells(3, 2)
    ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1))
    """
    if not 1 <= horizon <= levels:
        raise ConfigError(f"horizon must be between 1 and the number of levels ({levels}), got {horizon}.")
    return tuple((state, offset) for offset in range(horizon) for state in range(levels - offset))


def cell_weights(
    mask: Bool[Tensor, "row level"], pairs: Sequence[tuple[int, int]], *, discount: float
) -> Float[Tensor, "row cell"]:
    """m_{t+s} ρ^s of every cell (eq. retrace); their sum is the normaliser Z."""
    if not 0.0 < discount <= 1.0:
        raise ConfigError(f"discount must be above 0 and at most 1, got {discount}.")
    targets = torch.tensor([state + offset for state, offset in pairs], device=mask.device)
    faded = torch.tensor([discount**offset for _, offset in pairs], device=mask.device)
    return mask[:, targets] * faded


def horizon_mass(mask: Bool[Tensor, "row level"], *, horizon: int, discount: float) -> Float[Tensor, "horizon"]:
    """Share w_s of the objective that each offset has (eq. horizon-mass); sums to one wherever anything is valid.

    >>> horizon_mass(torch.ones(1, 4, dtype=torch.bool), horizon=4, discount=0.7).numpy().round(4).tolist()
    [0.5389000177383423, 0.28290000557899475, 0.13199999928474426, 0.04619999974966049]
    """
    pairs = cells(mask.shape[1], horizon)
    weights = cell_weights(mask, pairs, discount=discount).sum(0)
    offsets = torch.tensor([offset for _, offset in pairs], device=mask.device)
    mass = torch.zeros(horizon, device=mask.device).index_add(0, offsets, weights)
    return mass / mass.sum().clamp_min(1e-12)


def warm_up(step: int, *, weight: float, steps: int) -> float:
    """λ(u) = λ_max min(1, u / u_warm) (eq. total), u counted from zero: the first update has none.

    >>> warm_up(0, weight=0.1, steps=120), warm_up(60, weight=0.1, steps=120), warm_up(500, weight=0.1, steps=120)
    (0.0, 0.05, 0.1)
    """
    return weight if steps <= 0 else weight * min(1.0, step / steps)


def capped_weight(
    weight: float, auxiliary: Float[Tensor, ""], sid_loss: Float[Tensor, ""], *, cap: float | None
) -> Float[Tensor, ""]:
    """λ_eff = min(λ, cap · sg[L_SID] / max(sg[L_RT], 1e-12)), a constant for the gradient; no cap where it is None."""
    requested = torch.ones((), device=auxiliary.device) * weight  # as a constant it would recompile at every step
    if cap is None:
        return requested
    return torch.minimum(requested, cap * sid_loss.detach().float() / auxiliary.detach().float().clamp_min(1e-12))


def full_output_kl(
    logits: Float[Tensor, "row level code"],
    targets: Float[Tensor, "row level code"],
    mask: Bool[Tensor, "row level"],
    code_mask: Bool[Tensor, "level code"],
) -> Float[Tensor, ""]:
    """Mean KL(Q̃_t ‖ softmax of the level's own K_t logits) over valid positions (eq. full-output-kd)."""
    log_student = logits.float().masked_fill(~code_mask, -torch.inf).log_softmax(dim=-1)
    return _masked_mean(kl_divergence(targets, log_student), mask)


def nontarget_output_kl(
    logits: Float[Tensor, "row level code"],
    targets: Float[Tensor, "row level code"],
    stored: Int64[Tensor, "row level"],
    mask: Bool[Tensor, "row level"],
    code_mask: Bool[Tensor, "level code"],
) -> Float[Tensor, ""]:
    """Mean KL between teacher and output with the stored code dropped from both (eq. output-alignment).

    Positions whose teacher gives the other codes no mass that float32 can still divide by do not count. Correction
    scales all of those codes alike, so the raw and the corrected teacher give the same value.
    """
    at = stored[..., None]
    others = targets.scatter(-1, at, 0.0)
    mass = others.sum(-1, keepdim=True)
    log_student = logits.float().masked_fill(~code_mask, -torch.inf).scatter(-1, at, -torch.inf).log_softmax(dim=-1)
    divisible = mass > DIVISIBLE_MASS
    shares = others / torch.where(divisible, mass, 1.0)
    return _masked_mean(kl_divergence(shares, log_student), mask & divisible[..., 0])


def kl_divergence(
    targets: Float[Tensor, "row level code"], log_student: Float[Tensor, "row level code"]
) -> Float[Tensor, "row level"]:
    """KL(targets ‖ student), summed over codes; 0 log 0 = 0 on both sides.

    >>> targets, student = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.5, 0.5]]])
    >>> round(kl_divergence(targets, student.log()).item(), 4)
    0.6931
    """
    cross = targets * torch.where(targets > 0, log_student, 0.0)
    return -torch.special.entr(targets).sum(-1) - cross.sum(-1)


def _masked_mean(values: Float[Tensor, "row level"], mask: Bool[Tensor, "row level"]) -> Float[Tensor, ""]:
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)
