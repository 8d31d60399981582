"""Beyond the paper, off by default: mean teachers of all of a query's positives, and teachers that respect the trie."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from restd.distill.geometry import Geometry
from restd.distill.targets import Targets, Teacher
from restd.errors import ConfigError
from restd.index.trie import Trie


@dataclass(frozen=True, slots=True, eq=False)
class MeanTeacher:
    """Targets averaged over the query's positives that share the prefix a state has seen.

    A state at level t knows the query and y_{<t}, nothing else, so over the positives that agree up to there the mean
    teacher is what forward KL asks for in expectation. Sampling one positive a step estimates it; this computes it.
    """

    base: Teacher
    positives: Int64[Tensor, "positive"]
    """Rows of all queries' positives, one query after another."""
    first: Int64[Tensor, "query_plus_one"]
    """Where each query's positives begin."""

    @classmethod
    def of(cls, base: Teacher, queries: Int64[Tensor, "pair"], rows: Int64[Tensor, "pair"]) -> "MeanTeacher":
        """Take training pairs: numbers of queries from 0, and rows of items."""
        order = torch.argsort(queries, stable=True)
        counts = torch.bincount(queries)
        return cls(base, rows[order], torch.cat([counts.new_zeros(1), counts.cumsum(0)]))

    @property
    def geometry(self) -> Geometry:
        """The base teacher's."""
        return self.base.geometry

    @property
    def replaced(self) -> float:
        """All of them: even a lone positive's target is a mean."""
        return 1.0

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """One slot a cell: state t has its own mean for each later level."""
        if queries is None:
            raise ConfigError("The mean teacher needs to know each row's query; pass queries=… with the rows.")
        start, end = self.first[queries], self.first[queries + 1]
        owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), end - start)
        place = torch.arange(len(owner), device=rows.device) - (end - start).cumsum(0)[owner] + end[owner]
        members = self.positives[place]
        values = self.base.targets(members).values
        if values.shape[1] != self.geometry.levels:
            raise ConfigError("The mean teacher averages teachers with one slot a level; apply it to such a one.")
        levels, codes = self.geometry.levels, values.shape[-1]
        same = self.geometry.stored(members) == self.geometry.stored(rows)[owner]
        agree = torch.cat([torch.ones_like(same[:, :1]), same[:, :-1].cumprod(dim=1).bool()], dim=1)  # on y_{<t}
        total = values.new_zeros(len(rows), levels, levels, codes)
        total.index_add_(0, owner, agree[:, :, None, None] * values[:, None])
        count = values.new_zeros(len(rows), levels).index_add_(0, owner, agree.to(values.dtype))
        if (count == 0).any():
            row = int(rows[(count == 0).any(dim=1)][0])
            raise ConfigError(f"Item row {row} is not among the positives of the query it came with; check the pairs.")
        state = torch.arange(levels, device=rows.device)
        target = (state[:, None] + state).clamp_max(levels - 1)
        mean = (total / count[:, :, None, None]).flatten(1, 2)
        return Targets(mean, state[:, None] * levels + target)


@dataclass(frozen=True, slots=True, eq=False)
class TrieTeacher:
    """No mass on codes that no stored SID can follow: targets renormalised over the children of the stored prefix."""

    base: Teacher
    trie: Trie

    @property
    def geometry(self) -> Geometry:
        """The base teacher's."""
        return self.base.geometry

    @property
    def replaced(self) -> float:
        """The base teacher's share: restriction takes impossible codes away, and replaces nobody's target."""
        return self.base.replaced

    def targets(self, rows: Int64[Tensor, "row"], queries: Int64[Tensor, "row"] | None = None) -> Targets:
        """One slot a level, as the base has it."""
        own = self.base.targets(rows)
        if own.values.shape[1] != self.geometry.levels:
            raise ConfigError(
                "Trie restriction works on teachers with one slot a level; apply it before other teachers."
            )
        kept = torch.where(self._allowed(rows), own.values, 0.0)
        return replace(own, values=kept / kept.sum(-1, keepdim=True))

    def _allowed(self, rows: Int64[Tensor, "row"]) -> Bool[Tensor, "row level code"]:
        stored = self.geometry.stored(rows)
        codes = self.geometry.codebooks.shape[1]
        nodes = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        allowed = []
        for level in range(self.geometry.levels):
            children = self.trie.children(level, nodes)
            allowed.append(torch.nn.functional.pad(children, (0, codes - children.shape[1])))
            nodes = self.trie.advance(level, nodes, stored[:, level])
        return torch.stack(allowed, dim=1)
