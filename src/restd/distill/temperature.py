"""Temperatures: one for all levels or one each, so that every level has something to teach."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.codes import PAPER_ENTROPY, PAPER_TEMPERATURE, spaces
from restd.distill.equations import teacher_distribution
from restd.distill.geometry import Geometry
from restd.errors import ConfigError

Mode = Literal["auto", "fixed", "global", "per_level"]

DEFAULT_TEMPERATURE = PAPER_TEMPERATURE
"""τ of mode `fixed`."""
DEFAULT_ENTROPY = PAPER_ENTROPY
"""Entropy that calibration aims at, as a share of ln K."""
PAPER_UNIT = frozenset({"rqvae", "merge", "cat-id2", "forge"})
"""Quantisers whose latents have the unit that the paper's temperature is meant for."""
_SAMPLE = 4_096
_UNIFORM = 0.97
_BISECTIONS = 50


@dataclass(frozen=True, slots=True)
class TemperatureConfig:
    """How the temperature of each level is found.

    Args:
        mode: `fixed` takes `value` everywhere (the paper's 0.2, meant for RQ-VAE latents); `per_level` gives level 1
            the target entropy and scales the others with the mean square of their residuals; `global` finds the one
            temperature whose entropy, averaged over levels, is the target; `auto` is `fixed` for RQ-VAE and its
            variants with other losses, and `per_level` for k-means, the ball and any other quantiser.
        value: the temperature of `fixed`.
        entropy: target entropy as a share of ln K.
        factor: multiplies the result; sweeps change this.
    """

    mode: Mode = "auto"
    value: float = DEFAULT_TEMPERATURE
    entropy: float = DEFAULT_ENTROPY
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.value > 0 or not self.factor > 0:
            raise ConfigError(f"Temperature and factor must be above 0, got {self.value} and {self.factor}.")
        if not 0.0 < self.entropy < 1.0:
            raise ConfigError(
                f"The target entropy is a share of ln K: it must be above 0 and below 1, got {self.entropy}."
            )


@dataclass(frozen=True, slots=True)
class LevelTeaching:
    """What the raw teacher of one level looks like at its temperature; ranks count ties against the stored code."""

    level: int
    temperature: float
    entropy: float
    """Mean entropy in nats."""
    normalised_entropy: float
    """Mean entropy as a share of ln K."""
    top1: float
    """Share of items whose stored code the teacher prefers to all others; a tie is not a preference."""
    top5: float
    mean_reciprocal_rank: float
    near_uniform: float
    """Share of targets with a normalised entropy above 0.97."""


@dataclass(frozen=True, slots=True)
class TeachingReport:
    """What the teacher has to teach, level by level."""

    levels: tuple[LevelTeaching, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def find_temperatures(
    geometry: Geometry, config: TemperatureConfig, *, quantizer: str | None = None, seed: int = 0
) -> Float[Tensor, "level"]:
    """Temperatures of all levels, found on a sample of items; `quantizer` (`kmeans`, `rqvae`) decides about `auto`."""
    mode = config.mode
    if mode == "auto":
        mode = "fixed" if quantizer in PAPER_UNIT else "per_level"
    if mode == "fixed":
        temperatures = torch.full((geometry.levels,), config.value)
    else:
        residuals = geometry.residuals(sample_rows(geometry, seed=seed)).cpu()
        temperatures = _calibrate(geometry, residuals, config.entropy, per_level=mode == "per_level")
    return (temperatures * config.factor).to(geometry.codebooks.values.device)


def _calibrate(
    geometry: Geometry, residuals: Float[Tensor, "row level dim"], target: float, *, per_level: bool
) -> Float[Tensor, "level"]:
    sizes = torch.tensor(geometry.sizes)
    if per_level:
        squares = spaces.squared_norms(residuals, geometry.codebooks.space).mean(0)
        shape = squares / squares[0].clamp_min(1e-12)
        judged = torch.arange(geometry.levels) == 0
    else:
        shape = torch.ones(geometry.levels)
        judged = sizes > 1
    if not (judged & (sizes > 1)).any():
        raise ConfigError(
            "Temperatures cannot be calibrated on codebooks of a single code. Use temperature mode fixed."
        )
    shape = shape.clamp_min(1e-6)
    # Powers of two around one; entropy rises with the temperature. Entropy in float32 is a staircase, and scipy's
    # brentq stops on another stair, up to 5e-7 away: temperatures, and with them all trained weights, would move.
    low, high = -20.0, 20.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        entropy = normalised_entropies(geometry, residuals, shape * 2.0**middle).mean(0)[judged].mean()
        low, high = (middle, high) if entropy < target else (low, middle)
    return shape * 2.0 ** ((low + high) / 2)


def normalised_entropies(
    geometry: Geometry, residuals: Float[Tensor, "row level dim"], temperatures: Float[Tensor, "level"]
) -> Float[Tensor, "row level"]:
    """Entropy of each raw teacher as a share of the logarithm of its codebook's size."""
    books = geometry.codebooks.to("cpu")
    teacher = teacher_distribution(residuals, books.values, books.mask, temperatures.cpu(), space=books.space)
    most = torch.tensor(geometry.sizes).float().log().clamp_min(1e-12)
    return torch.special.entr(teacher).sum(-1) / most


def sample_rows(geometry: Geometry, *, seed: int, count: int = _SAMPLE) -> Int64[Tensor, "row"]:
    """Rows drawn without replacement, all of them where there are no more."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(geometry.items, generator=generator)[:count]


def report_teaching(geometry: Geometry, temperatures: Float[Tensor, "level"], *, seed: int = 0) -> TeachingReport:
    """Measure the raw teacher on a sample of items; a level that teaches nothing is named in the warnings."""
    rows = sample_rows(geometry, seed=seed)
    residuals, stored = geometry.residuals(rows).cpu(), geometry.stored(rows).cpu()
    books = geometry.codebooks.to("cpu")
    teacher = teacher_distribution(residuals, books.values, books.mask, temperatures.cpu(), space=books.space)
    shares = normalised_entropies(geometry, residuals, temperatures)
    no_worse = (teacher >= teacher.gather(-1, stored[..., None])) & books.mask
    rank = no_worse.sum(-1)  # the stored code itself is one of them, so that a tie counts as lost
    levels = tuple(
        LevelTeaching(
            level=level + 1,
            temperature=float(temperatures[level]),
            entropy=float(shares[:, level].mean() * np.log(size)),
            normalised_entropy=float(shares[:, level].mean()),
            top1=float((rank[:, level] == 1).float().mean()),
            top5=float((rank[:, level] <= 5).float().mean()),
            mean_reciprocal_rank=float((1 / rank[:, level]).mean()),
            near_uniform=float((shares[:, level] > _UNIFORM).float().mean()),
        )
        for level, size in enumerate(geometry.sizes)
    )
    warnings = tuple(
        f"Level {level.level} teaches nothing: at temperature {level.temperature:.3g} its targets have "
        f"{level.normalised_entropy:.0%} of the largest entropy. Use temperature mode per_level, or a lower value."
        for level in levels
        if level.normalised_entropy > _UNIFORM
    )
    return TeachingReport(levels, warnings)
