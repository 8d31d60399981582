"""Generation losses of soft targets: all right codes of a query at once, codes that can follow, weights of levels."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.codes import Trie
from restd.codes.ending import is_padding
from restd.data.pairs import Pairs
from restd.distill import Positives, share_prefix
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.models import Backbone, Output
from restd.progress import Notify
from restd.train.config import TrainConfig
from restd.train.module import Batch
from restd.train.soft_credit import SoftCredit


@dataclass(frozen=True, slots=True, eq=False)
class RightCodes:
    """The codes that a query's positives continue a prefix with, as distributions.

    A state knows the query and the codes before it, nothing else. So what it should learn is the distribution over
    the positives that share these codes. One pair after another only estimates it.
    """

    sids: Int64[Tensor, "item level"]
    positives: Positives
    alike: bool = False
    """Whether every code counts the same, however many positives have it."""

    def of_rows(
        self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"], *, codes: int
    ) -> Float[Tensor, "row level code"]:
        """Probabilities over `codes` codes of each level, given the codes of the row's item before it.

        >>> sids = torch.tensor([[0, 0], [0, 1], [1, 1]])
        >>> positives = Positives.of(torch.tensor([0, 0, 0]), torch.tensor([0, 1, 2]))
        >>> RightCodes(sids, positives).of_rows(torch.tensor([0]), torch.tensor([0]), codes=2)
        tensor([[[0.6667, 0.3333],
                 [0.5000, 0.5000]]])
        """
        owner, items, weights = self.positives.of_rows(rows, queries)
        members = self.sids[items]
        levels = members.shape[1]
        agree = share_prefix(members, self.sids[rows][owner])
        mass = torch.zeros(len(rows), levels, codes, device=rows.device)
        level = torch.arange(levels, device=rows.device).expand_as(members)
        place = (owner[:, None].expand_as(members), level, members)
        mass.index_put_(place, agree * weights[:, None].float(), accumulate=True)
        mass = (mass > 0).float() if self.alike else mass
        return mass / mass.sum(dim=-1, keepdim=True)


@dataclass(frozen=True, slots=True, eq=False)
class SoftGenerationLoss:
    """The generation loss of training with settings that the backbone's own does not have.

    Args:
        right: distributions in place of the stored codes; None for these. Validation uses stored codes either way.
        trie: normalise over the codes that continue a prefix here; None to leave that to the backbone.
        codes: most codes of a level.
        ends: whether code 0 ends an identifier; behind it there is nothing to learn.
        credit: probabilities of codes that are close to the stored ones; None for none. Validation has none.
        weights: of the positions; None where they count the same, as they do in validation.
    """

    right: RightCodes | None
    trie: Trie | None
    codes: int
    ends: bool = False
    credit: SoftCredit | None = None
    weights: Float[Tensor, "position"] | None = None

    def __call__(self, batch: Batch, output: Output, backbone: Backbone, *, validating: bool) -> Float[Tensor, ""]:
        """Mean over rows and positions."""
        allowed = None if self.trie is None else following_codes(self.trie, batch.sids, codes=self.codes)
        if self.right is not None and not validating:
            targets = self.right.of_rows(batch.rows, batch.queries, codes=self.codes)
        elif self.credit is not None and not validating:
            targets = self.credit.of_rows(batch.sids, codes=self.codes, allowed=allowed)
        else:
            targets = nn.functional.one_hot(batch.sids, self.codes).float()
        if self.ends:
            targets = targets.masked_fill(is_padding(batch.sids)[..., None], 0.0)
        weights = None if validating else self.weights
        return backbone.soft_sid_loss(output, targets, allowed=allowed, weights=weights)


def following_codes(trie: Trie, sids: Int64[Tensor, "row level"], *, codes: int) -> Bool[Tensor, "row level {codes}"]:
    """Which codes may follow the codes of a Semantic ID before each level.

    >>> trie = Trie.of(torch.tensor([[0, 1], [0, 2], [2, 1]]).numpy(), (3, 3))
    >>> following_codes(trie, torch.tensor([[2, 1]]), codes=3).int().tolist()
    [[[1, 0, 1], [0, 1, 0]]]
    """
    nodes = torch.zeros(len(sids), dtype=torch.int64, device=sids.device)
    allowed = torch.zeros(*sids.shape, codes, dtype=torch.bool, device=sids.device)
    for level in range(trie.levels):
        children = trie.children(level, nodes)
        allowed[:, level, : children.shape[1]] = children
        nodes = trie.advance(level, nodes, sids[:, level])
    return allowed


def make_generation_loss(
    config: TrainConfig, index: SidIndex, pairs: Pairs, backbone: Backbone, *, device: torch.device, notify: Notify
) -> SoftGenerationLoss | None:
    """The generation loss that the settings ask for; None for the backbone's own."""
    plain = config.multi_positive == "off" and config.loss_norm == "full_vocab"
    if plain and config.level_weights == "even" and not config.soft_credit:
        return None
    if not backbone.soft_targets:
        raise ConfigError(
            f"The backbone {backbone.kind} has no generation loss of soft targets, which train.multi_positive = "
            f"{config.multi_positive}, train.loss_norm = {config.loss_norm}, train.level_weights = "
            f"{config.level_weights} and train.soft_credit = {config.soft_credit:g} need. Leave them at 'off', "
            "'full_vocab', 'even' and 0, or choose another backbone."
        )
    trie = index.trie.to(device) if config.loss_norm == "trie_children" else None
    right = None
    if config.multi_positive != "off":
        right = _right_codes(config.multi_positive, index, pairs, device)
        several = torch.bincount(torch.from_numpy(pairs.text))[torch.from_numpy(pairs.text)] > 1
        notify(
            f"Multi-positive targets: {int(several.sum()):,} of {len(pairs):,} pairs are of queries with several items"
        )
    credit = None
    if config.soft_credit:
        credit = SoftCredit.of_index(index, share=config.soft_credit, tau=config.soft_credit_tau, device=device)
    weights = position_weights(config.level_weights, len(index.sizes) + 1)
    weights = None if weights is None else weights.to(device)
    return SoftGenerationLoss(right, trie, max(index.sizes), index.ends, credit, weights)


def position_weights(
    setting: Literal["even", "inverse-sqrt"] | float, positions: int
) -> Float[Tensor, "{positions}"] | None:
    """Weights w_t of the positions t = 1, 2, …, before they are scaled to a mean of one; None where all are equal.

    `inverse-sqrt` is 1/√t, as in MERGE's released trainer, and a number γ is γ^(t-1), as in Hi-Gen.

    >>> position_weights("inverse-sqrt", 4), position_weights(0.5, 3), position_weights("even", 3)
    (tensor([1.0000, 0.7071, 0.5774, 0.5000]), tensor([1.0000, 0.5000, 0.2500]), None)
    """
    if setting == "even":
        return None
    if setting == "inverse-sqrt":
        return torch.arange(1, positions + 1, dtype=torch.float32).rsqrt()
    return torch.full((positions,), float(setting)) ** torch.arange(positions)


def _right_codes(
    weighting: Literal["items", "grades", "codes"], index: SidIndex, pairs: Pairs, device: torch.device
) -> RightCodes:
    sids = torch.from_numpy(index.sids.astype(np.int64)).to(device)
    text, item = (torch.from_numpy(column).to(device) for column in (pairs.text, pairs.item))
    grades = torch.from_numpy(pairs.grade).to(device) if weighting == "grades" and pairs.grade is not None else None
    return RightCodes(sids, Positives.of(text, item, grades), alike=weighting == "codes")
