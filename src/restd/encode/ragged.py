"""Texts of different lengths as they are fed to a model: token ids, or token states made beforehand."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float16, Int64
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Beginnings:
    """Rows that are the beginnings of texts: which text each is of, and how much of it."""

    text: Int64[Tensor, "row"]
    length: Int64[Tensor, "row"]

    def to(self, device: torch.device | str) -> "Beginnings":
        """Move to a device."""
        return Beginnings(self.text.to(device), self.length.to(device))


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """A padded batch of what an encoder reads: token ids, or states that take the encoder's place."""

    values: Int64[Tensor, "text position"] | Float[Tensor, "text position dim"]
    mask: Bool[Tensor, "text position"]
    beginnings: Beginnings | None = None
    """What was asked for, where that is beginnings of the texts; None where it is the texts themselves."""

    def to(self, device: torch.device | str) -> "Inputs":
        """Move to a device."""
        beginnings = None if self.beginnings is None else self.beginnings.to(device)
        return Inputs(self.values.to(device), self.mask.to(device), beginnings)


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Many texts, one after another in a few long tensors, which may be mapped from disk.

    >>> texts = Ragged.of([np.array([5, 6]), np.array([7])])
    >>> batch = texts.batch(np.array([1, 0]))
    >>> batch.values.tolist(), batch.mask.tolist()
    ([[7, 0], [5, 6]], [[True, False], [True, True]])
    """

    shards: tuple[Int64[Tensor, "_"] | Float16[Tensor, "_ dim"], ...]
    shard: Int64[np.ndarray, "text"]
    """Which of the tensors holds a text."""
    first: Int64[np.ndarray, "text"]
    """Where in it the text begins."""
    lengths: Int64[np.ndarray, "text"]
    cut: int = 0
    """Texts that were longer than the limit and lost their end."""
    shared: bool = False
    """Whether texts that begin at the same place can be read as one: the reader never looks at what follows."""

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, texts: Iterable[np.ndarray], *, cut: int = 0) -> "Ragged":
        """Take one array a text, of token ids or of states."""
        parts = list(texts)
        lengths = np.array([len(part) for part in parts], np.int64)
        joined = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        integral = np.issubdtype(joined.dtype, np.integer)
        values = torch.from_numpy(joined.astype(np.int64 if integral else np.float16))
        return cls((values,), np.zeros_like(lengths), lengths.cumsum() - lengths, lengths, cut)

    @classmethod
    def of_shards(cls, shards: Iterable[tuple[Tensor, Int64[np.ndarray, "_"]]], *, cut: int = 0) -> "Ragged":
        """Take tensors, each with the lengths of the texts it holds."""
        held = list(shards)
        if not held:
            return cls.of([], cut=cut)
        lengths = np.concatenate([lengths for _, lengths in held])
        shard = np.repeat(np.arange(len(held)), [len(lengths) for _, lengths in held])
        first = np.concatenate([lengths.cumsum() - lengths for _, lengths in held])
        return cls(tuple(values for values, _ in held), shard, first, lengths, cut)

    @classmethod
    def joined(cls, parts: Iterable["Ragged"]) -> "Ragged":
        """Put the texts of several behind one another."""
        held = [part for part in parts if len(part)] or [cls.of([])]  # no texts: neither ids nor states
        before = np.cumsum([0, *(len(part.shards) for part in held)])
        return cls(
            tuple(shard for part in held for shard in part.shards),
            np.concatenate([part.shard + start for part, start in zip(held, before, strict=False)]),
            np.concatenate([part.first for part in held]),
            np.concatenate([part.lengths for part in held]),
            sum(part.cut for part in held),
            all(part.shared for part in held),
        )

    @property
    def together(self) -> Int64[np.ndarray, "text"] | None:
        """The same number for texts that can be read as one, counted from 0; None where none can."""
        return self._same(np.arange(len(self))) if self.shared else None

    def _same(self, rows: Int64[np.ndarray, "row"]) -> Int64[np.ndarray, "row"]:
        """The same number for texts that begin at the same place, counted from 0."""
        place = self.shard[rows] * (int(self.first.max(initial=0)) + 1) + self.first[rows]
        return np.unique(place, return_inverse=True)[1]

    def merged(self, rows: Int64[np.ndarray, "row"]) -> Inputs:
        """The same as `batch`, but of texts that can be read as one only the longest is there.

        >>> held = Ragged((torch.tensor([5, 6, 7]),), np.zeros(2, int), np.zeros(2, int), np.array([1, 3]), shared=True)
        >>> batch = held.merged(np.array([1, 0]))
        >>> batch.values.tolist(), batch.beginnings.text.tolist(), batch.beginnings.length.tolist()
        ([[5, 6, 7]], [0, 0], [3, 1])
        """
        if not self.shared:
            return self.batch(rows)
        lengths, text = self.lengths[rows], self._same(rows)
        order = np.lexsort((lengths, text))
        longest = order[np.flatnonzero(np.diff(text[order], append=-1))]
        held = self.batch(rows[longest])
        return Inputs(held.values, held.mask, Beginnings(torch.from_numpy(text), torch.from_numpy(lengths)))

    def batch(self, rows: Int64[np.ndarray, "row"]) -> Inputs:
        """Pad these texts to the longest among them."""
        lengths = self.lengths[rows]
        place = np.arange(max(int(lengths.max(initial=0)), 1))
        mask = place < lengths[:, None]
        at = self.first[rows][:, None] + place
        sample = self.shards[0]
        values = sample.new_zeros((*mask.shape, *sample.shape[1:]))
        for number in np.unique(self.shard[rows]):
            here = mask & (self.shard[rows] == number)[:, None]
            values[torch.from_numpy(here)] = self.shards[number][torch.from_numpy(at[here])]
        return Inputs(values.float() if values.is_floating_point() else values, torch.from_numpy(mask))
