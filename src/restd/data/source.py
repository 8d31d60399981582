"""A data set as streams of canonical batches: generated, fetched, or read from files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

Batches = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Source:
    """A data set that has not been written yet.

    Streams are functions, so that nothing is generated or read before it is needed, and each can be read twice.
    `settings` are enough to make the same data again; they are stored in the manifest of the written data set.
    """

    name: str
    settings: Mapping[str, Any]
    items: Batches
    judgments: Batches | None = None
    histories: Batches | None = None
    notes: tuple[str, ...] = field(default=())
    """Sentences for the user: what was filtered, and what a count means."""
