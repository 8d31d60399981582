"""`ResidualDistiller`, the front door: ResTD in somebody else's training loop."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.codes import Codebooks
from restd.distill.equations import capped_weight, full_output_kl, nontarget_output_kl, warm_up
from restd.distill.geometry import Geometry, ResidualIndex
from restd.distill.heads import HorizonHeads
from restd.distill.targets import Correction, ResidualTeacher, Teacher, trajectory_loss
from restd.distill.temperature import TemperatureConfig, find_temperatures
from restd.errors import ArtifactError, ConfigError

DEFAULT_HORIZON, DEFAULT_DISCOUNT = 4, 0.7
"""H and ρ of the paper."""
DEFAULT_WEIGHT, DEFAULT_CAP = 0.1, 0.05
"""λ_max and cap of the paper, where nothing else is said."""
NONTARGET_WEIGHT, NONTARGET_CAP = 0.02, 0.01
"""λ_max and cap of the paper's non-target output alignment."""
DEFAULT_WARM_UP = 120
"""Updates over which λ rises: a tenth of the paper's continuation."""
_HEADS = 4
_FINGERPRINT = 32


@dataclass(frozen=True, slots=True)
class AuxiliaryConfig:
    """How much an auxiliary loss may weigh.

    Args:
        weight: λ_max.
        warm_up: updates over which it rises from zero.
        cap: largest share of the SID loss it may add, per micro-batch; None for no cap.
        positions: 1 weighs against the mean SID loss per position, as the authors' release does. The paper's formula
            has the sum over n positions (the levels, and EOS where there is one): n here weighs as that sum would.
    """

    weight: float = DEFAULT_WEIGHT
    warm_up: int = DEFAULT_WARM_UP
    cap: float | None = DEFAULT_CAP
    positions: int = 1

    def __post_init__(self) -> None:
        if self.positions < 1:
            raise ConfigError(f"positions must be at least 1, got {self.positions}.")
        if self.weight < 0 or self.warm_up < 0:
            raise ConfigError(f"weight and warm_up must be at least 0, got {self.weight} and {self.warm_up}.")
        if self.cap is not None and not self.cap > 0:
            raise ConfigError(f"cap must be above 0, or None for no cap; got {self.cap}.")


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """Settings of residual trajectory distillation; defaults are the paper's, temperatures apart.

    Args:
        horizon: offsets that are supervised; 1 is RBD. SIDs with fewer levels have all of theirs supervised.
        discount: ρ, weight of an offset relative to the one before.
        auxiliary: weight, warm-up and cap.
        correction: how targets are made to agree with the stored codes.
        temperature: how the temperature of each level is found.
        seed: random seed of the heads' first weights.
        check: refuse states that are not finite, at the price of a synchronisation on accelerators.
    """

    horizon: int = DEFAULT_HORIZON
    discount: float = DEFAULT_DISCOUNT
    auxiliary: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)
    correction: Correction = field(default_factory=Correction)
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    seed: int = 0
    check: bool = True

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ConfigError(f"horizon must be at least 1, got {self.horizon}.")
        if not 0.0 < self.discount <= 1.0:
            raise ConfigError(f"discount must be above 0 and at most 1, got {self.discount}.")


@dataclass(frozen=True, slots=True, eq=False)
class DistillLog:
    """What happened in the last call, detached: values stay on their device until somebody reads them."""

    loss: Float[Tensor, ""]
    """What was added to the training loss: weight times divergence."""
    divergence: Float[Tensor, ""]
    weight: Float[Tensor, ""]
    requested_weight: float
    """λ of the warm-up, before the cap."""
    by_cell: Float[Tensor, "level horizon"] | None = None

    @property
    def capped(self) -> bool:
        """Whether the cap, not λ, set the weight."""
        return bool(self.weight < self.requested_weight)


def weighted(
    divergence: Float[Tensor, ""], sid_loss: Float[Tensor, ""], step: int, config: AuxiliaryConfig
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], float]:
    """Auxiliary loss as it is added, its weight after the cap, and the weight requested by the warm-up."""
    # a sum of n equal terms plus λ of something is n times (their mean plus λ/n of it)
    requested = warm_up(step, weight=config.weight, steps=config.warm_up) / config.positions
    weight = capped_weight(requested, divergence, sid_loss, cap=config.cap)
    return weight * divergence, weight, requested


class ResidualDistiller(nn.Module):
    """Adds ResTD to a training loop.

    >>> import torch
    >>> books, latents = torch.randn(4, 16, 8), torch.randn(100, 8)
    >>> sids = torch.randint(16, (100, 4))
    >>> distiller = ResidualDistiller.of_tensors(books, latents, sids, width=32)
    >>> states, rows, sid_loss = torch.randn(5, 4, 32), torch.arange(5), torch.tensor(3.0)
    >>> loss = sid_loss + distiller(states, rows, sid_loss=sid_loss, step=200)

    The heads are its only parameters: pass them to the optimiser, and drop the distiller when training is done.
    `sid_loss` is the generation loss the cap refers to, as a mean over its positions (EOS included where there is one);
    the paper's formula has the sum, which is four to five times as large and shifts λ and the cap alike.
    """

    def __init__(
        self, teacher: Teacher, temperatures: Float[Tensor, "level"], *, width: int, config: DistillConfig
    ) -> None:
        super().__init__()
        geometry = teacher.geometry
        self.config = config
        self.teacher = teacher
        self.horizon = min(config.horizon, geometry.levels)
        # all heads are there whatever the horizon, so that objectives of one study have the same parameters
        heads = max(self.horizon, min(_HEADS, geometry.levels))
        self.heads = HorizonHeads(width, geometry.codebooks.dim, horizon=heads, seed=config.seed)
        self.temperatures: Tensor
        self.register_buffer("temperatures", temperatures.clone(), persistent=False)  # the extra state has them
        self.last: DistillLog | None = None

    @classmethod
    def of_tensors(
        cls,
        codebooks: Tensor | Codebooks,
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

        `device` is where the states will be; latents and SIDs go there too (two bytes per number).
        """
        geometry = Geometry.of(codebooks.to("cpu"), latents.cpu(), sids.cpu(), sizes=sizes).to(device)
        return cls._of_geometry(geometry, width=width, config=config or DistillConfig(), quantizer=quantizer)

    @classmethod
    def of_index(
        cls,
        index: ResidualIndex,
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
            queries: number of each row's query, where the teacher needs it.
        """
        geometry = self.teacher.geometry
        self._check(states, rows)
        if mask is None:
            mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        with torch.no_grad():
            targets = self.teacher.targets(rows, queries)
        projected = self.heads(states, self.horizon)
        result = trajectory_loss(
            projected,
            targets,
            geometry,
            self.temperatures,
            mask,
            horizon=self.horizon,
            discount=self.config.discount,
        )
        loss, weight, requested = weighted(result.loss, sid_loss, step, self.config.auxiliary)
        self.last = DistillLog(loss.detach(), result.loss.detach(), weight, requested, result.by_cell)
        return loss

    def _check(self, states: Tensor, rows: Tensor) -> None:
        geometry = self.teacher.geometry
        expected = (len(rows), geometry.levels, self.heads.width)
        if tuple(states.shape) != expected:
            raise ConfigError(
                f"Expected states of shape {expected} (one row per item, one state per level with a codebook, the "
                f"width of the heads), got {tuple(states.shape)}."
            )
        if torch.compiler.is_compiling() or not self.config.check:
            return
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < geometry.items):
            raise ConfigError(
                f"Expected item rows between 0 and {geometry.items - 1}, got rows from {int(rows.min())} to "
                f"{int(rows.max())}."
            )
        if not torch.isfinite(states).all():
            raise ConfigError(
                "The decoder's states are NaN or infinite. Lower the learning rate, or look at the batch."
            )

    def get_extra_state(self) -> Tensor:
        """Record against which codebooks and at which temperatures the heads were trained.

        A tensor, so that safetensors can store it: 32 bytes of fingerprint, then the temperatures as float32.
        """
        geometry = self.teacher.geometry
        hexadecimal = geometry.codebooks.fingerprint()
        record = bytes.fromhex(hexadecimal) + self.temperatures.cpu().float().numpy().tobytes()
        return torch.tensor(list(record), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse heads that were trained against other codebooks or at other temperatures."""
        own, other = (bytes(record.tolist()) for record in (self.get_extra_state(), state))
        if own[:_FINGERPRINT] != other[:_FINGERPRINT]:
            raise ArtifactError(
                f"These heads were trained with codebooks {other.hex()[:8]}, but this index has {own.hex()[:8]}. Load "
                "them with the index they were trained with."
            )
        ours, theirs = (np.frombuffer(record[_FINGERPRINT:], np.float32) for record in (own, other))
        if not np.allclose(ours, theirs, rtol=1e-4):
            raise ArtifactError(
                f"These heads were trained at temperatures {theirs.tolist()}, but this distiller has {ours.tolist()}. "
                "Make it with the settings of that run."
            )


class OutputDistiller(nn.Module):
    """Controls that supervise the retriever's own logits: full-output KD, or only the codes that are not stored."""

    def __init__(
        self, teacher: Teacher, *, kind: Literal["full", "nontarget"], config: AuxiliaryConfig | None = None
    ) -> None:
        super().__init__()
        self.teacher = teacher
        self.kind = kind
        nontarget = AuxiliaryConfig(weight=NONTARGET_WEIGHT, cap=NONTARGET_CAP)
        self.config = config or (AuxiliaryConfig() if kind == "full" else nontarget)
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
        expected = (len(rows), *geometry.codebooks.mask.shape)
        if tuple(logits.shape) != expected:
            raise ConfigError(
                f"Expected logits of shape {expected}, the codes of every level with a codebook; got "
                f"{tuple(logits.shape)}."
            )
        if mask is None:
            mask = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
        with torch.no_grad():
            targets = self.teacher.targets(rows, queries)
            current = targets.values[:, targets.slot_of[:, 0]]
        if self.kind == "full":
            divergence = full_output_kl(logits, current, mask, geometry.codebooks.mask)
        else:
            divergence = nontarget_output_kl(logits, current, geometry.stored(rows), mask, geometry.codebooks.mask)
        loss, weight, requested = weighted(divergence, sid_loss, step, self.config)
        self.last = DistillLog(loss.detach(), divergence.detach(), weight, requested)
        return loss


def strip(model: nn.Module) -> int:
    """Remove every distiller and head from a model, and return how many parameters were removed.

    >>> model = nn.Module()
    >>> model.body, model.heads = nn.Linear(4, 4), HorizonHeads(4, 2, horizon=1)
    >>> strip(model), sum(parameter.numel() for parameter in model.parameters())
    (38, 20)
    """
    if isinstance(model, _DISTILLERS):
        raise ConfigError("The model itself is a distiller and cannot be stripped. Pass the model that contains it.")
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
