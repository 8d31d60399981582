"""The trie of stored Semantic IDs as flat arrays: what may follow a prefix, for any number of prefixes at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, Int16, Int32, Int64, UInt8
from torch import Tensor

from restd.codes.keys import pack
from restd.errors import ConfigError

_DENSE_BYTES_PER_LEAF = 4
"""A depth gets bitmaps where they cost less than this; deeper nodes have few children, and their list will do."""


@dataclass(frozen=True, slots=True, eq=False)
class Depth:
    """The nodes at one depth and their children one deeper; nodes are numbered in the order of their SIDs."""

    first_child: Int32[Tensor, "node_plus_one"]
    """Number, among the nodes one deeper, of each node's first child; one more entry closes the last range."""
    codes: Int16[Tensor, "child"]
    """Code on the edge to each child, ascending within a node."""
    bitmap: UInt8[Tensor, "node byte"] | None
    """Bit c of byte b: whether code 8b + c is a child. Kept only where it is cheap."""
    size: int
    """Codes at this level."""
    fanout: int
    """Most children of any node."""

    def ranges(self, nodes: Int64[Tensor, "row"]) -> tuple[Int64[Tensor, "row"], Int64[Tensor, "row"]]:
        """First and one-past-last child of each node."""
        return self.first_child[nodes].long(), self.first_child[nodes + 1].long()

    def rank(self, nodes: Int64[Tensor, "row"], codes: Int64[Tensor, "row"]) -> tuple[Tensor, Tensor]:
        """Child of each node by counting the bits below its code, and whether it exists."""
        assert self.bitmap is not None
        bitmaps = self.bitmap[nodes]
        byte, bit = codes >> 3, codes & 7
        own = bitmaps.gather(1, byte[:, None])[:, 0].int()
        whole = torch.arange(bitmaps.shape[1], device=nodes.device) < byte[:, None]
        ones = _ONES.to(nodes.device)
        before = (ones[bitmaps.int()] * whole).sum(1) + ones[own & ((1 << bit) - 1).int()]
        return self.first_child[nodes] + before, (own >> bit) & 1 == 1

    def bisect(self, nodes: Int64[Tensor, "row"], codes: Int64[Tensor, "row"]) -> tuple[Tensor, Tensor]:
        """Child of each node by searching its list of codes, all rows at once, and whether it exists."""
        low, end = self.ranges(nodes)
        high, last = end, len(self.codes) - 1
        for _ in range(self.fanout.bit_length()):
            middle = (low + high) >> 1
            right = (self.codes[middle.clamp_max(last)] < codes) & (middle < high)
            low, high = torch.where(right, middle + 1, low), torch.where(right, high, middle)
        return low, (low < end) & (self.codes[low.clamp_max(last)] == codes)


@dataclass(frozen=True, slots=True, eq=False)
class Trie:
    """All stored SIDs. A node is an integer within its depth; depth 0 has the root, node 0, and leaves have depth L.

    Leaves are numbered in SID order, and `items_of` gives their rows.

    >>> trie = Trie.of(np.array([[0, 1], [0, 2], [3, 1]]), (4, 4))
    >>> trie.children(0, torch.tensor([0])).tolist()
    [[True, False, False, True]]
    >>> below = trie.advance(0, torch.tensor([0, 0]), torch.tensor([0, 3]))
    >>> trie.children(1, below).int().tolist()
    [[0, 1, 1, 0], [0, 1, 0, 0]]
    """

    depths: tuple[Depth, ...]
    leaf_first: Int32[Tensor, "leaf_plus_one"] | None
    """Where each leaf's rows begin in `rows`; None where every leaf has just one."""
    rows: Int32[Tensor, "item"]

    @classmethod
    def of(cls, sids: Int[np.ndarray, "item level"], sizes: Sequence[int]) -> "Trie":
        """Build from SIDs in any order; items may share one."""
        if len(sids) == 0:
            raise ConfigError("A trie needs at least one item; the catalogue or the filter leaves none.")
        keys = pack(sids, sizes)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        new = np.concatenate([[True], keys[1:] != keys[:-1]])
        starts = np.flatnonzero(new)
        leaf_first = None if len(starts) == len(keys) else _int32(np.append(starts, len(keys)))
        return cls(_depths(keys[starts], tuple(sizes)), leaf_first, _int32(order))

    @property
    def levels(self) -> int:
        """Length of a SID."""
        return len(self.depths)

    @property
    def leaves(self) -> int:
        """Number of distinct SIDs."""
        return len(self.depths[-1].codes)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        tensors = [tensor for depth in self.depths for tensor in (depth.first_child, depth.codes, depth.bitmap)]
        return sum(tensor.nbytes for tensor in (*tensors, self.leaf_first, self.rows) if tensor is not None)

    def nodes(self, depth: int) -> int:
        """Number of prefixes of a length."""
        return self.leaves if depth == self.levels else len(self.depths[depth].first_child) - 1

    def children(self, depth: int, nodes: Int64[Tensor, "row"]) -> Bool[Tensor, "row code"]:
        """Which codes may follow each prefix, all of them at `depth`; none may follow -1, which is not a prefix."""
        level = self.depths[depth]
        known = nodes.clamp_min(0)
        if level.bitmap is not None:
            allowed = _UNPACKED.to(nodes.device)[level.bitmap[known].int()].flatten(1)[:, : level.size]
            return allowed & (nodes >= 0)[:, None]
        first, end = level.ranges(known)
        end = torch.where(nodes >= 0, end, first)
        allowed = torch.zeros(len(nodes), level.size, dtype=torch.bool, device=nodes.device)
        row, child = _expand(first, end)
        allowed[row, level.codes[child].long()] = True
        return allowed

    def advance(self, depth: int, nodes: Int64[Tensor, "row"], codes: Int64[Tensor, "row"]) -> Int64[Tensor, "row"]:
        """Node one deeper that each code leads to; -1 where the code is not a child (or the node is -1 already)."""
        level = self.depths[depth]
        known = nodes.clamp_min(0)
        real = codes.clamp(0, level.size - 1)
        child, exists = level.rank(known, real) if level.bitmap is not None else level.bisect(known, real)
        return torch.where(exists & (nodes >= 0) & (real == codes), child, -1)

    def find(self, sids: Int64[Tensor, "row level"]) -> Int64[Tensor, "row"]:
        """Node of each prefix, at the depth of the prefixes' length; of whole SIDs, their leaves. -1 where none is."""
        nodes = torch.zeros(len(sids), dtype=torch.int64, device=sids.device)
        for depth in range(sids.shape[1]):
            nodes = self.advance(depth, nodes, sids[:, depth])
        return nodes

    def spans(self, depth: int, nodes: Int64[Tensor, "node"]) -> tuple[Int64[Tensor, "node"], Int64[Tensor, "node"]]:
        """Where the items below each node begin and end in `rows`, without a visit to any of them.

        >>> trie = Trie.of(np.array([[3, 1], [0, 2], [0, 1], [0, 2]]), (4, 4))
        >>> starts, ends = trie.spans(1, torch.tensor([0, 1]))
        >>> [trie.rows[start:end].tolist() for start, end in zip(starts, ends)]
        [[2, 1, 3], [0]]
        """
        starts, ends = nodes, nodes + 1
        for level in self.depths[depth:]:
            starts, ends = level.first_child[starts].long(), level.first_child[ends].long()
        if self.leaf_first is None:
            return starts, ends
        return self.leaf_first[starts].long(), self.leaf_first[ends].long()

    def items_of(self, leaves: Int64[Tensor, "leaf"]) -> list[list[int]]:
        """Rows of the items at each leaf, ascending."""
        if self.leaf_first is None:
            return [[row] for row in self.rows[leaves].tolist()]
        starts, ends = self.leaf_first[leaves].tolist(), self.leaf_first[leaves + 1].tolist()
        return [self.rows[start:end].tolist() for start, end in zip(starts, ends, strict=True)]

    def sids(self) -> Int16[Tensor, "leaf level"]:
        """Every SID, in order."""
        leaves_below = torch.ones(self.leaves, dtype=torch.int64)
        columns = []
        for depth in reversed(self.depths):
            columns.append(depth.codes.repeat_interleave(leaves_below))
            total = torch.cat([leaves_below.new_zeros(1), leaves_below.cumsum(0)])
            leaves_below = total[depth.first_child.long()].diff()
        return torch.stack(columns[::-1], dim=1)

    def restrict(self, keep: Bool[Tensor, "item"]) -> "Trie":
        """Return the trie of only those items (by row) that are kept."""
        per_row = keep[self.rows.long()]
        if not per_row.any():
            raise ConfigError("A trie needs at least one item; the catalogue or the filter leaves none.")
        leaf_first, alive = self._restrict_leaves(per_row)
        depths = []
        for depth in reversed(self.depths):
            total = torch.cat([alive.new_zeros(1, dtype=torch.int32), alive.cumsum(0, dtype=torch.int32)])
            first = total[depth.first_child.long()]
            parent = first[1:] > first[:-1]
            edges = torch.cat([first[:-1][parent], total[-1:]])
            depths.append(_depth(edges, depth.codes[alive], depth.size, leaves=int(per_row.sum())))
            alive = parent
        return type(self)(tuple(depths[::-1]), leaf_first, self.rows[per_row])

    def _restrict_leaves(self, per_row: Bool[Tensor, "item"]) -> tuple[Tensor | None, Bool[Tensor, "leaf"]]:
        if self.leaf_first is None:
            return None, per_row
        total = torch.cat([per_row.new_zeros(1, dtype=torch.int32), per_row.cumsum(0, dtype=torch.int32)])
        first = total[self.leaf_first.long()]
        alive = first[1:] > first[:-1]
        kept = torch.cat([first[:-1][alive], total[-1:]])
        return (None if bool((kept.diff() == 1).all()) else kept), alive

    def to(self, device: torch.device | str) -> "Trie":
        """Return a copy on a device."""
        depths = tuple(
            Depth(
                depth.first_child.to(device),
                depth.codes.to(device),
                None if depth.bitmap is None else depth.bitmap.to(device),
                depth.size,
                depth.fanout,
            )
            for depth in self.depths
        )
        leaf_first = None if self.leaf_first is None else self.leaf_first.to(device)
        return type(self)(depths, leaf_first, self.rows.to(device))


_UNPACKED = torch.from_numpy(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(bool)
)
"""The eight bits of every byte."""
_ONES = _UNPACKED.sum(1)


def _int32(values: np.ndarray) -> Int32[Tensor, "value"]:
    return torch.from_numpy(values.astype(np.int32))


def _depths(keys: Int64[np.ndarray, "leaf"], sizes: tuple[int, ...]) -> tuple[Depth, ...]:
    """Build every depth from sorted distinct keys, the deepest first: a node's key is its child's without the code."""
    depths = []
    leaves = len(keys)
    for size in reversed(sizes):
        parents, codes = np.divmod(keys, size)
        starts = np.flatnonzero(np.concatenate([[True], parents[1:] != parents[:-1]]))
        edges = _int32(np.append(starts, len(keys)))
        depths.append(_depth(edges, torch.from_numpy(codes.astype(np.int16)), size, leaves=leaves))
        keys = parents[starts]
    return tuple(depths[::-1])


def _depth(first_child: Int32[Tensor, "edge"], codes: Int16[Tensor, "child"], size: int, *, leaves: int) -> Depth:
    nodes, width = len(first_child) - 1, -(-size // 8)
    fanout = int(first_child.diff().max())
    if nodes * width > max(_DENSE_BYTES_PER_LEAF * leaves, 1 << 16):
        return Depth(first_child, codes, None, size, fanout)
    node = torch.repeat_interleave(torch.arange(nodes), first_child.diff().long())
    code = codes.long()
    flat = torch.zeros(nodes * width, dtype=torch.int32)
    flat.index_add_(0, node * width + code // 8, torch.bitwise_left_shift(torch.ones_like(code), code % 8).int())
    return Depth(first_child, codes, flat.to(torch.uint8).view(nodes, width), size, fanout)


def _expand(
    first: Int64[Tensor, "row"], end: Int64[Tensor, "row"]
) -> tuple[Int64[Tensor, "child"], Int64[Tensor, "child"]]:
    """Row and child of every element of the given ranges, without a loop."""
    lengths = end - first
    row = torch.repeat_interleave(torch.arange(len(first), device=first.device), lengths)
    offset = first - (lengths.cumsum(0) - lengths)
    return row, torch.arange(len(row), device=first.device) + offset[row]
