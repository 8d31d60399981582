"""Texts of different lengths as a model reads them: token ids, or token states computed beforehand."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float16, Int64
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Beginnings:
    """Rows that are beginnings of texts: which text each belongs to, and how much of it."""

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
    """The requested rows, if they are beginnings of the texts; None if they are the texts themselves."""

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
    """The tensor that each text is in."""
    first: Int64[np.ndarray, "text"]
    """Where the text begins in that tensor."""
    lengths: Int64[np.ndarray, "text"]
    cut: int = 0
    """Texts that were longer than the limit and lost their end."""
    shared: bool = False
    """Whether texts that begin at the same place can be read as one, because the reader never looks ahead."""

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, texts: Iterable[np.ndarray], *, cut: int = 0) -> "Ragged":
        """Make it from one array per text, of token ids or of states."""
        parts = list(texts)
        lengths = np.array([len(part) for part in parts], np.int64)
        joined = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        integral = np.issubdtype(joined.dtype, np.integer)
        values = torch.from_numpy(joined.astype(np.int64 if integral else np.float16))
        return cls((values,), np.zeros_like(lengths), lengths.cumsum() - lengths, lengths, cut)

    @classmethod
    def of_shards(cls, shards: Iterable[tuple[Tensor, Int64[np.ndarray, "_"]]], *, cut: int = 0) -> "Ragged":
        """Make it from tensors, each with the lengths of the texts in it."""
        pairs = list(shards)
        if not pairs:
            return cls.of([], cut=cut)
        values = tuple(values for values, _ in pairs)
        shard = np.repeat(np.arange(len(pairs)), [len(lengths) for _, lengths in pairs])
        first = np.concatenate([lengths.cumsum() - lengths for _, lengths in pairs])
        return cls(values, shard, first, np.concatenate([lengths for _, lengths in pairs]), cut)

    @classmethod
    def joined(cls, parts: Iterable["Ragged"]) -> "Ragged":
        """Put the texts of several one after another."""
        filled = [part for part in parts if len(part)] or [cls.of([])]  # no texts: neither ids nor states
        before = np.cumsum([0, *(len(part.shards) for part in filled)])
        return cls(
            tuple(shard for part in filled for shard in part.shards),
            np.concatenate([part.shard + start for part, start in zip(filled, before, strict=False)]),
            np.concatenate([part.first for part in filled]),
            np.concatenate([part.lengths for part in filled]),
            sum(part.cut for part in filled),
            all(part.shared for part in filled),
        )

    @property
    def together(self) -> Int64[np.ndarray, "text"] | None:
        """The same number for texts that can be read as one, counted from 0; None where none can."""
        return self._same(np.arange(len(self))) if self.shared else None

    def _same(self, rows: Int64[np.ndarray, "row"]) -> Int64[np.ndarray, "row"]:
        """The same number for texts that begin at the same place, counted from 0."""
        start = self.shard[rows] * (int(self.first.max(initial=0)) + 1) + self.first[rows]
        return np.unique(start, return_inverse=True)[1]

    def merged(self, rows: Int64[np.ndarray, "row"]) -> Inputs:
        """Like `batch`, but of texts that can be read as one only the longest is included.

        >>> zeros, lengths = np.zeros(2, int), np.array([1, 3])
        >>> texts = Ragged((torch.tensor([5, 6, 7]),), zeros, zeros, lengths, shared=True)
        >>> batch = texts.merged(np.array([1, 0]))
        >>> batch.values.tolist(), batch.beginnings.text.tolist(), batch.beginnings.length.tolist()
        ([[5, 6, 7]], [0, 0], [3, 1])
        """
        if not self.shared:
            return self.batch(rows)
        lengths, text = self.lengths[rows], self._same(rows)
        order = np.lexsort((lengths, text))
        longest = order[np.flatnonzero(np.diff(text[order], append=-1))]
        batch = self.batch(rows[longest])
        return Inputs(batch.values, batch.mask, Beginnings(torch.from_numpy(text), torch.from_numpy(lengths)))

    def batch(self, rows: Int64[np.ndarray, "row"]) -> Inputs:
        """Pad these texts to the longest among them."""
        lengths = self.lengths[rows]
        position = np.arange(max(int(lengths.max(initial=0)), 1))
        mask = position < lengths[:, None]
        source = self.first[rows][:, None] + position
        sample = self.shards[0]
        values = sample.new_zeros((*mask.shape, *sample.shape[1:]))
        for number in np.unique(self.shard[rows]):
            here = mask & (self.shard[rows] == number)[:, None]
            values[torch.from_numpy(here)] = self.shards[number][torch.from_numpy(source[here])]
        return Inputs(values.float() if values.is_floating_point() else values, torch.from_numpy(mask))
