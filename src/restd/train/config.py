"""Settings of a training run; the paper's continuation is the default, and each backbone has its base training."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from restd.distill import Correction, DistillConfig, TemperatureConfig
from restd.distill.distiller import AuxiliaryConfig
from restd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How to train; defaults are the paper's continuation.

    Args:
        updates: optimiser steps; 0 lets `epochs` decide.
        epochs: passes over the training pairs, where `updates` is 0.
        batch: pairs in an update, over all processes.
        micro: pairs one process takes at a time; an update accumulates as many micro-batches as it needs.
        lr: learning rate at the end of the warm-up; a cosine leads it to zero.
        weight_decay: of AdamW.
        clip: largest norm of the gradient.
        warm_up: updates over which the learning rate rises; below 1, a share of all updates.
        patience: epochs without a better validation before the run stops; 0 trains to the end.
        keep: the model of the `best` validation, or the `last`.
        select: what a validation looks at: the generation `loss`, or `ndcg`, NDCG@10 of a beam of 20.
        judged: queries that a validation takes, at most, the same ones every time; 0 for all.
        indexing: also learn item text to SID: `none`, from the `title`, or from the whole `text`.
        pairs_per_item: queries that an item is learned from, at most; 0 for all. The same ones at every seed.
        seed: of the first weights, the order of batches and dropout.
        checkpoint: updates between two checkpoints.
        precision: `auto` is bfloat16 on accelerators that have it and float32 elsewhere.
        compile: run the model through `torch.compile`.
        idle_heads: allocate horizon heads even where the objective does not use them, as the paper's Base-FT does.
        tracker: `none`, or an Accelerate tracker beside the JSON lines: trackio, wandb, tensorboard, …
    """

    updates: int = 1_200
    epochs: int = 0
    batch: int = 128
    micro: int = 8
    lr: float = 1e-5
    weight_decay: float = 0.01
    clip: float = 1.0
    warm_up: float = 120.0
    patience: int = 0
    keep: Literal["best", "last"] = "last"
    select: Literal["loss", "ndcg"] = "loss"
    judged: int = 0
    indexing: Literal["none", "title", "text"] = "none"
    pairs_per_item: int = 0
    seed: int = 42
    checkpoint: int = 200
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    compile: bool = False
    idle_heads: bool = False
    tracker: str = "none"

    def __post_init__(self) -> None:
        if (self.updates < 1) == (self.epochs < 1):
            raise ConfigError(
                f"train.updates = {self.updates} and train.epochs = {self.epochs} were given; exactly one must be "
                "above 0."
            )
        for name in ("batch", "micro", "checkpoint"):
            if getattr(self, name) < 1:
                raise ConfigError(f"train.{name} = {getattr(self, name)} cannot be used; wanted at least 1.")
        for name in ("lr", "clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"train.{name} = {getattr(self, name)} cannot be used; wanted a number above 0.")
        for name in ("weight_decay", "warm_up", "patience", "pairs_per_item", "judged"):
            if getattr(self, name) < 0:
                raise ConfigError(f"train.{name} = {getattr(self, name)} cannot be used; wanted at least 0.")

    def warm_up_updates(self, total: int) -> int:
        """Updates of the warm-up in a run of `total`.

        >>> TrainConfig(warm_up=0.05).warm_up_updates(1_000), TrainConfig().warm_up_updates(1_000)
        (50, 120)
        """
        return round(self.warm_up * total) if self.warm_up < 1 else round(self.warm_up)


@dataclass(frozen=True, slots=True)
class DistillSettings:
    """The section [distill]: what an objective with a teacher may be told; flat, so that `--set` reaches all of it.

    Args:
        horizon: offsets that `restd` supervises; never more than there are levels.
        discount: ρ, weight of an offset relative to the one before.
        weight: λ_max; unset, the objective's own (0.1, and 0.02 for non-target alignment).
        output_weight: λ_max of what supervises the retriever's own logits; unset, `weight`.
        cap: largest share of the SID loss, per micro-batch, or `none`; unset, the objective's own (5 %, or 1 %).
        warm_up: updates over which λ rises; below 1, a share of all updates; unset, 120 in a continuation and a tenth
            of the run in base training.
        positions: 1 weighs against the mean SID loss; more, as the paper's sum over that many positions would.
        temperature: `auto`, `fixed`, `global` or `per_level`.
        tau: τ where it is fixed.
        entropy: entropy that a calibrated temperature gives the teacher, as a share of ln K.
        factor: multiplies the temperatures of all levels, however they were found.
        floor: least probability that correction leaves the stored code.
        margin: by which the stored code leads.
        correct: whether teachers are corrected at all.
        seed: of heads and controls.
    """

    horizon: int = 4
    discount: float = 0.7
    weight: float | None = None
    output_weight: float | None = None
    cap: float | Literal["none"] | None = None
    warm_up: float | None = None
    positions: int = 1
    temperature: Literal["auto", "fixed", "global", "per_level"] = "auto"
    tau: float = 0.2
    entropy: float = 0.57
    factor: float = 1.0
    floor: float = 0.1
    margin: float = 0.001
    correct: bool = True
    seed: int = 0

    def config(self, *, levels: int, horizon: int | None, auxiliary: AuxiliaryConfig) -> DistillConfig:
        """Settings of a distiller for an index of so many levels."""
        return DistillConfig(
            horizon=min(horizon or self.horizon, levels),
            discount=self.discount,
            auxiliary=auxiliary,
            correction=Correction(enabled=self.correct, floor=self.floor, margin=self.margin),
            temperature=TemperatureConfig(self.temperature, self.tau, self.entropy, self.factor),
            seed=self.seed,
            check=False,  # the loop looks at losses and gradients itself, and can name the batch
        )

    def auxiliary(self, default: AuxiliaryConfig, *, total: int, joint: bool) -> AuxiliaryConfig:
        """Weight, cap and warm-up, the objective's own where nothing was said."""
        wanted = self.warm_up if self.warm_up is not None else (0.1 if joint else default.warm_up)
        return AuxiliaryConfig(
            weight=default.weight if self.weight is None else self.weight,
            warm_up=round(wanted * total) if 0 < wanted < 1 else round(wanted),
            cap=default.cap if self.cap is None else None if self.cap == "none" else self.cap,
            positions=self.positions,
        )


@dataclass(frozen=True, slots=True)
class CategorySettings:
    """The section [category]: CaLIR's losses.

    Args:
        weight: α, of the categories each latent step should name.
        contrast: β, of the contrast with category prototypes.
        temperature: of that contrast.
        paths: distinct category paths of a query's positives that count as its group, at most.
        width: categories a query is routed to, for the recall that is reported.
    """

    weight: float = 0.1
    contrast: float = 0.05
    temperature: float = 0.1
    paths: int = 3
    width: int = 3


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything a run was told."""

    objective: str = "base"
    train: TrainConfig = field(default_factory=TrainConfig)
    distill: DistillSettings = field(default_factory=DistillSettings)
    category: CategorySettings = field(default_factory=CategorySettings)


_T5_BASE = replace(TrainConfig(), updates=0, epochs=300, lr=5e-4, warm_up=0.05, patience=10, keep="best")
_COMPACT_BASE = replace(
    TrainConfig(),
    updates=0,
    epochs=12,
    micro=128,
    lr=1e-3,
    weight_decay=0.05,
    warm_up=0.05,
    indexing="title",
)
_TIGER_BASE = replace(
    TrainConfig(),
    updates=0,
    epochs=100,
    batch=512,
    micro=128,
    lr=1e-3,
    weight_decay=0.05,
    warm_up=0.05,
    patience=10,
    keep="best",
    select="ndcg",
    judged=4_000,
)
_COMPACT_CONTINUED = replace(TrainConfig(), micro=128, lr=1e-4)


def default_training(body: str, *, continued: bool) -> dict[str, Any]:
    """Training settings nobody gave: by the network, and by whether it goes on from a checkpoint."""
    if body == "compact":
        chosen = _COMPACT_CONTINUED if continued else _COMPACT_BASE
    elif body == "tiger":
        chosen = replace(_TIGER_BASE, lr=_TIGER_BASE.lr / 10) if continued else _TIGER_BASE
    else:
        chosen = TrainConfig() if continued else _T5_BASE
    return {name: getattr(chosen, name) for name in TrainConfig.__dataclass_fields__}
