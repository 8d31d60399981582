"""TIGER: a small T5 that reads the Semantic IDs of a user's items, and generates the next one."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from safetensors.torch import load_file
from torch import Tensor, nn

from restd.artifacts import Artifact
from restd.data import Query
from restd.encode import Inputs, Ragged
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.models.contract import Output, seeded
from restd.models.decode_protocol import Memory
from restd.models.inputs import SidHistories, sid_histories
from restd.models.registry import BACKBONES, BackboneKind, BuildContext, ModelConfig
from restd.models.sid_t5 import SidT5
from restd.models.t5_layers import RECENCY, add_recency, decoder_states, encoder_states, recency_table

PAD, END = 0, 1
"""Tokens before the codes; the end is never generated (there are as many codes as levels), but `generate` needs it."""


@dataclass(frozen=True, slots=True)
class TigerConfig:
    """Settings of TIGER; the paper's sizes.

    Args:
        width: width of the states.
        layers: encoder blocks, and decoder blocks.
        heads: attention heads.
        head_width: width of each attention head.
        feed: width of the feed-forward layers.
        dropout: share of activations dropped in training.
        history: items it reads, the latest ones.
        users: tokens that users are hashed to, the first thing it reads; 0 for none.
        causal: let the encoder see only what came before, so that prefixes of a user are read in one pass while
            training (`causal_ratio` of `restd bench recommend`); the decoder learns what distance from the end is
            worth. Of a history longer than `history`, at least half as many items are read.
        tied: use one table for the codes that are read and those that are generated, as the first T5 did. One epoch of
            Beauty ended with a validation loss of 3.74 with one and of 3.39 with two (2 + 2 blocks, batches of 64,
            seed 42).
    """

    width: int = 128
    layers: int = 6
    heads: int = 4
    head_width: int = 64
    feed: int = 512
    dropout: float = 0.1
    history: int = 50
    users: int = 0
    causal: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "head_width", "feed", "history"):
            if getattr(self, name) < 1:
                raise ConfigError(f"tiger.{name} must be at least 1, got {getattr(self, name)}.")
        if self.users < 0:
            raise ConfigError(f"tiger.users must be 0 (no tokens for users) or more, got {self.users}.")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"tiger.dropout must be at least 0 and below 1, got {self.dropout}.")


class TigerBackbone(SidT5):
    """T5 over codes alone: what it reads and what it says are Semantic IDs.

    >>> model = TigerBackbone.made((4, 4), TigerConfig(width=16, layers=1, heads=2, head_width=8, feed=32), seed=0)
    >>> prepared = model.prepare(SidHistories.of([np.array([[3, 0], [2, 1]])]))
    >>> memory = model.encode(prepared.batch(np.arange(1)))
    >>> model.logits(model.states(memory, torch.tensor([[1, 2]])).states).shape
    torch.Size([1, 2, 4])
    """

    kind = "tiger"

    def __init__(self, model: nn.Module, sizes: tuple[int, ...], config: TigerConfig, *, ends: bool = False) -> None:
        super().__init__(model, code_tokens(sizes), sizes, config, steps=0, ends=ends)

    @classmethod
    def made(cls, sizes: tuple[int, ...], config: TigerConfig, *, seed: int, ends: bool = False) -> "TigerBackbone":
        """A new one, with weights drawn from a seed."""
        from transformers import T5Config as Shape
        from transformers import T5ForConditionalGeneration

        shape = Shape(
            vocab_size=END + 1 + sum(sizes) + config.users,
            d_model=config.width,
            d_kv=config.head_width,
            d_ff=config.feed,
            num_layers=config.layers,
            num_heads=config.heads,
            dropout_rate=config.dropout,
            pad_token_id=PAD,
            eos_token_id=END,
        )
        shape.decoder_start_token_id = PAD
        with seeded(seed):
            model: Any = T5ForConditionalGeneration(shape)
            if not config.tied:
                model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * config.width**-0.5)
            if config.causal:
                add_recency(model)
        model.config.scale_decoder_outputs = config.tied
        return cls(model, sizes, config, ends=ends)

    @classmethod
    def load(cls, folder: Path, sizes: tuple[int, ...], config: TigerConfig, *, ends: bool = False) -> "TigerBackbone":
        """One that was saved as `transformers` saves it; where it knows no distances, none of them adds anything."""
        made = cls.made(sizes, config, seed=0, ends=ends)
        weights = load_file(folder / "model.safetensors")
        # `transformers` keeps a table that has several names once
        names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", *["lm_head.weight"] * config.tied]
        missing = {name: weights["shared.weight"] for name in names}
        if config.causal:
            missing[RECENCY] = made.model.state_dict()[RECENCY]
        made.model.load_state_dict({**missing, **weights})
        return made

    @property
    def knows_users(self) -> bool:
        """Where users have tokens."""
        return self.config.users > 0

    def prepare_queries(
        self, queries: Sequence[Query], index: SidIndex, *, role: str = "query", cache: Path | None = None
    ) -> Ragged:
        """Tokens of histories; texts among them are an error."""
        return self.prepare(sid_histories(queries, index))

    def prepare(self, texts: SidHistories, *, role: str = "query", cache: Path | None = None) -> Ragged:
        """Tokens of each history's latest items; cheap, so that `cache` is not used.

        Overlapping histories share their tokens in memory: those of a user that begin with the same item. Every item
        has as many tokens as there are levels: one whose Semantic ID ends early is read with its terminal codes.
        """
        levels, shared = len(self.sizes), self.config.causal
        begin = self._begin(texts)
        cut = int((begin > texts.begin).sum())
        known = self.tokens.cpu()[torch.arange(levels), torch.from_numpy(texts.sids.astype(np.int64))].flatten()
        first, lengths = begin * levels, (texts.end - begin) * levels
        if self.config.users and texts.users:
            known, first, extra = self._with_users(known.numpy(), first, lengths, texts.users)
            lengths = lengths + extra
        return Ragged((known,), np.zeros_like(lengths), first, lengths, cut, shared)

    def _begin(self, texts: SidHistories) -> Int64[np.ndarray, "history"]:
        """Where reading begins; a causal encoder's windows move by halves, so that prefixes begin at the same place."""
        if not self.config.causal:
            return np.maximum(texts.begin, texts.end - self.config.history)
        step = max(self.config.history // 2, 1)
        over = np.maximum(texts.end - texts.begin - self.config.history, 0)
        return texts.begin + -(-over // step) * step

    def _with_users(
        self,
        tokens: Int64[np.ndarray, "_"],
        first: Int64[np.ndarray, "history"],
        lengths: Int64[np.ndarray, "history"],
        users: Sequence[str],
    ) -> tuple[Int64[Tensor, "_"], Int64[np.ndarray, "history"], Int64[np.ndarray, "history"]]:
        """Put users before what they took; returns all tokens, where each history begins, and how much it grew."""
        windows: dict[tuple[int, str], int] = {}
        keys = list(zip(first.tolist(), users, strict=True))
        for key, length in zip(keys, lengths.tolist(), strict=True):
            windows[key] = max(windows.get(key, 0), length)
        heads = {key: self._user(key[1]) for key in windows}
        parts = [np.concatenate([heads[key], tokens[key[0] : key[0] + longest]]) for key, longest in windows.items()]
        ends = np.cumsum([len(part) for part in parts]).tolist()
        begins = dict(zip(windows, [0, *ends[:-1]], strict=True))
        placed = np.array([begins[key] for key in keys], np.int64)
        return torch.from_numpy(np.concatenate(parts)), placed, np.array([len(heads[key]) for key in keys], np.int64)

    def _user(self, user: str) -> Int64[np.ndarray, "_"]:
        """The token of a user's hash; nobody has none."""
        if not user:
            return np.zeros(0, np.int64)
        bucket = int.from_bytes(hashlib.sha256(user.encode()).digest()[:8]) % self.config.users
        return np.array([END + 1 + sum(self.sizes) + bucket], np.int64)

    def encode(self, inputs: Inputs) -> Memory:
        """Run the encoder; rows that are beginnings of what it read see so much of it."""
        states = encoder_states(self.model, inputs.values, inputs.mask, rate=self._dropout, causal=self.config.causal)
        if (rows := inputs.beginnings) is None:
            return Memory(states, inputs.mask)
        place = torch.arange(states.shape[1], device=states.device)
        return Memory(states, place < rows.length[:, None], rows.text)

    def states(self, memory: Memory, sids: Int64[Tensor, "row given"]) -> Output:
        """States that predict each code; behind the last one there is nothing to predict, so that it is not read."""
        given = sids[:, : len(self.sizes) - 1]
        level = torch.arange(given.shape[1], device=sids.device)
        begin = sids.new_full((len(sids), 1), self.model.config.decoder_start_token_id)
        inputs = self.model.shared(torch.cat([begin, self.tokens[level, given]], dim=1))
        return Output(decoder_states(self.model, inputs, memory, rate=self._dropout, recency=self.recency()))

    def recency(self) -> Float[Tensor, "distance head"] | None:
        """What distance from the end adds to attention: a causal encoder does not see the end, so the decoder must."""
        return recency_table(self.model) if self.config.causal else None

    @property
    def _dropout(self) -> float:
        return self.model.config.dropout_rate if self.training else 0.0

    def sid_loss(self, output: Output, sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
        """Mean cross-entropy over all tokens at every code, the disambiguation code included (eq. recommendation-loss).

        The paper sums over codes; the mean is a quarter of it for four of them.
        """
        level = torch.arange(sids.shape[1], device=sids.device)
        scores: Any = self.vocabulary_logits(output.states.flatten(0, 1)).float()
        return nn.functional.cross_entropy(scores, self.learned(self.tokens[level, sids], sids).flatten())


def code_tokens(sizes: tuple[int, ...]) -> Int64[Tensor, "level code"]:
    """Tokens of every level's codes, one level after another.

    >>> code_tokens((2, 3)).tolist()
    [[2, 3, 3], [4, 5, 6]]
    """
    before = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    places = torch.minimum(torch.arange(max(sizes)), torch.tensor(sizes)[:, None] - 1)
    return END + 1 + before[:, None] + places


_BASE = {
    **{"updates": 0, "epochs": 100, "batch": 512, "micro": 128, "lr": 1e-3, "weight_decay": 0.05, "warm_up": 0.05},
    **{"patience": 10, "keep": "best", "select": "ndcg", "judged": 4_000},
}


def _make(config: ModelConfig, context: BuildContext) -> TigerBackbone:
    index = context.index
    return TigerBackbone.made(index.sizes, config.section("tiger"), seed=context.seed, ends=index.ends)


def _read(artifact: Artifact, description: Mapping[str, Any]) -> TigerBackbone:
    # manifests that do not say `tied` are from when there was one table for codes read and generated
    config = TigerConfig(**{"tied": True, **description["config"]})
    ends = description.get("ends", False)
    return TigerBackbone.load(artifact.folder, tuple(description["sizes"]), config, ends=ends)


BACKBONES.add(
    BackboneKind(
        name="tiger",
        summary="TIGER: a small T5 that reads the Semantic IDs of a user's items and generates the next one.",
        config=TigerConfig,
        task="recommend",
        make=_make,
        read=_read,
        base_training=_BASE,
        continued_training={**_BASE, "lr": 1e-4},
        source="Rajput et al. 2023, Recommender Systems with Generative Retrieval",
    )
)
