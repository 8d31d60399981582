"""Beyond the paper, off by default: mean teachers of all of a query's positives, and teachers that respect the trie."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from restd.codes import Trie
from restd.distill.controls import one_hot
from restd.distill.equations import DIVISIBLE_MASS
from restd.distill.geometry import Geometry
from restd.distill.positives import Positives, share_prefix
from restd.distill.targets import Targets, Teacher
from restd.errors import ConfigError

_ROWS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class MeanTeacher:
    """Targets averaged over the query's positives that share the prefix a state has seen.

    A state at level t knows the query and y_{<t}, nothing else, so over the positives that agree up to there the mean
    teacher is what forward KL leads to in expectation. Sampling one positive per step estimates it; this computes it.
    """

    base: Teacher
    positives: Positives

    @classmethod
    def of(cls, base: Teacher, queries: Int64[Tensor, "pair"], rows: Int64[Tensor, "pair"]) -> "MeanTeacher":
        """Take training pairs: numbers of queries from 0, and rows of items."""
        return cls(base, Positives.of(queries, rows))

    @property
    def geometry(self) -> Geometry:
        """The base teacher's."""
        return self.base.geometry

    @property
    def replaced(self) -> float:
        """All of them: even a lone positive's target is a mean."""
        return 1.0

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """One slot per cell: state t has its own mean for each later level."""
        if queries is None:
            raise ConfigError("The mean teacher needs the query of each row. Pass queries= with the rows.")
        owner, members, _ = self.positives.of_rows(rows, queries)
        values = self.base.targets(members).values
        if values.shape[1] != self.geometry.levels:
            raise ConfigError("The mean teacher needs a base with one slot per level. Apply other teachers after it.")
        levels, codes = self.geometry.levels, values.shape[-1]
        agree = share_prefix(self.geometry.stored(members), self.geometry.stored(rows)[owner])  # on y_{<t}
        total = values.new_zeros(len(rows), levels, levels, codes)
        total.index_add_(0, owner, agree[:, :, None, None] * values[:, None])
        count = values.new_zeros(len(rows), levels).index_add_(0, owner, agree.to(values.dtype))
        state = torch.arange(levels, device=rows.device)
        target = (state[:, None] + state).clamp_max(levels - 1)
        mean = (total / count[:, :, None, None]).flatten(1, 2)
        return Targets(mean, state[:, None] * levels + target)


@dataclass(frozen=True, slots=True, eq=False)
class TrieTeacher:
    """No mass on codes that no stored SID can follow: targets renormalised over the children of the stored prefix.

    Where the base gives the children no mass that float32 can divide by, the target is the stored code alone.
    """

    base: Teacher
    trie: Trie

    def __post_init__(self) -> None:
        sids = self.geometry.sids
        if sids.shape[1] != self.trie.levels:
            raise ConfigError(f"Expected a trie of SIDs with {sids.shape[1]} codes, got one with {self.trie.levels}.")
        for start, part in enumerate(sids.split(_ROWS)):
            missing = self.trie.find(part.long()) < 0
            if missing.any():
                row = start * _ROWS + int(missing.nonzero()[0, 0])
                raise ConfigError(f"The SID of item row {row} is not in the trie. Pass the trie of the same index.")

    @property
    def geometry(self) -> Geometry:
        """The base teacher's."""
        return self.base.geometry

    @property
    def replaced(self) -> float:
        """The base teacher's share: restriction removes impossible codes, and replaces nobody's target."""
        return self.base.replaced

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """One slot per level, as the base has it."""
        base = self.base.targets(rows)
        if base.values.shape[1] != self.geometry.levels:
            raise ConfigError("The trie teacher needs a base with one slot per level. Apply other teachers after it.")
        possible = torch.where(self._allowed(rows), base.values, 0.0)
        mass = possible.sum(-1, keepdim=True)
        divisible = mass > DIVISIBLE_MASS
        shares = possible / torch.where(divisible, mass, 1.0)
        return replace(base, values=torch.where(divisible, shares, one_hot(self.geometry, rows)))

    def _allowed(self, rows: Int64[Tensor, "row"]) -> Bool[Tensor, "row level code"]:
        stored = self.geometry.stored(rows)
        codes = self.geometry.codebooks.values.shape[1]
        nodes = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        allowed = []
        for level in range(self.geometry.levels):
            children = self.trie.children(level, nodes)
            allowed.append(torch.nn.functional.pad(children, (0, codes - children.shape[1])))
            nodes = self.trie.advance(level, nodes, stored[:, level])
        return torch.stack(allowed, dim=1)
