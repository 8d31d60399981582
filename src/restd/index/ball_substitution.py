"""Other addresses for an item where residuals are not differences: every change is walked to its end.

In a flat space the residual after all codes does not depend on their order, and one product gives the error of every
change. Möbius subtraction is not commutative, so here each changed code is followed by the codes behind it.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from restd.codes import Codebooks, spaces
from restd.codes.keys import radices
from restd.codes.poincare import inside

_ROWS = 256


def changed_errors(
    latents: Float[Tensor, "item dim"], codes: Int64[Tensor, "item level"], codebooks: Codebooks, *, level: int
) -> Float[Tensor, "item code"]:
    """Error d(0, r_L)² of each item with every code of one level in place of its own."""
    residual = inside(latents)[:, None]
    for place in range(codebooks.levels):
        book = codebooks.level(place)
        codewords = book[None] if place == level else book[codes[:, place]][:, None]
        residual = spaces.left_over(residual, codewords, codebooks.space)
    return spaces.squared_norms(residual, codebooks.space)


def all_errors(
    latents: Float[np.ndarray, "item dim"], codes: Int[np.ndarray, "item level"], codebooks: Codebooks
) -> Float[Tensor, "item change"]:
    """Errors of every change of one code, level after level; infinite for an item's own codes."""
    parts = []
    for start in range(0, len(codes), _ROWS):
        points = torch.from_numpy(latents[start : start + _ROWS].astype(np.float32))
        own = torch.from_numpy(codes[start : start + _ROWS].astype(np.int64))
        errors = [changed_errors(points, own, codebooks, level=level) for level in range(codebooks.levels)]
        for level, error in enumerate(errors):
            error.scatter_(1, own[:, level, None], torch.inf)
        parts.append(torch.cat(errors, dim=1))
    return torch.cat(parts)


def all_ball_substitutions(
    latent: Float[np.ndarray, "dim"], codes: Int[np.ndarray, "level"], codebooks: Codebooks
) -> Iterator[int]:
    """Keys of every other SID: one code changed, then two and more; of one pair of levels, cheapest first."""
    point = inside(torch.from_numpy(latent.astype(np.float32)))
    own = torch.from_numpy(codes.astype(np.int64))
    levels = range(codebooks.levels)
    for changes in range(1, min(2, codebooks.levels) + 1):
        blocks = [_block(point, own, codebooks, free) for free in combinations(levels, changes)]
        yield from _ascending(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))
    for changes in range(3, codebooks.levels + 1):
        for chosen in combinations(levels, changes):
            *settled, _, _ = chosen
            for path in _others(own, codebooks, tuple(settled)):
                yield from _ascending(*_block(point, path, codebooks, chosen[-2:]))


def _block(
    point: Float[Tensor, "dim"], codes: Int64[Tensor, "level"], codebooks: Codebooks, free: tuple[int, ...]
) -> tuple[Float[Tensor, "change"], Int64[Tensor, "change"]]:
    """Errors and keys of all codes but the own at the free levels."""
    weights = radices(codebooks.sizes)
    residual, keys = point[None], torch.zeros(1, dtype=torch.int64)
    for level in range(codebooks.levels):
        book = codebooks.level(level)
        numbers = torch.arange(len(book))
        chosen = numbers[numbers != codes[level]] if level in free else codes[level, None]
        residual = spaces.left_over(residual[:, None], book[chosen][None], codebooks.space).flatten(0, 1)
        keys = (keys[:, None] + chosen * int(weights[level])).flatten()
    return spaces.squared_norms(residual, codebooks.space), keys


def _others(
    codes: Int64[Tensor, "level"], codebooks: Codebooks, levels: tuple[int, ...]
) -> Iterator[Int64[Tensor, "level"]]:
    """Every way of giving each of the levels another code."""
    if not levels:
        yield codes
        return
    for code in range(codebooks.sizes[levels[0]]):
        if code != codes[levels[0]]:
            changed = codes.clone()
            changed[levels[0]] = code
            yield from _others(changed, codebooks, levels[1:])


def _ascending(errors: Float[Tensor, "change"], keys: Int64[Tensor, "change"]) -> Iterator[int]:
    yield from keys[torch.argsort(errors, stable=True)].tolist()
