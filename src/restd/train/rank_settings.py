"""Settings of the objectives that compare a query's positives with negatives of the model's own beam."""

from dataclasses import dataclass
from typing import Literal

from restd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RankSettings:
    """The section [rank]: settings of `ltrgr`, `ripor` and `ddro`; no other objective reads it.

    Args:
        weight: weight of the ranking loss; unset, the objective's own (0.3 for `ltrgr`, 0.02 for `ripor`, 1 for
            `ddro`).
        generation: weight of the generation loss while the ranking loss is there.
        start: share of the run's updates before the ranking loss begins and the first negatives are searched.
        warm_up: updates over which the weight rises from its beginning on; below 1, a share of the updates that are
            left then.
        refresh: epochs between two searches for negatives; may be a fraction.
        queries: training queries that are searched each time, at most, drawn anew; 0 for all. The others have no
            ranking loss until the next time.
        beam: prefixes that this search keeps at every level.
        negatives: negatives to keep for each query, the best-ranked ones.
        drawn: negatives that a pair is compared with in an update of `ripor` or `ddro`, drawn from those that are
            kept; `ltrgr` compares with the best-ranked and a drawn one.
        margin: lead in nats that `ltrgr` wants over the best-ranked negative.
        sampled_margin: lead in nats that `ltrgr` wants over the drawn one.
        beta: β of `ddro`, how sharply a preference over the reference's is rewarded.
        scores: what `ripor` adds up over a prefix: the `log_probability` that search ranks by, or the `logit`.
        curriculum: share of the ranking phase over which `ripor` goes from the shortest prefixes to whole Semantic
            IDs; 0 for all lengths from the beginning.
        dense: share of dense similarity in the teacher of `ripor`; the rest is BM25.
        grades: share of judged grades in the teacher of `ripor`; the rest is the ensemble of BM25 and dense.
        nats: lead in nats that the largest difference between two scores of the teacher stands for.
    """

    weight: float | None = None
    generation: float = 1.0
    start: float = 0.0
    warm_up: float = 0.0
    refresh: float = 1.0
    queries: int = 2_000
    beam: int = 20
    negatives: int = 10
    drawn: int = 2
    margin: float = 1.0
    sampled_margin: float = 2.0
    beta: float = 0.1
    scores: Literal["log_probability", "logit"] = "log_probability"
    curriculum: float = 0.5
    dense: float = 0.5
    grades: float = 0.5
    nats: float = 4.0

    def __post_init__(self) -> None:
        for name in ("beam", "negatives", "drawn"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rank.{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("generation", "warm_up", "queries", "margin", "sampled_margin", "nats"):
            if getattr(self, name) < 0:
                raise ConfigError(f"rank.{name} must be at least 0, got {getattr(self, name)}.")
        if self.weight is not None and self.weight < 0:
            raise ConfigError(f"rank.weight must be at least 0, got {self.weight}.")
        for name in ("refresh", "beta"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"rank.{name} must be above 0, got {getattr(self, name)}.")
        for name in ("curriculum", "dense", "grades"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"rank.{name} must be from 0 to 1, got {getattr(self, name)}.")
        if not 0 <= self.start < 1:
            raise ConfigError(f"rank.start must be at least 0 and below 1, got {self.start}.")

    def phase(self, *, total: int, per_epoch: int) -> "RankPhase":
        """When the ranking loss is there in a run of `total` updates.

        >>> phase = RankSettings(start=0.5, warm_up=0.2, refresh=0.5).phase(total=100, per_epoch=30)
        >>> [update for update in range(100) if phase.searches(update)]
        [50, 65, 80, 95]
        >>> phase.strength(49), phase.strength(50), phase.strength(55), phase.strength(99)
        (0.0, 0.1, 0.6, 1.0)
        """
        start = min(round(self.start * total), total - 1)  # a phase has at least one update
        warm_up = round(self.warm_up * (total - start)) if self.warm_up < 1 else round(self.warm_up)
        return RankPhase(start, total, max(1, round(self.refresh * per_epoch)), warm_up)


@dataclass(frozen=True, slots=True)
class RankPhase:
    """The part of a run that has a ranking loss, in updates counted from 0."""

    start: int
    total: int
    interval: int
    """Updates between two searches for negatives."""
    warm_up: int

    def searches(self, update: int) -> bool:
        """Whether negatives are searched before this update."""
        return update >= self.start and (update - self.start) % self.interval == 0

    def number(self, update: int) -> int:
        """Number of the search before this update, from 0."""
        return (update - self.start) // self.interval

    def strength(self, update: int) -> float:
        """Share of the full weight."""
        if update < self.start:
            return 0.0
        return min(1.0, (update - self.start + 1) / self.warm_up) if self.warm_up else 1.0

    def progress(self, update: int) -> float:
        """How much of the phase is over after this update, from 0 to 1."""
        return (update - self.start + 1) / max(1, self.total - self.start)
