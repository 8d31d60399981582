"""Histories written by hand."""

import numpy as np
import pyarrow as pa

from restd.data import Histories, History

ITEMS = 30


def histories_of(*sequences, items=ITEMS):
    """Histories over items i0, i1, … by hand."""
    lengths = [len(held) for held in sequences]
    taken = np.concatenate([np.array(held, np.int64) for held in sequences])
    users = pa.array([f"u{number}" for number in range(len(sequences))])
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Histories(users, pa.array([f"i{number}" for number in range(items)]), first, taken)


def history(*rows):
    return History(tuple(f"i{row}" for row in rows))
