"""Other addresses for an item whose Semantic ID is in use, cheapest in quantisation error first."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from restd.codes import Codebooks, as_tensor, last_residuals
from restd.codes.keys import radices
from restd.index.ball_substitution import all_ball_substitutions, all_errors

_SHORTLIST = 4096


def nearest_substitutions(
    latents: Float[np.ndarray, "item dim"],
    codes: Int[np.ndarray, "item level"],
    keys: Int64[np.ndarray, "item"],
    codebooks: Codebooks,
    *,
    count: int,
) -> Int64[np.ndarray, "item candidate"]:
    """Keys of the `count` cheapest SIDs that differ from each item's own in exactly one code, by final error ‖r_L‖².

    Putting code j for y at level t leaves the residual r_L + c_{t,y} - c_{t,j}: one matrix product per level gives all
    errors.
    """
    offsets = np.cumsum([0, *codebooks.sizes])
    flat = codebooks.space == "euclidean"
    errors = _flat_errors(latents, codes, codebooks, offsets) if flat else all_errors(latents, codes, codebooks)
    shortest = min(count, errors.shape[1] - codebooks.levels)
    column = torch.topk(errors, shortest, dim=1, largest=False).indices.numpy()
    level = np.searchsorted(offsets, column, side="right") - 1
    change = column - offsets[level] - np.take_along_axis(codes, level, axis=1)
    return keys[:, None] + change * radices(codebooks.sizes)[level]


def _flat_errors(
    latents: Float[np.ndarray, "item dim"],
    codes: Int[np.ndarray, "item level"],
    codebooks: Codebooks,
    offsets: Int64[np.ndarray, "level_plus_one"],
) -> Float[Tensor, "item change"]:
    errors = torch.empty(len(codes), int(offsets[-1]))
    leftover = last_residuals(as_tensor(latents), as_tensor(codes), codebooks)
    rows = torch.arange(len(codes))
    for level in range(codebooks.levels):
        book = codebooks.level(level)
        own = torch.from_numpy(codes[:, level].astype(np.int64))
        target = leftover + book[own]
        error = errors[:, offsets[level] : offsets[level + 1]]
        torch.mm(target, book.T * -2, out=error)
        error += book.square().sum(1)
        error += target.square().sum(1, keepdim=True)
        error[rows, own] = torch.inf
    return errors


def all_substitutions(
    latent: Float[np.ndarray, "dim"], codes: Int[np.ndarray, "level"], codebooks: Codebooks
) -> Iterator[int]:
    """Keys of every other SID: one code changed, cheapest first, then two, then three and more.

    Up to two changes the order is exact; beyond, the codes of all but two changed levels are walked in order, and each
    block of the remaining two is exact. Every address comes at least once, so a free one is found if there is one.

    >>> books = Codebooks.of([np.array([[0.0], [1.0]]), np.array([[0.0], [0.25]])])
    >>> list(all_substitutions(np.array([0.2]), np.array([0, 1]), books))  # own key 1
    [0, 3, 2]
    """
    if codebooks.space != "euclidean":
        yield from all_ball_substitutions(latent, codes, codebooks)
        return
    around = _Neighbourhood.of(codes, codebooks)
    leftover = last_residuals(as_tensor(latent[None]), as_tensor(codes[None]), codebooks)[0]
    for changes in range(1, min(2, codebooks.levels) + 1):
        blocks = [around.block(levels, leftover, around.key) for levels in combinations(around.levels, changes)]
        yield from _ascending([error for error, _ in blocks], [keys for _, keys in blocks])
    for changes in range(3, codebooks.levels + 1):
        for levels in combinations(around.levels, changes):
            for target, base in around.settle(levels[:-2], leftover):
                error, keys = around.block(levels[-2:], target, base)
                yield from _ascending([error], [keys])


@dataclass(frozen=True, slots=True)
class _Neighbourhood:
    """The SIDs around one, by which codes differ."""

    books: tuple[Float[Tensor, "_ dim"], ...]
    weights: tuple[int, ...]
    own: tuple[int, ...]
    key: int

    @classmethod
    def of(cls, codes: Int[np.ndarray, "level"], codebooks: Codebooks) -> "_Neighbourhood":
        weights = radices(codebooks.sizes)
        books = tuple(codebooks.level(level) for level in range(codebooks.levels))
        own = tuple(int(code) for code in codes)
        return cls(books, tuple(weights.tolist()), own, int(np.dot(np.array(own), weights)))

    @property
    def levels(self) -> range:
        return range(len(self.books))

    def block(self, levels: tuple[int, ...], target: Tensor, base: int) -> tuple[Tensor, Tensor]:
        """Errors and keys when the given levels take every other code; `target` is the residual they start from."""
        keys = torch.tensor(base)
        for level in levels:
            steps = (torch.arange(len(self.books[level])) - self.own[level]) * self.weights[level]
            keys = keys[..., None] + steps
            target = target + self.books[level][self.own[level]]
        if len(levels) == 2:
            target = target - self.books[levels[0]]
        last = self.books[levels[-1]]  # ‖u - c‖² by a product: all pairs of codes times the dimensions would not fit
        error = target.square().sum(-1, keepdim=True) + last.square().sum(-1) - 2 * target @ last.T
        for axis, level in enumerate(levels):  # an unchanged code belongs to a smaller number of changes
            error.select(axis, self.own[level]).fill_(torch.inf)
        return error, keys

    def settle(self, levels: tuple[int, ...], target: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Residual and key for every way of changing all of the given levels."""
        choices = [[code for code in range(len(self.books[level])) if code != self.own[level]] for level in levels]
        for picked in product(*choices):
            left, base = target, self.key
            for level, code in zip(levels, picked, strict=True):
                left = left + self.books[level][self.own[level]] - self.books[level][code]
                base += (code - self.own[level]) * self.weights[level]
            yield left, base


def _ascending(errors: list[Tensor], keys: list[Tensor]) -> Iterator[int]:
    """Walk keys by rising error. Most callers stop early, so a shortlist comes first; its keys come again in full."""
    error = torch.cat([part.flatten() for part in errors])
    key = torch.cat([part.flatten() for part in keys])
    key, error = key[error.isfinite()], error[error.isfinite()]
    if len(error) > 4 * _SHORTLIST:
        yield from key[torch.topk(error, _SHORTLIST, largest=False).indices].tolist()
    yield from key[torch.argsort(error, stable=True)].tolist()
