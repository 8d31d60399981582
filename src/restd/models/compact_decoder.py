"""A small pre-norm decoder over codes only: level-specific codes in, level-specific codes out."""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.models.contract import Memory, Output, code_mask, refuse_bad_steps

KeysValues = tuple[Float[Tensor, "row head _ part"], Float[Tensor, "row head _ part"]]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Size of the decoder.

    Args:
        width: of the states.
        blocks: how many.
        heads: attention heads.
        feed: width of the feed-forward layer, in widths.
        dropout: share of activations dropped in training.
        steps: latent steps before the first code; 0 for none.
    """

    width: int
    blocks: int
    heads: int
    feed: int
    dropout: float
    steps: int


def fit_width(points: Float[Tensor, "point dim"], width: int, *, seed: int) -> Float[Tensor, "point {width}"]:
    """Points in a space of another width, with their inner products as far as it can keep them.

    At the same width they stay as they are. A wider space has room for all inner products: the axes are random,
    orthogonal directions of it. In a narrower one the points are given by their coordinates along the principal
    directions, which is the best fit of that rank in the sense of least squares.

    >>> points = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    >>> wide = fit_width(points, 5, seed=0)
    >>> [round(value, 3) for value in (wide @ wide.T).flatten().tolist()]
    [25.0, 8.0, 8.0, 4.0]
    """
    dim = points.shape[1]
    if width == dim:
        return points
    if width > dim:
        drawn = torch.randn(width, dim, generator=torch.Generator().manual_seed(seed))
        return points @ torch.linalg.qr(drawn).Q.T.to(points)
    directions = torch.linalg.svd(points, full_matrices=False).Vh[:width]
    return nn.functional.pad(points @ directions.T, (0, width - len(directions)))


class Attention(nn.Module):
    """Multi-head attention whose keys and values are made by one call and used by another."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def keys_values(self, states: Float[Tensor, "row position width"]) -> KeysValues:
        """Project what is attended to."""
        keys, values = self.key_value(states).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return keys, values

    def forward(
        self,
        states: Float[Tensor, "row position width"],
        keys_values: KeysValues,
        mask: Bool[Tensor, "#row 1 #position attended"] | None,
    ) -> Float[Tensor, "row position width"]:
        """Attend; a mask says what may be seen."""
        queries = self.query(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(queries, *keys_values, attn_mask=mask)
        return self.out(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Self-attention, attention to the memory, feed-forward; each behind a norm and added."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        width = shape.width
        self.own, self.cross = (Attention(width, shape.heads) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, shape.feed * width), nn.GELU(), nn.Linear(shape.feed * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self,
        states: Float[Tensor, "row position width"],
        past: KeysValues | None,
        memory: KeysValues,
        causal: Bool[Tensor, "1 1 position attended"] | None,
        seen: Bool[Tensor, "row 1 1 remembered"] | None,
    ) -> tuple[Float[Tensor, "row position width"], KeysValues]:
        """Return the new states, and keys and values of all positions so far."""
        normed = self.norms[0](states)
        keys_values = self.own.keys_values(normed)
        if past is not None:
            keys_values = (torch.cat([past[0], keys_values[0]], dim=2), torch.cat([past[1], keys_values[1]], dim=2))
        states = states + self.dropout(self.own(normed, keys_values, causal))
        states = states + self.dropout(self.cross(self.norms[1](states), memory, seen))
        return states + self.dropout(self.feed(self.norms[2](states))), keys_values


class CodeDecoder(nn.Module):
    """Decodes Semantic IDs from a memory of its own width."""

    def __init__(self, sizes: tuple[int, ...], shape: DecoderShape) -> None:
        super().__init__()
        refuse_bad_steps(shape.steps)
        self.sizes, self.shape = sizes, shape
        levels, codes, width = len(sizes), max(sizes), shape.width
        self.start = nn.Parameter(0.02 * torch.randn(width))
        self.codes = nn.Parameter(0.02 * torch.randn(levels, codes, width))
        self.places = nn.Parameter(0.02 * torch.randn(max(shape.steps, 1) - 1 + levels, width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Parameter(0.02 * torch.randn(levels, codes, width))
        self.bias = nn.Parameter(torch.zeros(levels, codes))
        self.dropout = nn.Dropout(shape.dropout)
        self.code_mask: Tensor
        self.register_buffer("code_mask", code_mask(sizes), persistent=False)

    @torch.no_grad()
    def start_from_codewords(self, codewords: Float[Tensor, "_ _ dim"], *, seed: int) -> None:
        """Let the output embeddings of codes that have a codeword begin as that codeword, mapped to the own width.

        Codes without one, such as those of a disambiguation level, keep what was drawn.
        """
        levels, codes, _ = codewords.shape
        flat = fit_width(codewords.flatten(0, 1), self.shape.width, seed=seed)
        known = self.code_mask[:levels, :codes]
        self.out[:levels, :codes][known] = flat.unflatten(0, (levels, codes))[known]

    def forward(self, memory: Memory, sids: Int64[Tensor, "row given"]) -> Output:
        """States that predict each code; latent steps come first, each fed the state of the one before.

        The last latent step and all codes go in together, so that one latent step costs nothing and is no change.
        """
        memory_keys_values = [block.cross.keys_values(memory.states) for block in cast(list[Block], list(self.blocks))]
        seen = None if bool(memory.mask.all()) else memory.mask[:, None, None, :]
        rows, levels = len(sids), len(self.sizes)
        following = self.start.expand(rows, 1, -1)
        past: list[KeysValues | None] = [None] * len(self.blocks)
        latents = []
        for _ in range(max(self.shape.steps, 1) - 1):
            following, past = self._run(following, past, memory_keys_values, seen)
            latents.append(following)
        given = sids[:, : levels - 1]
        if given.shape[1]:
            level = torch.arange(given.shape[1], device=given.device)
            following = torch.cat([following, self.codes[level, given]], dim=1)
        states, _ = self._run(following, past, memory_keys_values, seen)
        if not self.shape.steps:
            return Output(states)
        return Output(states, latents=torch.cat([*latents, states[:, :1]], dim=1))

    def _run(
        self,
        inputs: Float[Tensor, "row position width"],
        past: list[KeysValues | None],
        memory: list[KeysValues],
        seen: Bool[Tensor, "row 1 1 remembered"] | None,
    ) -> tuple[Float[Tensor, "row position width"], list[KeysValues | None]]:
        before = 0 if past[0] is None else past[0][0].shape[2]
        count = inputs.shape[1]
        causal = None
        if count > 1:
            causal = torch.ones(count, before + count, dtype=torch.bool, device=inputs.device).tril(before)[None, None]
        states = self.dropout(inputs + self.places[before : before + count])
        new: list[KeysValues | None] = []
        for block, own, remembered in zip(self.blocks, past, memory, strict=True):
            states, kept = block(states, own, remembered, causal, seen)
            new.append(kept)
        return self.norm(states), new

    def logits(self, states: Float[Tensor, "row level width"]) -> Float[Tensor, "row level code"]:
        """Scores over each level's codes; codes that a level lacks get -inf."""
        levels = states.shape[1]
        scores = torch.einsum("rlw,lcw->rlc", states, self.out[:levels]) + self.bias[:levels]
        return scores.masked_fill(~self.code_mask[:levels], -torch.inf)
