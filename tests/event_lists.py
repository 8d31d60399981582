"""Histories written by hand."""

import numpy as np
import pyarrow as pa

from restd.data import Histories, History
from restd.snapshot import Snapshot

ITEMS = 30


def histories_of(*sequences, items=ITEMS):
    """Histories over items i0, i1, … by hand."""
    lengths = [len(sequence) for sequence in sequences]
    event_items = np.concatenate([np.array(sequence, np.int64) for sequence in sequences])
    users = pa.array([f"u{number}" for number in range(len(sequences))])
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Histories(users, pa.array([f"i{number}" for number in range(items)]), first, event_items)


def snapshot_of(histories):
    """A snapshot of the items of histories."""
    return Snapshot.numbered(histories.items)


def history(*rows):
    return History(tuple(f"i{row}" for row in rows))
