"""Which pairs an update sees: a function of seed and epoch alone, so that objectives can be compared pair by pair."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from restd.errors import ConfigError

_POOL = 32


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """The order of training pairs.

    Every update is full: an epoch's last one is filled from a second shuffle. Pairs of similar length share a
    micro-batch, so that little padding is computed.

    Args:
        lengths: of each pair's text.
        batch: pairs in an update, over all processes.
        micro: pairs one process takes at a time.
        processes: how many work together.
        seed: decides the order.
    """

    lengths: Int64[np.ndarray, "pair"]
    batch: int
    micro: int
    processes: int
    seed: int

    def __post_init__(self) -> None:
        if self.batch % (self.micro * self.processes):
            raise ConfigError(
                f"A batch of {self.batch} cannot be made of micro-batches of {self.micro} on {self.processes} "
                f"processes; choose train.batch as a multiple of {self.micro * self.processes}."
            )

    @property
    def updates_per_epoch(self) -> int:
        """Updates in which every pair is seen at least once."""
        return -(-len(self.lengths) // self.batch)

    @property
    def accumulated(self) -> int:
        """Micro-batches of one process in an update."""
        return self.batch // (self.micro * self.processes)

    def epoch(self, number: int) -> Int64[np.ndarray, "update part pair"]:
        """Pairs of each update of an epoch, in the parts that are computed together by all processes."""
        rng = np.random.default_rng((self.seed, number))
        wanted = self.updates_per_epoch * self.batch
        order = np.concatenate([rng.permutation(len(self.lengths)) for _ in range(-(-wanted // len(self.lengths)))])
        part = self.micro * self.processes
        parts = []
        for pool in np.array_split(order[:wanted], range(_POOL * self.batch, wanted, _POOL * self.batch)):
            sorted_pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            parts.append(sorted_pool.reshape(-1, part))
        shuffled = rng.permutation(np.concatenate(parts))
        return shuffled.reshape(self.updates_per_epoch, self.accumulated, part)

    def update(self, rows: Int64[np.ndarray, "part pair"], *, rank: int) -> Iterator[Int64[np.ndarray, "micro"]]:
        """Micro-batches of one process; neighbours in length go to different processes, so that all wait alike."""
        for part in rows:
            yield part[rank :: self.processes]
