"""T5 and mT5 as generative retrievers: SID codes are tokens of their own, the rest is plain `transformers`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.artifacts import Artifact
from restd.artifacts.store import Writer
from restd.encode import Ragged
from restd.errors import ConfigError, DataError
from restd.models.contract import Output, seeded
from restd.models.registry import BACKBONES, BackboneKind, BuildContext, ModelConfig
from restd.models.sid_t5 import SidT5
from restd.models.tokenizer import train_tokenizer

FRESH = "fresh"
ROLES = {"query": "<query>", "item": "<item>"}
"""The token that opens every input and says what it is."""


@dataclass(frozen=True, slots=True)
class T5Config:
    """Settings of T5 and mT5.

    Args:
        model: a hub id or folder of T5 or mT5, or `fresh` for new weights of the shape below and a tokenizer trained
            on the catalogue.
        max_tokens: where longer texts are cut.
        steps: latent steps before the first code; 0 for none.
        dropout: share of activations dropped in training; unset, the model's own.
        vocabulary: number of pieces of a fresh model's tokenizer.
        width: width of a fresh model's states.
        feed: width of a fresh model's feed-forward layers.
        layers: encoder blocks, and decoder blocks, of a fresh model.
        heads: attention heads of a fresh model.
        head_width: width of each attention head of a fresh model.
    """

    model: str = "google-t5/t5-base"
    max_tokens: int = 64
    steps: int = 0
    dropout: float | None = None
    vocabulary: int = 8_000
    width: int = 256
    feed: int = 1_024
    layers: int = 3
    heads: int = 4
    head_width: int = 64

    def __post_init__(self) -> None:
        if self.max_tokens < 2:
            raise ConfigError(f"t5.max_tokens must be at least 2, got {self.max_tokens}.")
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"t5.dropout must be at least 0 and below 1, got {self.dropout}.")


class T5Backbone(SidT5):
    """T5 or mT5 that reads texts.

    The generation loss is over the whole vocabulary, the end of the sequence included; `logits` over a level's codes.
    """

    kind = "t5"

    def __init__(
        self, model: nn.Module, tokenizer: Any, sizes: tuple[int, ...], config: T5Config, *, ends: bool = False
    ) -> None:
        tokens = torch.zeros(len(sizes), max(sizes), dtype=torch.int64)
        for level, size in enumerate(sizes):
            tokens[level, :size] = torch.tensor(tokenizer.convert_tokens_to_ids(code_tokens(level, size)))
        super().__init__(model, tokens, sizes, config, steps=config.steps, ends=ends)
        self.tokenizer = tokenizer

    @classmethod
    def made(
        cls, sizes: tuple[int, ...], config: T5Config, *, texts: Sequence[str] = (), seed: int, ends: bool = False
    ) -> "T5Backbone":
        """Load a pretrained model, or make a fresh one whose tokenizer is trained on `texts`, and add the codes."""
        if config.model == FRESH:
            model, tokenizer = _fresh(config, texts, seed)
        else:
            model, tokenizer = load_pretrained(config.model)
        if config.dropout is not None:
            _set_dropout(model, config.dropout)
        new = [token for level, size in enumerate(sizes) for token in code_tokens(level, size)]
        tokenizer.add_tokens([*ROLES.values(), *new])
        if len(tokenizer) > model.config.vocab_size:
            _make_room(model, len(tokenizer))
        _draw_new_embeddings(model, tokenizer.convert_tokens_to_ids([*ROLES.values(), *new]), seed)
        return cls(model, tokenizer, sizes, config, ends=ends)

    def write(self, writer: Writer, state: Mapping[str, Tensor], ids: pa.StringArray) -> None:
        """Model and tokenizer, as plain `transformers` loads them."""
        super().write(writer, state, ids)
        self.tokenizer.save_pretrained(writer.folder)

    def prepare(self, texts: Sequence[str], *, role: str = "query", cache: Path | None = None) -> Ragged:
        """Token ids behind a token of the role; cheap, so that `cache` is not used."""
        # punctuation that a tokenizer may not know is nothing to warn of; lengths are counted here
        whole = self.tokenizer([f"{ROLES[role]} {text}" for text in texts], verbose=False)["input_ids"] if texts else []
        limit, end = self.config.max_tokens, self.tokenizer.eos_token_id
        ids = [np.array(row if len(row) <= limit else [*row[: limit - 1], end], np.int64) for row in whole]
        return Ragged.of(ids, cut=sum(len(row) > limit for row in whole))

    def sid_loss(self, output: Output, sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
        """Mean cross-entropy over the whole vocabulary at every code and at the end of the sequence.

        The end of the sequence is learned behind all levels, also where a terminal code came before.
        """
        if output.ending is None:
            raise ConfigError("The generation loss needs states of whole Semantic IDs; give every code to `states`.")
        level = torch.arange(sids.shape[1], device=sids.device)
        end = sids.new_full((len(sids), 1), self.tokenizer.eos_token_id)
        targets = torch.cat([self.learned(self.tokens[level, sids], sids), end], dim=1)
        states = torch.cat([output.states, output.ending[:, None]], dim=1)
        return nn.functional.cross_entropy(self.vocabulary_logits(states.flatten(0, 1)).float(), targets.flatten())


def code_tokens(level: int, size: int) -> list[str]:
    """Tokens of a level's codes.

    >>> code_tokens(1, 2)
    ['<b_0>', '<b_1>']
    """
    if level >= len(ascii_lowercase):
        raise ConfigError(f"T5 has code tokens for {len(ascii_lowercase)} levels, and the index has more.")
    return [f"<{ascii_lowercase[level]}_{code}>" for code in range(size)]


def load_pretrained(name: str) -> tuple[Any, Any]:
    """Load a T5 or mT5 and its tokenizer from a folder or the hub."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"The model {name!r} could not be loaded ({str(error).splitlines()[0]}); give a folder that holds a T5 or "
            "mT5, check the connection to the hub, or take t5.model=fresh."
        ) from error
    if model.config.model_type not in ("t5", "mt5"):
        raise DataError(f"Expected a model of type t5 or mt5, got {model.config.model_type!r} in {name!r}.")
    return model, tokenizer


def _fresh(config: T5Config, texts: Sequence[str], seed: int) -> tuple[Any, Any]:
    from transformers import T5Config as Shape
    from transformers import T5ForConditionalGeneration

    if not texts:
        raise ConfigError("A fresh T5 needs texts to train its tokenizer on; none were given.")
    tokenizer = train_tokenizer(texts, config.vocabulary)
    shape = Shape(
        vocab_size=len(tokenizer),
        d_model=config.width,
        d_kv=config.head_width,
        d_ff=config.feed,
        num_layers=config.layers,
        num_heads=config.heads,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    shape.decoder_start_token_id = tokenizer.pad_token_id
    with seeded(seed):
        return T5ForConditionalGeneration(shape), tokenizer


def _set_dropout(model: Any, share: float) -> None:
    model.config.dropout_rate = share
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
        elif isinstance(getattr(module, "dropout", None), float):  # attention keeps a number, not a layer
            module.dropout = share


def _make_room(model: Any, size: int) -> None:
    """Lengthen the tables of tokens; `transformers` would tie a head that mT5 and T5 1.1 have of their own."""
    head = model.lm_head.weight
    tied = head is model.get_input_embeddings().weight
    with seeded(0):
        model.resize_token_embeddings(size, mean_resizing=False)
    if not tied:
        longer = head.new_zeros(size, head.shape[1])
        longer[: len(head)] = head.detach()
        model.lm_head.weight = nn.Parameter(longer)


def _draw_new_embeddings(model: Any, tokens: list[int], seed: int) -> None:
    """Give added tokens embeddings as wide as the known ones, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    tables = {id(table.weight): table.weight for table in (model.get_input_embeddings(), model.lm_head)}
    with torch.no_grad():
        for weight in tables.values():
            spread = weight[: min(tokens)].std().item()
            drawn = torch.randn(len(tokens), weight.shape[1], generator=generator)
            weight[tokens] = (spread * drawn).to(weight)


def _make(config: ModelConfig, context: BuildContext) -> T5Backbone:
    own = config.section("t5")
    texts = context.texts() if own.model == FRESH else ()
    return T5Backbone.made(context.index.sizes, own, texts=texts, seed=context.seed, ends=context.index.ends)


def _read(artifact: Artifact, description: Mapping[str, Any]) -> T5Backbone:
    model, tokenizer = load_pretrained(str(artifact.folder))
    sizes, config = tuple(description["sizes"]), T5Config(**description["config"])
    return T5Backbone(model, tokenizer, sizes, config, ends=description.get("ends", False))


BACKBONES.add(
    BackboneKind(
        name="t5",
        summary="T5 or mT5, pretrained or new, with a token for every code; the paper's.",
        config=T5Config,
        task="search",
        make=_make,
        read=_read,
        base_training={"updates": 0, "epochs": 300, "lr": 5e-4, "warm_up": 0.05, "patience": 10, "keep": "best"},
        latent_steps=True,
        source="Raffel et al. 2020, T5; Xue et al. 2021, mT5",
    )
)
