"""T5 and mT5 as generative retrievers: SID codes are tokens of their own, the rest is plain `transformers`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.encode import Inputs, Ragged
from restd.errors import ConfigError, DataError
from restd.models.contract import Memory, Output, code_mask, refuse_bad_steps, seeded
from restd.models.decoding import Normalizer, Stepper
from restd.models.tokenizer import train_tokenizer

FRESH = "fresh"
TASKS = {"query": "<query>", "item": "<item>"}
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
        vocabulary: pieces of the tokenizer of a fresh model.
        width: of a fresh model's states.
        feed: of its feed-forward layers.
        layers: encoder blocks, and decoder blocks, of a fresh model.
        heads: attention heads of a fresh model.
        head_width: of each.
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
            raise ConfigError(f"Texts of {self.max_tokens} tokens hold nothing; wanted t5.max_tokens of at least 2.")
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"A dropout of {self.dropout} was asked for; wanted 0 or more and below 1.")


class T5Backbone(nn.Module):
    """T5 or mT5 with level-specific code tokens.

    States are the decoder's output after its final norm, before the scaling T5 applies for tied embeddings. The
    generation loss is over the whole vocabulary, the end of the sequence included; `logits` are over a level's codes.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, sizes: tuple[int, ...], config: T5Config) -> None:
        super().__init__()
        refuse_bad_steps(config.steps)
        self.config, self.sizes, self.tokenizer = config, sizes, tokenizer
        self.model: Any = model
        tokens = torch.zeros(len(sizes), max(sizes), dtype=torch.int64)
        for level, size in enumerate(sizes):
            tokens[level, :size] = torch.tensor(tokenizer.convert_tokens_to_ids(code_tokens(level, size)))
        self.tokens: Tensor
        self.code_mask: Tensor
        self.register_buffer("tokens", tokens, persistent=False)
        self.register_buffer("code_mask", code_mask(sizes), persistent=False)

    @classmethod
    def made(cls, sizes: tuple[int, ...], config: T5Config, *, texts: Sequence[str] = (), seed: int) -> "T5Backbone":
        """Load a pretrained model, or make a fresh one whose tokenizer is trained on `texts`, and add the codes."""
        if config.model == FRESH:
            model, tokenizer = _fresh(config, texts, seed)
        else:
            model, tokenizer = load_pretrained(config.model)
        if config.dropout is not None:
            _set_dropout(model, config.dropout)
        new = [token for level, size in enumerate(sizes) for token in code_tokens(level, size)]
        tokenizer.add_tokens([*TASKS.values(), *new])
        if len(tokenizer) > model.config.vocab_size:
            _make_room(model, len(tokenizer))
        _draw_new_embeddings(model, tokenizer.convert_tokens_to_ids([*TASKS.values(), *new]), seed)
        return cls(model, tokenizer, sizes, config)

    @property
    def width(self) -> int:
        """Width of the decoder's states."""
        return self.model.config.d_model

    @property
    def rates(self) -> dict[str, float]:
        """Every part learns at the same rate."""
        return {}

    def prepare(self, texts: Sequence[str], *, task: str = "query", cache: Path | None = None) -> Ragged:
        """Token ids behind a task token; cheap, so that `cache` is not used."""
        # punctuation that a tokenizer may not know is nothing to warn of; lengths are counted here
        whole = self.tokenizer([f"{TASKS[task]} {text}" for text in texts], verbose=False)["input_ids"] if texts else []
        limit, end = self.config.max_tokens, self.tokenizer.eos_token_id
        ids = [np.array(row if len(row) <= limit else [*row[: limit - 1], end], np.int64) for row in whole]
        return Ragged.of(ids, cut=sum(len(row) > limit for row in whole))

    def encode(self, inputs: Inputs) -> Memory:
        """Run the encoder."""
        found = self.model.encoder(input_ids=inputs.values, attention_mask=inputs.mask)
        return Memory(found.last_hidden_state, inputs.mask)

    def states(self, memory: Memory, sids: Int64[Tensor, "row given"]) -> Output:
        """States that predict each code and the end; the last latent step and all codes go in together."""
        levels, given = len(self.sizes), sids.shape[1]
        embed = self.model.get_input_embeddings()
        begin = sids.new_full((len(sids), 1), self.model.config.decoder_start_token_id)
        following, cache, latents = embed(begin), None, []
        for _ in range(max(self.config.steps, 1) - 1):
            found = self._decode(memory, following, cache, keep=True)
            following, cache = found.last_hidden_state, found.past_key_values
            latents.append(following)
        level = torch.arange(given, device=sids.device)
        inputs = torch.cat([following, embed(self.tokens[level, sids])], dim=1)
        states = self._decode(memory, inputs, cache, keep=cache is not None).last_hidden_state
        ending = states[:, levels] if given == levels else None
        thoughts = torch.cat([*latents, states[:, :1]], dim=1) if self.config.steps else None
        return Output(states[:, : min(given + 1, levels)], latents=thoughts, ending=ending)

    def _decode(self, memory: Memory, inputs: Float[Tensor, "row position width"], cache: Any, *, keep: bool) -> Any:
        return self.model.decoder(
            inputs_embeds=inputs,
            encoder_hidden_states=memory.states,
            encoder_attention_mask=memory.mask,
            past_key_values=cache,
            use_cache=keep,
        )

    def vocabulary_logits(self, states: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch word"]:
        """Scores over the whole vocabulary."""
        return self.model.lm_head(states * self.output_scale)

    def logits(self, states: Float[Tensor, "row level width"]) -> Float[Tensor, "row level code"]:
        """Scores over each level's codes; codes that a level lacks get -inf."""
        levels = states.shape[1]
        weight = self.model.lm_head.weight[self.tokens[:levels]]
        scores = torch.einsum("rlw,lcw->rlc", states * self.output_scale, weight)
        return scores.masked_fill(~self.code_mask[:levels], -torch.inf)

    @property
    def output_scale(self) -> float:
        """What T5 multiplies states with before an output layer that is tied to its embeddings."""
        shape = self.model.config
        return self.width**-0.5 if shape.model_type == "t5" and shape.scale_decoder_outputs else 1.0

    def sid_loss(self, output: Output, sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
        """Mean cross-entropy over the whole vocabulary at every code and at the end."""
        if output.ending is None:
            raise ConfigError("The generation loss needs states of whole Semantic IDs; give every code to `states`.")
        level = torch.arange(sids.shape[1], device=sids.device)
        end = sids.new_full((len(sids), 1), self.tokenizer.eos_token_id)
        wanted = torch.cat([self.tokens[level, sids], end], dim=1)
        states = torch.cat([output.states, output.ending[:, None]], dim=1)
        return nn.functional.cross_entropy(self.vocabulary_logits(states.flatten(0, 1)).float(), wanted.flatten())

    def route(self, memory: Memory, *, width: int) -> None:
        """It knows no categories of its own."""
        return None

    def stepper(self, *, normalizer: Normalizer = "full_vocab") -> Stepper:
        """Copy the decoder's weights for decoding level by level."""
        from restd.models.t5_stepper import T5Stepper

        return T5Stepper(self, normalizer=normalizer)


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
        raise DataError(f"{name!r} is a model of type {model.config.model_type!r}; T5 or mT5 is wanted.")
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
