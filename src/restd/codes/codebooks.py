"""Codebooks, and what follows from them alone: nearest codes and residuals."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, Int16, Int64
from torch import Tensor

from restd.codes import poincare, spaces
from restd.codes.spaces import EUCLIDEAN, SPACES, Space
from restd.errors import ArtifactError, ConfigError

MAX_CODES = int(torch.iinfo(torch.int16).max)
"""Largest codebook: codes are stored as int16."""
_ROWS, _BALL_ROWS = 65_536, 4_096
_VALUES, _SIZES, _SPACE = "codebooks", "codebook_sizes", "codebook_space"


@dataclass(frozen=True, slots=True, eq=False)
class Codebooks:
    """Codewords of every level. Levels may differ in size: shorter ones are padded, and `mask` is False there.

    >>> books = Codebooks.of([torch.ones(4, 2), torch.ones(8, 2)])
    >>> books.values.shape, books.sizes, books.mask.sum(1).tolist()
    (torch.Size([2, 8, 2]), (4, 8), [4, 8])
    """

    values: Float32[Tensor, "level code dim"]
    sizes: tuple[int, ...]
    """Number of codes at each level, padding not counted."""
    space: Space = EUCLIDEAN
    """Where the codewords are points; decides about residuals and distances."""
    mask: Bool[Tensor, "level code"] = field(init=False, repr=False)
    """Which entries of `values` are codewords."""

    def __post_init__(self) -> None:
        levels, codes = self.values.shape[:2]
        if len(self.sizes) != levels or not all(1 <= size <= codes for size in self.sizes):
            raise ConfigError(
                f"Expected {levels} codebook sizes between 1 and {codes}, as the codebooks have shape "
                f"{tuple(self.values.shape)}; got {self.sizes}."
            )
        if codes > MAX_CODES:
            raise ConfigError(
                f"Expected at most {MAX_CODES:,} codes per level, got {codes:,}. Use more levels instead."
            )
        spaces.refuse_outside(self.values, self.space, what="Codewords")
        places = torch.arange(codes, device=self.values.device)
        mask = places < torch.tensor(self.sizes, device=self.values.device)[:, None]
        object.__setattr__(self, "mask", mask)

    @classmethod
    def of(
        cls, books: Sequence[Float[Tensor, "_ dim"] | Float[np.ndarray, "_ dim"]], *, space: Space = EUCLIDEAN
    ) -> "Codebooks":
        """Stack one codebook per level, of any sizes.

        >>> Codebooks.of([np.ones((4, 2)), np.ones((8, 2))]).sizes
        (4, 8)
        """
        levels = [torch.as_tensor(book, dtype=torch.float32) for book in books]
        sizes = tuple(len(level) for level in levels)
        if not levels or min(sizes) < 1:
            raise ConfigError(f"Expected at least one codebook of at least one code each, got sizes {sizes}.")
        values = levels[0].new_zeros(len(levels), max(sizes), levels[0].shape[1])
        for padded, level in zip(values, levels, strict=True):
            padded[: len(level)] = level
        return cls(values, sizes, space)

    @property
    def levels(self) -> int:
        """Number of levels."""
        return len(self.sizes)

    @property
    def dim(self) -> int:
        """Width of a codeword."""
        return self.values.shape[2]

    def level(self, level: int) -> Float32[Tensor, "code dim"]:
        """Codewords of one level, without padding."""
        return self.values[level, : self.sizes[level]]

    def to(self, device: torch.device | str) -> "Codebooks":
        """Return the codebooks on a device."""
        return Codebooks(self.values.to(device), self.sizes, self.space)

    def fingerprint(self) -> str:
        """Hash of sizes, values and space: what a trained model is bound to."""
        digest = hashlib.sha256(repr(self.sizes).encode())
        if self.space != EUCLIDEAN:  # flat codebooks have the hash that they always had
            digest.update(self.space.encode())
        digest.update(np.ascontiguousarray(self.values.cpu().numpy(), "<f4").tobytes())
        return digest.hexdigest()

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return codewords and sizes as named arrays, to be stored in one safetensors file."""
        arrays = {_VALUES: self.values.cpu().numpy(), _SIZES: np.array(self.sizes, np.int64)}
        return arrays if self.space == EUCLIDEAN else {**arrays, _SPACE: np.array([SPACES.index(self.space)], np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, sizes: Sequence[int] | None = None) -> "Codebooks":
        """Read what `to_arrays` named. Files written before sizes were stored beside the codewords need `sizes`."""
        if _VALUES not in arrays or (sizes is None and _SIZES not in arrays):
            raise ArtifactError(
                f"Expected tensors {_VALUES!r} and {_SIZES!r}, got {sorted(arrays)}. Make the artefact again."
            )
        stored = arrays[_SIZES].tolist() if _SIZES in arrays else sizes
        number = int(arrays[_SPACE][0]) if _SPACE in arrays else 0
        if not 0 <= number < len(SPACES):
            raise ArtifactError(
                f"These codebooks are of space {number}, but this version of restd knows {len(SPACES)} spaces (0 to "
                f"{len(SPACES) - 1}). Open them with the version that wrote them."
            )
        sizes = tuple(int(size) for size in stored or ())
        return cls(as_tensor(arrays[_VALUES]).float(), sizes, SPACES[number])

    @staticmethod
    def are_in(arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether these arrays hold codebooks with their sizes, as `to_arrays` names them."""
        return _VALUES in arrays and _SIZES in arrays

    @staticmethod
    def is_own_name(name: str) -> bool:
        """Whether `to_arrays` uses this name; all others in a file belong to somebody else."""
        return name in (_VALUES, _SIZES, _SPACE)


def as_tensor(array: np.ndarray) -> Tensor:
    """Wrap an array, sharing its memory. Torch has no read-only tensors, so an array that is read-only is copied.

    >>> as_tensor(np.broadcast_to(np.float32(2.0), (3,))).tolist()
    [2.0, 2.0, 2.0]
    """
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def nearest_by_products(
    vectors: Float[Tensor, "row dim"], codewords: Float[Tensor, "code dim"]
) -> Int64[Tensor, "row"]:
    """Index of each vector's nearest codeword on any device, by one matrix product for each block of rows."""
    squares = codewords.square().sum(1)
    parts = [torch.addmm(squares, part, codewords.T, alpha=-2).argmin(1) for part in vectors.float().split(_ROWS)]
    return torch.cat(parts) if parts else vectors.new_empty(0, dtype=torch.int64)


def nearest(
    vectors: Float[Tensor, "row dim"], codewords: Float[Tensor, "code dim"], *, space: Space = EUCLIDEAN
) -> Int64[Tensor, "row"]:
    """Index of each vector's nearest codeword in the squared distance of the space; ties go to the smaller index.

    >>> nearest(torch.tensor([[0.2], [0.5], [7.0]]), torch.tensor([[0.0], [1.0]])).tolist()
    [0, 0, 1]
    """
    if space != EUCLIDEAN:
        parts = [spaces.squared_distances(part, codewords, space).argmin(1) for part in vectors.split(_BALL_ROWS)]
        return torch.cat(parts) if parts else vectors.new_empty(0, dtype=torch.int64)
    if vectors.device.type != "cpu":
        return nearest_by_products(vectors, codewords)
    # On the CPU faiss is about six times as fast as a product and argmin. The order of its float32 operations also
    # decided the codes of every index that exists: another order would flip near ties when one is built again.
    import faiss

    search = faiss.IndexFlatL2(codewords.shape[1])
    search.add(np.ascontiguousarray(codewords.numpy(), np.float32))
    return torch.from_numpy(search.search(np.ascontiguousarray(vectors.numpy(), np.float32), 1)[1][:, 0])


def assign(latents: Float[Tensor, "item dim"], codebooks: Codebooks) -> Int16[Tensor, "item level"]:
    """Greedy residual codes: at each level the codeword nearest to what the levels before left over.

    >>> books = Codebooks.of([torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [0.5]])])
    >>> assign(torch.tensor([[4.5], [0.9]]), books).tolist()
    [[1, 1], [0, 0]]
    """
    codes = torch.empty(len(latents), codebooks.levels, dtype=torch.int16, device=latents.device)
    for rows, part in zip(codes.split(_ROWS), latents.split(_ROWS), strict=True):
        flat = codebooks.space == EUCLIDEAN
        residual = part.to(torch.float32, copy=True) if flat else poincare.inside(part)
        for level in range(codebooks.levels):
            codewords = codebooks.level(level)
            best = nearest(residual, codewords, space=codebooks.space)
            rows[:, level] = best
            if flat:
                residual -= codewords[best]
            else:
                residual = spaces.left_over(residual, codewords[best], codebooks.space)
    return codes


def trajectory(
    latents: Float[Tensor, "row dim"], codes: Int[Tensor, "row stored_level"], codebooks: Codebooks
) -> Float32[Tensor, "row step dim"]:
    """Residuals r_0 .. r_L along given codes: r_0 = x, r_t = r_{t-1} - c_{t, y_t} (eq. rq), in float32.

    In the ball the difference is Möbius subtraction. Codes beyond the codebooks (a disambiguation code) are ignored.

    >>> books = Codebooks.of([torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [0.5]])])
    >>> trajectory(torch.tensor([[4.5]]), torch.tensor([[1, 1]]), books).tolist()
    [[[4.5], [0.5], [0.0]]]
    """
    levels = torch.arange(codebooks.levels, device=codes.device)
    codewords = codebooks.values[levels, codes[:, : codebooks.levels].long()]
    if codebooks.space != EUCLIDEAN:
        return spaces.ball_trajectory(latents, codewords)
    start = latents.float()[:, None]
    return torch.cat([start, start - codewords.cumsum(dim=1)], dim=1)


def last_residuals(
    latents: Float[Tensor, "item dim"], codes: Int[Tensor, "item stored_level"], codebooks: Codebooks
) -> Float32[Tensor, "item dim"]:
    """r_L alone: what the codes fail to say of each latent. Holds the steps before it for a few rows at a time."""
    parts = zip(latents.split(_ROWS), codes.split(_ROWS), strict=True)
    return torch.cat([trajectory(part, part_codes, codebooks)[:, -1] for part, part_codes in parts])


def quantised(
    latents: Float[Tensor, "item dim"], codes: Int[Tensor, "item stored_level"], codebooks: Codebooks
) -> Float32[Tensor, "item dim"]:
    """What the codes say of each latent: the sum of their codewords, taken as the latent less its last residual."""
    if codebooks.space == EUCLIDEAN:
        return latents.float() - last_residuals(latents, codes, codebooks)
    levels = torch.arange(codebooks.levels, device=codes.device)
    parts = codes[:, : codebooks.levels].long().split(_ROWS)
    return torch.cat([spaces.ball_sum(codebooks.values[levels, part]) for part in parts])


def check_codes(codes: Int[Tensor, "item stored_level"], codebooks: Codebooks) -> None:
    """Refuse codes outside their codebook."""
    limits = torch.tensor(codebooks.sizes, device=codes.device)
    outside = (codes[:, : codebooks.levels] < 0) | (codes[:, : codebooks.levels] >= limits)
    if outside.any():
        row, level = (int(value) for value in outside.nonzero()[0])
        raise ConfigError(
            f"Item row {row} has code {int(codes[row, level])} at level {level + 1}, whose codebook has codes 0 to "
            f"{codebooks.sizes[level] - 1}. Use SIDs and codebooks of the same index."
        )
