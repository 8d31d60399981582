"""LTRGR, RIPOR and DDRO as objectives: a pair's own item against negatives of its query."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.codes import Trie
from restd.codes.ending import is_padding
from restd.models import Backbone
from restd.train.generation import following_codes
from restd.train.module import Batch, Forward
from restd.train.negatives import NegativeTable
from restd.train.rank_losses import Contrast, ddro_losses, ltrgr_losses, ripor_losses
from restd.train.rank_settings import RankPhase, RankSettings


@dataclass(frozen=True, slots=True)
class RankLoss:
    """A ranking loss.

    Args:
        losses: of each pair, from a contrast, the settings and how much of the ranking phase is over.
        weight: its own weight, where [rank] has none.
        best_first: compare with the best-ranked negative and a drawn one; otherwise all are drawn.
    """

    losses: Callable[[Contrast, RankSettings, float], Float[Tensor, "pair"]]
    weight: float
    best_first: bool = False


RANK_LOSSES = {
    "ltrgr": RankLoss(ltrgr_losses, 0.3, best_first=True),
    "ripor": RankLoss(ripor_losses, 0.02),
    "ddro": RankLoss(ddro_losses, 1.0),
}


@dataclass(frozen=True, slots=True, eq=False)
class CodeScores:
    """How a code is scored, given the codes before it: as a search with the run's normalisation would.

    Args:
        logits: take logits as they are, in place of log-probabilities.
        trie: normalise over the codes that continue a prefix here; None for all codes of a level.
    """

    logits: bool = False
    trie: Trie | None = None

    def __call__(
        self, backbone: Backbone, states: Float[Tensor, "row level width"], sids: Int64[Tensor, "row level"]
    ) -> Float[Tensor, "row level"]:
        """Score of every code of Semantic IDs, from the states that predict them; 0 behind the end of one."""
        scores = backbone.logits(states).float()
        if not self.logits:
            if self.trie is not None:
                allowed = following_codes(self.trie, sids, codes=scores.shape[-1])
                scores = scores.masked_fill(~allowed, -torch.inf)
            scores = scores.log_softmax(dim=-1)
        scores = scores.gather(-1, sids[..., None])[..., 0]
        return scores.masked_fill(is_padding(sids), 0.0) if backbone.ends else scores


class RankObjective(nn.Module):
    """A ranking loss over the negatives that a run was last given; pairs whose query has none have no loss.

    Negatives are decoded from the memory that the generation loss read. The positive of a pair is the batch's own, with
    the states it has already; over an epoch it is a draw from its query's positives.

    Args:
        loss: which one.
        settings: the section [rank].
        phase: when in the run it is there.
        sids: of every item, on the device of training.
        scores: how codes are scored.
    """

    def __init__(
        self,
        loss: RankLoss,
        settings: RankSettings,
        phase: RankPhase,
        sids: Int64[Tensor, "item level"],
        scores: CodeScores,
    ) -> None:
        super().__init__()
        self.loss, self.settings, self.phase, self.scores = loss, settings, phase, scores
        self.weight = loss.weight if settings.weight is None else settings.weight
        self.count = 2 if loss.best_first else settings.drawn
        self.sids: Tensor
        self.register_buffer("sids", sids, persistent=False)
        self.table: NegativeTable | None = None
        """Negatives that were last searched; None before the ranking phase."""

    def forward(self, batch: Batch, forward: Forward, *, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be added, and its parts."""
        zero = forward.sid_loss.new_zeros(())
        if self.table is None or step < self.phase.start:
            return zero, {"rank_loss": zero, "ranked": zero}
        pairs = (self.table.place[batch.queries] >= 0).nonzero()[:, 0]
        rank_loss = self._losses(self.table, batch, forward, pairs, step).sum() / len(batch.rows)
        loss = self.weight * self.phase.strength(step) * rank_loss
        if self.settings.generation != 1:
            loss = loss + (self.settings.generation - 1) * forward.sid_loss
        return loss, {"rank_loss": rank_loss.detach(), "ranked": zero + len(pairs) / len(batch.rows)}

    def _losses(
        self, table: NegativeTable, batch: Batch, forward: Forward, pairs: Int64[Tensor, "pair"], step: int
    ) -> Float[Tensor, "pair"]:
        """Loss of each of the pairs, which are rows of the batch."""
        if not len(pairs):
            return forward.sid_loss.new_zeros(0)
        assert forward.memory is not None
        backbone, queries = forward.backbone, batch.queries[pairs]
        items, scores = table.draw(queries, self.count, best_first=self.loss.best_first)
        sids = self.sids[items.flatten()]
        states = backbone.states(forward.memory.take(pairs.repeat_interleave(self.count)), sids).states
        contrast = Contrast(
            self.scores(backbone, forward.output.states[pairs], batch.sids[pairs]),
            self.scores(backbone, states, sids).unflatten(0, (-1, self.count)),
            table.scores_of(queries, batch.rows[pairs]),
            scores,
        )
        return self.loss.losses(contrast, self.settings, self.phase.progress(step))
