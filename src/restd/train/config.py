"""Settings of a training run; the defaults are the paper's continuation, and each backbone has its own for the rest."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from restd.config import OPTIONAL
from restd.data.pseudo_queries import PseudoKind
from restd.distill import (
    DEFAULT_DISCOUNT,
    DEFAULT_ENTROPY,
    DEFAULT_HORIZON,
    DEFAULT_TEMPERATURE,
    AuxiliaryConfig,
    Correction,
    DistillConfig,
    TemperatureConfig,
)
from restd.errors import ConfigError
from restd.models import BACKBONES, CategorySettings
from restd.train.rank_settings import RankSettings

MultiPositive = Literal["off", "items", "grades", "codes"]


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The section [train]; defaults are the paper's continuation.

    Args:
        updates: optimiser steps; 0 to train for `epochs` instead.
        epochs: passes over the training pairs, where `updates` is 0.
        batch: pairs per update, over all processes.
        micro: pairs per process and micro-batch; an update accumulates as many micro-batches as it needs.
        lr: learning rate at the end of the warm-up; it then falls to zero along a cosine.
        weight_decay: weight decay of AdamW.
        clip: largest norm of the gradient.
        warm_up: updates over which the learning rate rises; below 1, a share of all updates.
        patience: epochs without a better validation before the run stops; 0 trains to the end.
        keep: save the model of the `best` validation, or the `last`.
        select: validate by the generation `loss`, or by `ndcg`: NDCG@10 of a beam of 20.
        judged: number of queries that a validation uses, at most, the same ones every time; 0 for all.
        indexing: also learn to generate an item's SID from its own text: `none`, its `title`, or its whole `text`.
        pseudo_queries: queries drawn from each item's own words and trained on beside the pairs; 0 for none.
        pseudo_kinds: kinds of drawn queries, which take turns: `keywords`, `title`, `sentence`, `misspelled`,
            `attributes`.
        pseudo_draws: number of times that pseudo-queries are drawn; epochs take turns, so that as many draws as epochs
            mean new queries in every epoch.
        pseudo_positives: items per pseudo-query, at most: its own, and others that have all its words.
        pseudo_table: table of pseudo-queries of your own, with columns `item` and `query`; empty for none.
        multi_positive: what a state learns where several items of its query share the prefix: `off`, the codes one pair
            after another; `items`, a distribution over all of them in which every item counts the same; `grades`, as
            much as its grade; `codes`, every code the same.
        loss_norm: over what the generation loss is normalised: all words of the model (`full_vocab`), or the codes that
            some item continues the prefix with (`trie_children`; search with the same `--score-norm`).
        level_weights: what each level counts in the generation loss: `even`; `inverse-sqrt`, level t as 1/√t; or a
            number γ, level t as γ^(t-1). Their mean is one.
        soft_credit: share of a stored code's probability that goes to codes of its level by how close they are to it; 0
            for none. Not together with `multi_positive`.
        soft_credit_tau: temperature of the closeness, relative to the mean squared distance between codes of the level.
        ema: decay of a moving average of the weights, which is what is validated and saved; 0 for none.
        pairs_per_item: queries per item in training, at most, the same ones for every seed; 0 for all.
        seed: random seed of weights, batches and dropout.
        checkpoint: updates between two checkpoints.
        precision: `auto` is bfloat16 on accelerators that have it and float32 elsewhere.
        compile: run the model through `torch.compile`.
        idle_heads: allocate horizon heads even where the objective does not use them, as the paper's Base-FT does.
        tracker: `none`, or an Accelerate tracker besides the JSON lines: trackio, wandb, tensorboard, …
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
    pseudo_queries: int = 0
    pseudo_kinds: tuple[PseudoKind, ...] = ("keywords",)
    pseudo_draws: int = 1
    pseudo_positives: int = 1
    pseudo_table: str = ""
    multi_positive: MultiPositive = "off"
    loss_norm: Literal["full_vocab", "trie_children"] = "full_vocab"
    level_weights: Literal["even", "inverse-sqrt"] | float = field(default="even", metadata=OPTIONAL)
    soft_credit: float = field(default=0.0, metadata=OPTIONAL)
    soft_credit_tau: float = field(default=0.25, metadata=OPTIONAL)
    ema: float = 0.0
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
                f"Expected exactly one of train.updates and train.epochs above 0, got {self.updates} and {self.epochs}."
            )
        for name in ("batch", "micro", "checkpoint", "pseudo_draws", "pseudo_positives"):
            if getattr(self, name) < 1:
                raise ConfigError(f"train.{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("lr", "clip", "soft_credit_tau"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"train.{name} must be above 0, got {getattr(self, name)}.")
        for name in ("weight_decay", "warm_up", "patience", "pairs_per_item", "pseudo_queries", "judged"):
            if getattr(self, name) < 0:
                raise ConfigError(f"train.{name} must be at least 0, got {getattr(self, name)}.")
        for name in ("ema", "soft_credit"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"train.{name} must be at least 0 and below 1, got {getattr(self, name)}.")
        if isinstance(self.level_weights, float | int) and not 0 < self.level_weights < math.inf:
            raise ConfigError(
                "train.level_weights must be 'even', 'inverse-sqrt' or a number above 0 (a factor from level to "
                f"level), got {self.level_weights}."
            )
        if self.soft_credit and self.multi_positive != "off":
            raise ConfigError(
                f"train.soft_credit = {self.soft_credit:g} spreads the stored code, which train.multi_positive = "
                f"{self.multi_positive} replaces by all right codes. Set one of them back, to 0 or 'off'."
            )

    def warm_up_updates(self, total: int) -> int:
        """Updates of the warm-up in a run of `total`.

        >>> TrainConfig(warm_up=0.05).warm_up_updates(1_000), TrainConfig().warm_up_updates(1_000)
        (50, 120)
        """
        return round(self.warm_up * total) if self.warm_up < 1 else round(self.warm_up)


@dataclass(frozen=True, slots=True)
class DistillSettings:
    """The section [distill]: settings of an objective with a teacher; flat, so that `--set` reaches all of them.

    Args:
        horizon: levels that `restd` teaches each state: its own and the next ones; never more than there are.
        discount: ρ, weight of an offset relative to the one before.
        weight: λ_max, weight of the loss after warm-up; unset, the objective's own (0.1, and 0.02 for non-target
            alignment).
        output_weight: λ_max of the loss on the retriever's own logits; unset, `weight`.
        cap: largest share of the SID loss, per micro-batch, or `none`; unset, the objective's own (5 %, or 1 %).
        warm_up: updates over which λ rises; below 1, a share of all updates; unset, 120 in a continuation and a tenth
            of the run in base training.
        positions: 1 weighs λ against the mean SID loss over positions; n, as against the paper's sum over n positions.
        temperature: `auto`, `fixed`, `global` or `per_level`.
        tau: τ, if `temperature` is `fixed`.
        entropy: entropy that a calibrated temperature gives the teacher, as a share of ln K.
        factor: multiplies the temperatures of all levels, however they were found.
        floor: least probability of the stored code after correction.
        margin: lead of the stored code over the others after correction.
        correct: whether teachers are corrected at all.
        seed: random seed of heads and controls.
    """

    horizon: int = DEFAULT_HORIZON
    discount: float = DEFAULT_DISCOUNT
    weight: float | None = None
    output_weight: float | None = None
    cap: float | Literal["none"] | None = None
    warm_up: float | None = None
    positions: int = 1
    temperature: Literal["auto", "fixed", "global", "per_level"] = "auto"
    tau: float = DEFAULT_TEMPERATURE
    entropy: float = DEFAULT_ENTROPY
    factor: float = 1.0
    floor: float = 0.1
    margin: float = 0.001
    correct: bool = True
    seed: int = 0

    def config(self, *, levels: int, horizon: int | None, auxiliary: AuxiliaryConfig) -> DistillConfig:
        """Settings of a distiller for an index of `levels` levels."""
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
        """Weight, cap and warm-up; the objective's own where they are unset."""
        warm_up = self.warm_up if self.warm_up is not None else (0.1 if joint else default.warm_up)
        return AuxiliaryConfig(
            weight=default.weight if self.weight is None else self.weight,
            warm_up=round(warm_up * total) if 0 < warm_up < 1 else round(warm_up),
            cap=default.cap if self.cap is None else None if self.cap == "none" else self.cap,
            positions=self.positions,
        )


@dataclass(frozen=True, slots=True)
class RunConfig:
    """All settings of a run besides the model's."""

    objective: str = "base"
    train: TrainConfig = field(default_factory=TrainConfig)
    distill: DistillSettings = field(default_factory=DistillSettings)
    category: CategorySettings = field(default_factory=CategorySettings)
    rank: RankSettings = field(default_factory=RankSettings)


def default_training(body: str, *, continued: bool) -> dict[str, Any]:
    """All settings of [train] that apply when none are given.

    Args:
        body: name of the network that is trained, `ModelConfig.body`.
        continued: whether the run continues from a trained model.
    """
    kind = BACKBONES[body]
    return {**asdict(TrainConfig()), **(kind.continued_training if continued else kind.base_training)}
