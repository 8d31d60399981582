"""Which pairs each update sees: a function of seed and epoch alone, so that objectives can be compared pair by pair."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from restd.errors import ConfigError

_POOL = 32
TOGETHER = 8
"""Most pairs of the same text that a micro-batch reads as one. With more, an update would consist of a few users: one
epoch of Beauty at batches of 64 ended with a validation loss of 3.82 instead of 3.75 (seed 42, one table)."""


def in_lots(
    together: Int64[np.ndarray, "pair"], lengths: Int64[np.ndarray, "pair"], most: int = TOGETHER
) -> Int64[np.ndarray, "pair"]:
    """Split pairs that are read as one into lots of at most `most`, similar in length; lots are numbered from 0.

    >>> in_lots(np.array([0, 0, 0, 1]), np.array([3, 1, 2, 5]), most=2).tolist()
    [1, 0, 0, 2]
    """
    order = np.lexsort((lengths, together))
    counts = np.bincount(together)
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - (counts.cumsum() - counts)[together[order]]
    return np.unique(together * (len(order) // most + 1) + place // most, return_inverse=True)[1]


def count_updates(pairs: int, batch: int, draw: Int64[np.ndarray, "pair"] | None) -> int:
    """Updates in which an epoch sees every pair that it has; with draws of different sizes, the largest decides.

    >>> count_updates(5, 2, None), count_updates(5, 2, np.array([-1, 0, 0, 1, 1]))
    (3, 2)
    """
    if draw is not None:
        pairs = int((draw < 0).sum() + np.bincount(draw[draw >= 0], minlength=1).max())
    return -(-pairs // batch)


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """The order of training pairs.

    Every update is full: an epoch's last one is filled from a second shuffle. Pairs of similar length share a
    micro-batch, so that little padding is computed. Pairs whose texts are read as one stay together, as far as
    micro-batches have room, and count as long as the longest of them.
    Epochs see draws in turns.

    Args:
        lengths: length of each pair's text.
        batch: pairs per update, over all processes.
        micro: pairs per process and micro-batch.
        processes: number of processes.
        seed: random seed of the order.
        together: the same number for pairs whose texts are read as one, counted from 0; None where none are.
        draw: which draw each pair is of, counted from 0, and -1 for a pair of every epoch; None where all are.
    """

    lengths: Int64[np.ndarray, "pair"]
    batch: int
    micro: int
    processes: int
    seed: int
    together: Int64[np.ndarray, "pair"] | None = None
    draw: Int64[np.ndarray, "pair"] | None = None

    def __post_init__(self) -> None:
        if self.batch % (self.micro * self.processes):
            raise ConfigError(
                f"train.batch ({self.batch}) must be divisible by train.micro times the number of processes "
                f"({self.micro} x {self.processes} = {self.micro * self.processes})."
            )

    @property
    def updates_per_epoch(self) -> int:
        """Updates in which every pair of an epoch is seen at least once."""
        return count_updates(len(self.lengths), self.batch, self.draw)

    @property
    def accumulated(self) -> int:
        """Micro-batches per process and update."""
        return self.batch // (self.micro * self.processes)

    def epoch(self, number: int) -> Int64[np.ndarray, "update part pair"]:
        """Pairs of each update of an epoch, in parts that all processes compute at the same time."""
        rng = np.random.default_rng((self.seed, number))
        count = self.updates_per_epoch * self.batch
        pairs = self._pairs_of(number)
        order = np.concatenate([self._shuffled(pairs, rng) for _ in range(-(-count // len(pairs)))])
        part = self.micro * self.processes
        parts = []
        for pool in np.array_split(order[:count], range(_POOL * self.batch, count, _POOL * self.batch)):
            parts.append(pool[np.argsort(self._lengths_in(pool), kind="stable")].reshape(-1, part))
        shuffled = rng.permutation(np.concatenate(parts))
        return shuffled.reshape(self.updates_per_epoch, self.accumulated, part)

    def _pairs_of(self, epoch: int) -> Int64[np.ndarray, "_"]:
        """Pairs that an epoch sees."""
        if self.draw is None:
            return np.arange(len(self.lengths))
        draws = max(int(self.draw.max()) + 1, 1)
        return np.flatnonzero((self.draw < 0) | (self.draw == epoch % draws))

    def _shuffled(self, pairs: Int64[np.ndarray, "_"], rng: np.random.Generator) -> Int64[np.ndarray, "_"]:
        if self.together is None:
            return pairs[rng.permutation(len(pairs))]
        place = rng.permutation(int(self.together.max()) + 1)
        return pairs[np.argsort(place[self.together[pairs]], kind="stable")]

    def _lengths_in(self, pool: Int64[np.ndarray, "_"]) -> Int64[np.ndarray, "_"]:
        """Length of what is read for each pair of a pool."""
        lengths = self.lengths[pool]
        if self.together is None:
            return lengths
        groups, group = np.unique(self.together[pool], return_inverse=True)
        longest = np.zeros(len(groups), lengths.dtype)
        np.maximum.at(longest, group, lengths)
        return longest[group]

    def update(self, rows: Int64[np.ndarray, "part pair"], *, rank: int) -> Iterator[Int64[np.ndarray, "micro"]]:
        """Micro-batches of one process.

        Pairs of similar length go to different processes, so that none waits long; those read as one stay together.
        """
        for part in rows:
            yield part[rank :: self.processes] if self.together is None else np.split(part, self.processes)[rank]
