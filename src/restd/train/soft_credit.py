"""Soft labels as in Hi-Gen: some of a code's probability goes to the codes of its position that are close to it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.codes import Codebooks, Trie
from restd.errors import ConfigError
from restd.index import SidIndex

_TINY = torch.finfo(torch.float32).tiny


@runtime_checkable
class Gaps(Protocol):
    """Squared distances between clusters of one position."""

    def __call__(self, sids: Int64[Tensor, "row level"], *, codes: int) -> Float[Tensor, "row level code"]:
        """From the cluster of each code of a Semantic ID to the others, infinite where there is none.

        Distances are relative to the level's mean, so that one temperature suits every level and every index.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CodewordGaps:
    """Distances between the codewords of a level; a level without a codebook has no clusters but the code's own."""

    codebooks: Codebooks
    scale: Float[Tensor, "level"]

    @classmethod
    def of(cls, codebooks: Codebooks) -> "CodewordGaps":
        """Measure the codebooks."""
        levels = map(codebooks.level, range(codebooks.levels))
        return cls(codebooks, torch.stack([2 * _variance(book - book.mean(dim=0)) for book in levels]))

    def __call__(self, sids: Int64[Tensor, "row level"], *, codes: int) -> Float[Tensor, "row level code"]:
        """See `Gaps`."""
        levels, most = self.codebooks.mask.shape
        level = torch.arange(levels, device=sids.device)
        books, places = self.codebooks.values, sids[:, :levels]
        own = books[level, places]
        squares = books.square().sum(dim=-1)
        apart = squares + squares[level, places][:, :, None] - 2 * torch.einsum("rld,lcd->rlc", own, books)
        gaps = torch.full((*sids.shape, codes), torch.inf, device=sids.device)
        gaps[:, :levels, :most] = (apart.clamp_min(0) / self.scale[:, None]).masked_fill(
            ~self.codebooks.mask, torch.inf
        )
        return gaps.scatter(2, sids[:, :, None], 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class PrefixGaps:
    """Distances between the means of the items below each of the prefixes that continue the same one."""

    trie: Trie
    centres: tuple[Float[Tensor, "_ dim"], ...]
    """Of the nodes at each depth from 1 on."""
    scale: tuple[float, ...]

    @classmethod
    def of(cls, trie: Trie, sids: Int64[Tensor, "item level"], points: Float[Tensor, "item dim"]) -> "PrefixGaps":
        """Find the centre of every prefix of the items.

        >>> sids = torch.tensor([[0, 0], [0, 1], [1, 0]])
        >>> gaps = PrefixGaps.of(Trie.of(sids.numpy(), (2, 2)), sids, torch.tensor([[1.0], [3.0], [6.0]]))
        >>> [centres.flatten().tolist() for centres in gaps.centres]
        [[2.0, 6.0], [1.0, 3.0, 6.0]]
        """
        centres, scale = [], []
        for depth in range(1, trie.levels + 1):
            nodes = trie.find(sids[:, :depth])
            centre = _means(points, nodes, count=trie.nodes(depth))
            children = trie.depths[depth - 1].first_child.long().diff()
            parent = torch.repeat_interleave(torch.arange(len(children)), children)
            apart = centre - _means(centre, parent, count=len(children))[parent]
            scale.append(float(2 * _variance(apart[children[parent] > 1])))
            centres.append(centre)
        return cls(trie, tuple(centres), tuple(scale))

    def to(self, device: torch.device | str) -> "PrefixGaps":
        """Return a copy on a device."""
        return PrefixGaps(self.trie.to(device), tuple(centre.to(device) for centre in self.centres), self.scale)

    def __call__(self, sids: Int64[Tensor, "row level"], *, codes: int) -> Float[Tensor, "row level code"]:
        """See `Gaps`."""
        gaps = torch.full((*sids.shape, codes), torch.inf, device=sids.device)
        nodes = torch.zeros(len(sids), dtype=torch.int64, device=sids.device)
        for depth, centres in enumerate(self.centres):
            size = self.trie.depths[depth].size
            every_code = torch.arange(size, device=sids.device).repeat(len(sids))
            children = self.trie.advance(depth, nodes.repeat_interleave(size), every_code).view(-1, size)
            nodes = children.gather(1, sids[:, depth, None])[:, 0]
            apart = (centres[children.clamp_min(0)] - centres[nodes][:, None]).square().sum(dim=-1)
            gaps[:, depth, :size] = (apart / self.scale[depth]).masked_fill(children < 0, torch.inf)
        return gaps


@dataclass(frozen=True, slots=True, eq=False)
class SoftCredit:
    """Targets ỹ = (1-ε) onehot(y) + ε softmax(-‖c_y-c_j‖²/τ).

    Args:
        share: ε.
        tau: τ, relative to the mean squared distance between clusters of the level.
        gaps: the distances.
    """

    share: float
    tau: float
    gaps: Gaps

    @classmethod
    def of_index(cls, index: SidIndex, *, share: float, tau: float, device: torch.device) -> "SoftCredit":
        """Compare codewords where the index has codebooks, and otherwise prefixes by where their items are."""
        if index.codebooks is not None:
            return cls(share, tau, CodewordGaps.of(index.codebooks.to(device)))
        if index.latents is None:
            raise ConfigError(
                "train.soft_credit needs to know which codes are close to each other, and this index has neither "
                "codebooks nor latents. Set train.soft_credit=0, import the index with --codebooks, or build one."
            )
        sids, points = torch.from_numpy(index.sids.astype(np.int64)), torch.from_numpy(index.latents).float()
        return cls(share, tau, PrefixGaps.of(index.trie, sids, points).to(device))

    def of_rows(
        self,
        sids: Int64[Tensor, "row level"],
        *,
        codes: int,
        allowed: Bool[Tensor, "row level code"] | None = None,
    ) -> Float[Tensor, "row level code"]:
        """Probabilities over `codes` codes of each level; only allowed ones get any.

        >>> gaps = CodewordGaps.of(Codebooks.of([torch.tensor([[0.0], [1.0], [9.0]])]))
        >>> SoftCredit(0.5, 0.1, gaps).of_rows(torch.tensor([[0]]), codes=3).round(decimals=2)
        tensor([[[0.7900, 0.2100, 0.0000]]])
        """
        gaps = self.gaps(sids, codes=codes)
        if allowed is not None:
            gaps = gaps.masked_fill(~allowed, torch.inf)
        near = (-gaps / self.tau).softmax(dim=-1)
        return (1 - self.share) * nn.functional.one_hot(sids, codes).float() + self.share * near


def _variance(apart: Float[Tensor, "point dim"]) -> Float[Tensor, ""]:
    """Mean square, above zero; that of independent pairs of points is twice as much."""
    if len(apart) == 0:
        return torch.ones(())
    return apart.square().sum(dim=-1).mean().clamp_min(_TINY)


def _means(
    points: Float[Tensor, "point dim"], groups: Int64[Tensor, "point"], *, count: int
) -> Float[Tensor, "group dim"]:
    sums = torch.zeros(count, points.shape[1]).index_add_(0, groups, points)
    return sums / torch.bincount(groups, minlength=count)[:, None]
