"""Settings of trained dual encoders: DPR and LaSER."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from restd.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DualConfig:
    """What DPR and LaSER share.

    Args:
        epochs: passes over the training pairs, at most; 0 keeps the encoder as it is.
        batch: pairs per update; the items of the others are negatives, except those that answer the query too.
        learning_rate: peak learning rate of AdamW, after a short warm-up and before half a cosine to zero.
        weight_decay: weight decay of AdamW, towards the first weights, which are those of the frozen encoder.
        temperature: divides the scores before the softmax.
        similarity: `cosine`, or `dot` for inner products of vectors of any length.
        shared: read queries and items with the same weights, instead of a set for each.
        hard_negatives: items per pair that BM25 ranks high and that do not answer the query, as further negatives.
        depth: how many of BM25's best items hard negatives are drawn from.
        pooling: whose token states are pooled with learned weights, beside the encoder's own vector: `none`, those of
            `queries`, or of `both` queries and items.
        max_tokens: where longer texts are cut before their token states are kept.
        pseudo_queries: queries drawn from each item's own words beside the judged ones.
        patience: epochs without a better validation before training stops; 0 trains all epochs. The best weights are
            kept either way, and the first ones compete too.
        seed: random seed of first weights, the order of pairs, negatives and dropout.
    """

    section: ClassVar[str] = "dual"

    epochs: int = 10
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    temperature: float = 0.05
    similarity: Literal["cosine", "dot"] = "cosine"
    shared: bool = False
    hard_negatives: int = 1
    depth: int = 50
    pooling: Literal["none", "queries", "both"] = "none"
    max_tokens: int = 64
    pseudo_queries: int = 0
    patience: int = 3
    seed: int = 42

    def __post_init__(self) -> None:
        least = {"epochs": 0, "batch": 2, "weight_decay": 0, "hard_negatives": 0, "depth": 1, "max_tokens": 2}
        for name, bound in (least | {"pseudo_queries": 0, "patience": 0, "seed": 0}).items():
            self._refuse_unless(getattr(self, name) >= bound, name, f"at least {bound}")
        for name in ("learning_rate", "temperature"):
            self._refuse_unless(getattr(self, name) > 0, name, "a number above 0")

    def _refuse_unless(self, fits: bool, name: str, expected: str) -> None:
        if not fits:
            raise ConfigError(f"{self.section}.{name} must be {expected}, got {getattr(self, name)!r}.")

    @property
    def reads_tokens(self) -> tuple[bool, bool]:
        """Whether token states of queries, and of items, are read."""
        return self.pooling != "none", self.pooling == "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class DprConfig(DualConfig):
    """The section [dpr].

    Args:
        tune_encoder: train the whole sentence encoder, instead of maps over its vectors.
        encoder_rate: learning rate of a trained encoder, as a share of the maps'.
    """

    section: ClassVar[str] = "dpr"

    tune_encoder: bool = False
    encoder_rate: float = 0.02

    def __post_init__(self) -> None:
        super(DprConfig, self).__post_init__()
        self._refuse_unless(self.encoder_rate > 0, "encoder_rate", "a number above 0")
        if self.tune_encoder and self.pooling != "none":
            raise ConfigError(
                f"dpr.pooling = {self.pooling!r} reads token states that were computed before, but dpr.tune_encoder "
                "changes them; leave one of them out."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaserConfig(DualConfig):
    """The section [laser].

    Args:
        steps: K, latent thinking steps on the query side; 0 thinks nothing.
        prototypes: size of the learned vocabulary that soft tokens mix.
        width: width of the head's hidden layer.
        view_weight: weight of the divergence of the latent view's scores from the explicit view's; the paper has 10,
            with reasoning that a language model wrote.
        explicit_weight: weight of the explicit view's own contrastive loss.
        step_weight: weight of the divergence of each thinking step's scores from those of its share of the reasoning.
        step_temperature: divides the scores of single steps before the softmax.
    """

    section: ClassVar[str] = "laser"

    temperature: float = 0.02
    steps: int = 3
    prototypes: int = 256
    width: int = 256
    view_weight: float = 1.0
    explicit_weight: float = 1.0
    step_weight: float = 0.1
    step_temperature: float = 0.05

    def __post_init__(self) -> None:
        super(LaserConfig, self).__post_init__()
        least = {"steps": 0, "prototypes": 2, "width": 1, "view_weight": 0, "explicit_weight": 0, "step_weight": 0}
        for name, bound in least.items():
            self._refuse_unless(getattr(self, name) >= bound, name, f"at least {bound}")
        self._refuse_unless(self.step_temperature > 0, "step_temperature", "a number above 0")

    @property
    def reads_tokens(self) -> tuple[bool, bool]:
        """Whether token states of queries, and of items, are read."""
        return self.pooling != "none" or self.steps > 0, self.pooling == "both"

    @property
    def uses_explicit_view(self) -> bool:
        """Whether any loss reads the explicit view."""
        return max(self.view_weight, self.explicit_weight, self.step_weight if self.steps else 0.0) > 0
