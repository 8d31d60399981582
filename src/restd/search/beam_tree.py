"""The beam of one search as a tree: which prefixes were kept at each level, and which were pruned."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int64

from restd.codes import Trie
from restd.errors import ConfigError
from restd.search.beam import Level
from restd.search.trace import TracedSearch

NODES = 60
"""Nodes of a level that are in the tree at most, unless a caller wants more."""
_PRUNED = 4
"""One node in so many shows a prefix that was pruned."""


@dataclass(frozen=True, slots=True)
class BeamNode:
    """A prefix that the search considered."""

    id: int
    """Its number in the tree."""
    parent: int | None
    """Number of the node one level before; None at the first level."""
    prefix: tuple[int, ...]
    score: float
    """What it was kept or pruned by: log-probability, with the look-ahead where there is one."""
    kept: bool
    rank: int
    """Among all candidates of its level, from 1; equals are in SID order."""
    on_path: bool
    """Whether the named item is below it."""
    items: int
    """Items below it, of those that are searched."""
    example: str
    """Title of the first of them."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "prefix": list(self.prefix), "code": self.prefix[-1]}


@dataclass(frozen=True, slots=True)
class BeamLevel:
    """One level of the search."""

    level: int
    """From 1."""
    candidates: int
    """Continuations there were."""
    survivors: int
    """How many were kept."""
    edge: float
    """Score of the last survivor."""
    nodes: tuple[BeamNode, ...]
    """The best survivors, the best that were pruned, and the named item's prefix; best first."""

    @property
    def survivors_hidden(self) -> int:
        """Survivors that are not in the tree."""
        return self.survivors - sum(node.kept for node in self.nodes)

    @property
    def pruned_hidden(self) -> int:
        """Pruned candidates that are not in the tree."""
        return self.candidates - self.survivors - sum(not node.kept for node in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "level": self.level,
            "candidates": self.candidates,
            "survivors": self.survivors,
            "edge": self.edge,
            "nodes": [node.to_dict() for node in self.nodes],
            "survivors_hidden": self.survivors_hidden,
            "pruned_hidden": self.pruned_hidden,
        }


@dataclass(frozen=True, slots=True)
class BeamTree:
    """The beam of one search, level by level. Every node's parent is in the tree too."""

    levels: tuple[BeamLevel, ...]
    beam: int
    """Prefixes kept at every level, without those that were added for items of the history."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"levels": [level.to_dict() for level in self.levels], "beam": self.beam}


def beam_tree(
    search: TracedSearch, titles: pa.Array, *, sid: Sequence[int] | None = None, nodes: int = NODES
) -> BeamTree:
    """Run a search and keep what its beam considered.

    Args:
        search: of one query.
        titles: of all items, by row.
        sid: of the item whose path is always in the tree, as far as it was considered.
        nodes: most nodes of a level; the work grows with it, and not with the catalogue.
    """
    if nodes < 2:
        raise ConfigError(f"nodes = {nodes}: expected at least 2, one that was kept and the path of the item.")
    considered: list[_Considered] = []
    search.run(search.width, lambda level: considered.append(_Considered.of(level, sid)))
    selected = _select(considered, nodes)
    levels: list[BeamLevel] = []
    id_of: dict[tuple[int, ...], int] = {}
    for one, places in zip(considered, selected, strict=True):
        prefixes = one.prefixes(places)
        counts, first = _below(search.trie, prefixes)
        examples = titles.take(pa.array(first)).to_pylist()
        made = tuple(
            BeamNode(
                id=len(id_of) + number,
                parent=id_of.get(prefix[:-1]),
                prefix=prefix,
                score=float(one.scores[place]),
                kept=bool(one.ranks[place] <= one.survivors),
                rank=int(one.ranks[place]),
                on_path=place == one.path,
                items=counts[number],
                example=examples[number],
            )
            for number, (place, prefix) in enumerate(zip(places.tolist(), map(tuple, prefixes.tolist()), strict=True))
        )
        id_of |= {node.prefix: node.id for node in made}
        levels.append(BeamLevel(one.level + 1, one.candidates, one.survivors, one.edge, made))
    return BeamTree(tuple(levels), search.width - search.extra)


@dataclass(frozen=True, slots=True, eq=False)
class _Considered:
    """One level as arrays; candidates are places in the flat table of parents and codes."""

    level: int
    parents: Int64[np.ndarray, "parent level"]
    codes: int
    scores: Float[np.ndarray, "candidate"]
    ranks: Int64[np.ndarray, "candidate"]
    """From 1; one more than the number of candidates for places that are none."""
    order: Int64[np.ndarray, "_"]
    """Places of the candidates, best first."""
    survivors: int
    edge: float
    path: int
    """Place of the item's prefix; -1 where it is not among the candidates."""

    @classmethod
    def of(cls, level: Level, sid: Sequence[int] | None) -> "_Considered":
        parents, table = level.prefixes[0].cpu().numpy(), level.candidates[0].cpu().numpy()
        scores, codes = table.ravel(), table.shape[1]
        candidates = int((scores > -np.inf).sum())
        order = np.argsort(-scores, kind="stable")[:candidates]  # places are in SID order, and equals stay so
        ranks = np.full(len(scores), candidates + 1, np.int64)
        ranks[order] = np.arange(1, candidates + 1)
        kept = level.kept[0][level.kept[0] > -torch.inf]
        path = -1
        if sid is not None:
            same = (parents == np.array(sid[: level.level], np.int64)).all(axis=1)
            places = np.flatnonzero(same) * codes + sid[level.level]
            path = int(max(places[scores[places] > -np.inf], default=-1))
        return cls(level.level, parents, codes, scores, ranks, order, len(kept), float(kept.min()), path)

    @property
    def candidates(self) -> int:
        """How many there are."""
        return len(self.order)

    def prefixes(self, places: Int64[np.ndarray, "place"]) -> Int64[np.ndarray, "place longer"]:
        """Prefixes of candidates, this level's code included."""
        return np.column_stack([self.parents[places // self.codes], places % self.codes])


def _select(considered: Sequence[_Considered], nodes: int) -> list[Int64[np.ndarray, "_"]]:
    """Places of the nodes to keep of each level, best first.

    From the last level up: its best survivors, and then the parents of what was selected and more survivors. So all
    parents are there, and their number cannot grow. Then the best pruned candidates below what was selected.
    """
    pruned_most = nodes // _PRUNED
    survivors_most = max(1, nodes - pruned_most - 1)
    survivors: list[np.ndarray] = []
    needed: set[tuple[int, ...]] = set()
    for one in reversed(considered):
        kept = one.order[: one.survivors]
        is_needed = np.array([tuple(prefix) in needed for prefix in one.prefixes(kept).tolist()], bool)
        on_path = kept == one.path
        first, rest = kept[is_needed & ~on_path], kept[~is_needed & ~on_path]
        chosen = np.concatenate([first, rest[: survivors_most - len(first)]])
        if one.path >= 0:
            chosen = np.append(chosen, one.path)
        needed = {tuple(prefix[:-1]) for prefix in one.prefixes(chosen).tolist()}
        survivors.insert(0, chosen)
    selected: list[np.ndarray] = []
    above: set[tuple[int, ...]] = {()}
    for one, chosen in zip(considered, survivors, strict=True):
        is_parent = np.array([tuple(prefix) in above for prefix in one.parents.tolist()], bool)
        pruned = one.order[one.survivors :]
        pruned = pruned[is_parent[pruned // one.codes] & (pruned != one.path)][:pruned_most]
        places = np.concatenate([chosen, pruned])
        selected.append(places[np.argsort(one.ranks[places])])
        above = set(map(tuple, one.prefixes(chosen).tolist()))
    return selected


def _below(trie: Trie, prefixes: Int64[np.ndarray, "node level"]) -> tuple[list[int], list[int]]:
    """How many items are below each prefix, and the row of the first of them."""
    nodes = trie.find(torch.from_numpy(prefixes).to(trie.rows.device))
    starts, ends = trie.spans(prefixes.shape[1], nodes)
    return (ends - starts).tolist(), trie.rows[starts].tolist()
