"""`ResidualDistiller`, the front door: ResTD in somebody else's training loop."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.distill.functions import capped_weight, cells, full_output_kl, nontarget_output_kl, warm_up
from restd.distill.geometry import Geometry
from restd.distill.heads import HorizonHeads
from restd.distill.targets import Correction, ResidualTeacher, Teacher, trajectory_loss
from restd.distill.temperature import TemperatureConfig, find_temperatures
from restd.errors import ArtifactError, ConfigError
from restd.quantize import Codebooks

if TYPE_CHECKING:
    from restd.index import SidIndex

_HEADS = 4
_FINGERPRINT = 32


@dataclass(frozen=True, slots=True)
class AuxiliaryConfig:
    """How much an auxiliary loss may weigh.

    Args:
        weight: λ_max.
        warm_up: updates over which it rises from zero.
        cap: largest share of the SID loss it may add, per micro-batch; None for no cap.
        positions: 1 weighs against the mean SID loss of a position, as the authors' release does. The paper's formula
            has the sum over n positions (the levels, and EOS where there is one): n here weighs as that sum would.
    """

    weight: float = 0.1
    warm_up: int = 120
    cap: float | None = 0.05
    positions: int = 1

    def __post_init__(self) -> None:
        if self.positions < 1:
            raise ConfigError(f"A SID loss of {self.positions} positions was asked for; wanted at least 1.")
        if self.weight < 0 or self.warm_up < 0 or (self.cap is not None and not self.cap > 0):
            raise ConfigError(
                f"Weight {self.weight}, warm-up {self.warm_up} and cap {self.cap} cannot be used; wanted a weight and "
                "a warm-up of at least 0, and a cap above 0 or none."
            )


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """Settings of residual trajectory distillation; defaults are the paper's, temperatures apart (see `mode`).

    Args:
        horizon: offsets that are supervised, from 1 (RBD) to the number of levels.
        discount: ρ, weight of an offset relative to the one before.
        seed: decides the heads' first weights.
        check: refuse states that are not finite, at the price of a synchronisation on accelerators.
    """

    horizon: int = 4
    discount: float = 0.7
    auxiliary: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)
    correction: Correction = field(default_factory=Correction)
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    seed: int = 0
    check: bool = True

    def __post_init__(self) -> None:
        if not 0.0 < self.discount <= 1.0:
            raise ConfigError(f"A discount of {self.discount} was asked for; wanted above 0 and at most 1.")


@dataclass(frozen=True, slots=True, eq=False)
class DistillLog:
    """What happened in the last call, detached: values stay on their device until somebody reads them."""

    loss: Float[Tensor, ""]
    """What was added to the training loss: weight times divergence."""
    divergence: Float[Tensor, ""]
    weight: Float[Tensor, ""]
    asked: float
    """λ of the warm-up, before the cap."""
    by_cell: Float[Tensor, "level horizon"] | None = None

    @property
    def capped(self) -> bool:
        """Whether the cap, not λ, set the weight."""
        return bool(self.weight < self.asked)


def weighted(
    divergence: Float[Tensor, ""], sid_loss: Float[Tensor, ""], step: int, config: AuxiliaryConfig
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], float]:
    """Auxiliary loss as it is added, its weight, and the weight asked for: warm-up, then the cap."""
    # a sum of n equal terms plus λ of something is n times (their mean plus λ/n of it)
    asked = warm_up(step, weight=config.weight, steps=config.warm_up) / config.positions
    weight = capped_weight(asked, divergence, sid_loss, cap=config.cap)
    return weight * divergence, weight, asked


class ResidualDistiller(nn.Module):
    """Adds ResTD to a training loop.

    >>> import torch
    >>> books, latents = torch.randn(4, 16, 8), torch.randn(100, 8)
    >>> sids = torch.randint(16, (100, 4))
    >>> distiller = ResidualDistiller.of_tensors(books, latents, sids, width=32)
    >>> states, rows, sid_loss = torch.randn(5, 4, 32), torch.arange(5), torch.tensor(3.0)
    >>> loss = sid_loss + distiller(states, rows, sid_loss=sid_loss, step=200)

    The heads are its only parameters: give them to the optimiser, and leave the distiller behind when training is done.
    `sid_loss` is the generation loss the cap refers to, as a mean over its positions (EOS included where there is one);
    the paper's formula has the sum, which is four to five times as large and shifts λ and the cap alike.
    """

    def __init__(
        self, teacher: Teacher, temperatures: Float[Tensor, "level"], *, width: int, config: DistillConfig
    ) -> None:
        super().__init__()
        geometry = teacher.geometry
        cells(geometry.levels, config.horizon)  # refuses an impossible horizon
        self.config = config
        self.teacher = teacher
        # all heads are there whatever the horizon, so that objectives of one study have the same parameters
        self.heads = HorizonHeads(
            width,
            geometry.codebooks.shape[2],
            horizon=max(config.horizon, min(_HEADS, geometry.levels)),
            seed=config.seed,
        )
        self.temperatures: Tensor
        self.register_buffer("temperatures", temperatures.clone(), persistent=False)  # the extra state has them
        self.last: DistillLog | None = None

    @classmethod
    def of_tensors(
        cls,
        codebooks: Tensor,
        latents: Tensor,
        sids: Tensor,
        *,
        width: int,
        config: DistillConfig | None = None,
        sizes: tuple[int, ...] | None = None,
        quantizer: str | None = None,
        device: torch.device | str = "cpu",
    ) -> "ResidualDistiller":
        """Make a distiller from nothing but tensors: codebooks, latents and stored SIDs.

        `device` is where the states will be; latents and SIDs go there too (two bytes a number).
        """
        geometry = Geometry.of(codebooks.cpu(), latents.cpu(), sids.cpu(), sizes=sizes).to(device)
        return cls._of_geometry(geometry, width=width, config=config or DistillConfig(), quantizer=quantizer)

    @classmethod
    def of_index(
        cls,
        index: "SidIndex",
        *,
        width: int,
        config: DistillConfig | None = None,
        device: torch.device | str = "cpu",
    ) -> "ResidualDistiller":
        """Make a distiller from an index, for states on `device`."""
        kind = None if index.quantizer is None else index.quantizer.settings["kind"]
        geometry = Geometry.of_index(index).to(device)
        return cls._of_geometry(geometry, width=width, config=config or DistillConfig(), quantizer=kind)

    @classmethod
    def _of_geometry(
        cls, geometry: Geometry, *, width: int, config: DistillConfig, quantizer: str | None
    ) -> "ResidualDistiller":
        temperatures = find_temperatures(geometry, config.temperature, quantizer=quantizer)
        teacher = ResidualTeacher(geometry, temperatures, config.correction)
        return cls(teacher, temperatures, width=width, config=config).to(geometry.latents.device)

    def forward(
        self,
        states: Float[Tensor, "row level width"],
        rows: Int64[Tensor, "row"],
        *,
        sid_loss: Float[Tensor, ""],
        step: int,
        mask: Bool[Tensor, "row level"] | None = None,
        queries: Int64[Tensor, "row"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the weighted trajectory loss, to be added to the training loss.

        Args:
            states: decoder states that predict each code, codebook levels only.
            rows: the target item of each state's SID.
            sid_loss: the generation loss of the same batch, for the cap.
            step: update, counted from zero, for the warm-up.
            mask: levels that count, per row; all by default.
            queries: number of each row's query, where the teacher wants it.
        """
        geometry = self.teacher.geometry
        self._check(states, rows)
        if mask is None:
            mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        with torch.no_grad():
            targets = self.teacher.targets(rows, queries)
        projected = self.heads(states, self.config.horizon)
        found = trajectory_loss(
            projected,
            targets,
            geometry,
            self.temperatures,
            mask,
            horizon=self.config.horizon,
            discount=self.config.discount,
        )
        loss, weight, asked = weighted(found.loss, sid_loss, step, self.config.auxiliary)
        self.last = DistillLog(loss.detach(), found.loss.detach(), weight, asked, found.by_cell)
        return loss

    def _check(self, states: Tensor, rows: Tensor) -> None:
        geometry = self.teacher.geometry
        wanted = (len(rows), geometry.levels, self.heads.width)
        if tuple(states.shape) != wanted:
            raise ConfigError(
                f"States of shape {tuple(states.shape)} were given; wanted {wanted}: one row an item, one state for "
                "each level with a codebook, and the width the heads were made for."
            )
        if torch.compiler.is_compiling() or not self.config.check:
            return
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < geometry.items):
            raise ConfigError(
                f"Item rows from {int(rows.min())} to {int(rows.max())} were given; this index has 0 to "
                f"{geometry.items - 1}."
            )
        if not torch.isfinite(states).all():
            raise ConfigError(
                "The decoder's states hold NaN or infinity; lower the learning rate or look at the batch."
            )

    def get_extra_state(self) -> Tensor:
        """Say against which codebooks and at which temperatures the heads were trained.

        A tensor, so that safetensors can hold it: 32 bytes of fingerprint, then the temperatures as float32.
        """
        geometry = self.teacher.geometry
        hexadecimal = Codebooks(geometry.codebooks.cpu().numpy(), geometry.sizes).fingerprint()
        held = bytes.fromhex(hexadecimal) + self.temperatures.cpu().float().numpy().tobytes()
        return torch.tensor(list(held), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse heads that were trained against other codebooks or at other temperatures."""
        own, other = (bytes(held.tolist()) for held in (self.get_extra_state(), state))
        if own[:_FINGERPRINT] != other[:_FINGERPRINT]:
            raise ArtifactError(
                f"These heads were trained with codebooks {other.hex()[:8]}, but this index has {own.hex()[:8]}; "
                "load them with the index they were trained with."
            )
        ours, theirs = (np.frombuffer(held[_FINGERPRINT:], np.float32) for held in (own, other))
        if not np.allclose(ours, theirs, rtol=1e-4):
            raise ArtifactError(
                f"These heads were trained at temperatures {theirs.tolist()}, but this distiller was made with "
                f"{ours.tolist()}; make it with the settings of that run."
            )


class OutputDistiller(nn.Module):
    """Controls that supervise the retriever's own logits: full-output KD, or only the codes that are not stored."""

    def __init__(
        self, teacher: Teacher, *, kind: Literal["full", "nontarget"], config: AuxiliaryConfig | None = None
    ) -> None:
        super().__init__()
        self.teacher = teacher
        self.kind = kind
        # the paper's coefficients: 0.1 and a cap of 5 %, or 0.02 and 1 %
        self.config = config or (AuxiliaryConfig() if kind == "full" else AuxiliaryConfig(weight=0.02, cap=0.01))
        self.last: DistillLog | None = None

    def forward(
        self,
        logits: Float[Tensor, "row level code"],
        rows: Int64[Tensor, "row"],
        *,
        sid_loss: Float[Tensor, ""],
        step: int,
        mask: Bool[Tensor, "row level"] | None = None,
        queries: Int64[Tensor, "row"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the weighted divergence of the level's own logits from the teacher's current targets."""
        geometry = self.teacher.geometry
        if tuple(logits.shape) != (len(rows), *geometry.code_mask.shape):
            raise ConfigError(
                f"Logits of shape {tuple(logits.shape)} were given; wanted {(len(rows), *geometry.code_mask.shape)}: "
                "the codes of every level with a codebook."
            )
        if mask is None:
            mask = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
        with torch.no_grad():
            targets = self.teacher.targets(rows, queries)
            current = targets.values[:, targets.slot_of[:, 0]]
        if self.kind == "full":
            divergence = full_output_kl(logits, current, mask, geometry.code_mask)
        else:
            divergence = nontarget_output_kl(logits, current, geometry.stored(rows), mask, geometry.code_mask)
        loss, weight, asked = weighted(divergence, sid_loss, step, self.config)
        self.last = DistillLog(loss.detach(), divergence.detach(), weight, asked)
        return loss


def strip(model: nn.Module) -> int:
    """Take every distiller and head out of a model, prove that none is left, and say how many parameters went.

    >>> model = nn.Module()
    >>> model.body, model.heads = nn.Linear(4, 4), HorizonHeads(4, 2, horizon=1)
    >>> strip(model), sum(parameter.numel() for parameter in model.parameters())
    (38, 20)
    """
    if isinstance(model, _DISTILLERS):
        raise ConfigError("The model itself is a distiller and cannot be stripped; pass the model that holds it.")
    removed = 0
    for name, child in list(model.named_children()):
        if isinstance(child, _DISTILLERS):
            removed += sum(parameter.numel() for parameter in child.parameters())
            delattr(model, name)
        else:
            removed += strip(child)
    assert not any(isinstance(module, _DISTILLERS) for module in model.modules())
    return removed


_DISTILLERS = (ResidualDistiller, OutputDistiller, HorizonHeads)
