"""What a built-in data set or a reader of a public one hands over: streams of canonical batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

Batches = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Source:
    """A data set that has not been written yet.

    Streams are functions, so that nothing is generated or read before it is wanted and each can be walked twice.
    `settings` must be enough to make the same data again; it goes into the manifest of the written data set.
    """

    name: str
    settings: Mapping[str, Any]
    items: Batches
    judgments: Batches | None = None
    histories: Batches | None = None
    notes: tuple[str, ...] = field(default=())
    """Sentences a user should read: what was filtered, what a count means."""
