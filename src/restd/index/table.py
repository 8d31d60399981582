"""Items and their Semantic IDs, looked up both ways."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from jaxtyping import Int, Int16, Int64

from restd.codes.ending import TERMINAL, check_ended, without_padding
from restd.codes.keys import pack
from restd.errors import DataError


@dataclass(frozen=True, eq=False)
class SidTable:
    """Row n holds item `ids[n]` with the SID `sids[n]`; `sizes` counts the codes of each level.

    >>> table = SidTable(pa.array(["mug", "cup"]), np.array([[0, 1], [2, 0]], np.int16), (4, 4))
    >>> table.sid("cup"), table.items((0, 1)), table.items((3, 3))
    ((2, 0), ['mug'], [])

    With `ends`, code 0 ends an identifier, so that they may be of unequal length; `sids` are filled up with it.

    >>> table = SidTable(pa.array(["mug", "cup"]), np.array([[1, 0], [1, 2]], np.int16), (4, 4), ends=True)
    >>> table.sid("mug"), table.items((1,)), table.items((1, 2))
    ((1,), ['mug'], ['cup'])
    """

    ids: pa.StringArray
    sids: Int16[np.ndarray, "item level"]
    sizes: tuple[int, ...]
    ends: bool = False

    def __post_init__(self) -> None:
        if self.ends:
            check_ended(self.sids, self.sizes)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, items: Iterable[str]) -> Int64[np.ndarray, "item"]:
        """Return the rows of items; an unknown one is an error."""
        try:
            return np.array([self._row_of[item] for item in items], np.int64)
        except KeyError as error:
            raise DataError(
                f"Item {error.args[0]!r} is not in this index of {len(self):,} items. Check the id."
            ) from error

    def sid(self, item: str) -> tuple[int, ...]:
        """SID of an item, without what fills up a shorter one."""
        return self.shown(self.rows([item]))[0]

    def shown(self, rows: Int[np.ndarray, "row"]) -> list[tuple[int, ...]]:
        """SIDs of rows for people: without what fills up shorter ones."""
        sids = map(tuple, self.sids[rows].tolist())
        return [without_padding(sid) for sid in sids] if self.ends else list(sids)

    def items(self, sid: Sequence[int]) -> list[str]:
        """Items that hold a SID, in row order; none for a SID that is not stored.

        A SID that ends early may be given with or without the codes that fill it up.
        """
        if self.ends:
            sid = (*sid, *[TERMINAL] * (len(self.sizes) - len(sid)))
        fits = len(sid) == len(self.sizes) and all(0 <= code < size for code, size in zip(sid, self.sizes, strict=True))
        if not fits:
            return []
        keys, order = self._sorted_keys
        key = pack(np.array([sid]), self.sizes)[0]
        low, high = np.searchsorted(keys, [key, key + 1])
        return [self.ids[int(row)].as_py() for row in order[low:high]]

    @cached_property
    def unique(self) -> int:
        """Number of distinct SIDs."""
        keys, _ = self._sorted_keys
        return int((np.diff(keys) != 0).sum()) + (len(keys) > 0)

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {item: row for row, item in enumerate(self.ids.to_pylist())}

    @cached_property
    def _sorted_keys(self) -> tuple[np.ndarray, np.ndarray]:
        keys = pack(self.sids, self.sizes)
        order = np.argsort(keys, kind="stable")
        return keys[order], order


def refuse_known(table: SidTable, ids: Sequence[str]) -> None:
    """Refuse ids of new items that are in the table, or occur twice."""
    known = set(table.ids.to_pylist())
    for item in ids:
        if item in known:
            raise DataError(f"Item {item!r} is in the index already, or twice among the new items. Remove it first.")
        known.add(item)
