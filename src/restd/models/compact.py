"""The default retriever: a pretrained sentence encoder and a small decoder, for machines without an accelerator."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float, Int64
from torch import Tensor, nn

from restd.encode import Encoder, Inputs, Ragged, SentenceTransformerEncoder, states_dim, states_of
from restd.errors import ConfigError
from restd.models.contract import Memory, Output, code_loss, seeded
from restd.models.decoder import CodeDecoder, DecoderShape
from restd.models.decoding import Normalizer, Stepper


@dataclass(frozen=True, slots=True)
class CompactConfig:
    """Settings of the compact retriever.

    Args:
        encoder: `index` for the encoder the index was made with, or the name of another.
        tune_encoder: train the encoder too, instead of running it once and keeping its token states.
        encoder_rate: learning rate of a trained encoder, as a share of the decoder's.
        max_tokens: where longer texts are cut.
        width: of the decoder's states; 256 to 384 do for tens of thousands of items.
        blocks: decoder blocks.
        heads: attention heads.
        feed: width of the feed-forward layers, in widths.
        dropout: share of activations dropped in training.
        steps: latent steps before the first code, as in CaLIR.
    """

    encoder: str = "index"
    tune_encoder: bool = False
    encoder_rate: float = 0.02
    max_tokens: int = 64
    width: int = 256
    blocks: int = 3
    heads: int = 4
    feed: int = 4
    dropout: float = 0.1
    steps: int = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.heads < 1 or self.width % self.heads:
            raise ConfigError(f"A width of {self.width} cannot be parted among {self.heads} heads; wanted a multiple.")
        if self.blocks < 1 or self.feed < 1 or self.max_tokens < 2:
            raise ConfigError(
                f"{self.blocks} blocks with {self.feed}-fold feed-forward layers over {self.max_tokens} tokens cannot "
                "be used; wanted at least 1, 1 and 2."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"A dropout of {self.dropout} was asked for; wanted 0 or more and below 1.")

    @property
    def shape(self) -> DecoderShape:
        """The decoder's part of the settings."""
        return DecoderShape(self.width, self.blocks, self.heads, self.feed, self.dropout, self.steps)


class CompactBackbone(nn.Module):
    """A sentence encoder, frozen or trained, and a pre-norm decoder over codes only.

    >>> import torch
    >>> from restd.encode import fit_tfidf_svd
    >>> encoder = fit_tfidf_svd(["red kettle", "blue kettle", "oak desk", "desk lamp"], seed=0)
    >>> model = CompactBackbone(encoder, (4, 4), CompactConfig(width=16, heads=2), seed=0)
    >>> memory = model.encode(model.prepare(["red lamp"]).batch(torch.arange(1).numpy()))
    >>> model.logits(model.states(memory, torch.tensor([[1, 2]])).states).shape
    torch.Size([1, 2, 4])
    """

    def __init__(self, encoder: Encoder, sizes: tuple[int, ...], config: CompactConfig, *, seed: int) -> None:
        super().__init__()
        trainable = isinstance(encoder, SentenceTransformerEncoder) and encoder.token_dim is not None
        if config.tune_encoder and not trainable:
            raise ConfigError(
                f"The encoder {encoder.identity['name']!r} cannot be trained; choose a sentence-transformers model "
                "such as minilm, or leave compact.tune_encoder off."
            )
        self.config = config
        self.sentence_encoder = encoder
        with seeded(seed):
            self.decoder = CodeDecoder(sizes, config.shape)
            self.project = nn.Linear(states_dim(encoder), config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        if config.tune_encoder and isinstance(encoder, SentenceTransformerEncoder):
            self.encoder = encoder.module

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        return self.decoder.sizes

    @property
    def width(self) -> int:
        """Width of the decoder's states."""
        return self.config.width

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates of parts that want another one than the rest, relative to it."""
        return {"encoder.": self.config.encoder_rate}

    def prepare(self, texts: Sequence[str], *, task: str = "query", cache: Path | None = None) -> Ragged:
        """Token states of a frozen encoder, made once and kept in `cache`; token ids for a trained one.

        Queries and items are read alike, so `task` changes nothing here.
        """
        if isinstance(self.sentence_encoder, SentenceTransformerEncoder) and self.config.tune_encoder:
            ids, cut = self.sentence_encoder.tokens(texts, limit=self.config.max_tokens)
            return Ragged.of(ids, cut=cut)
        return states_of(self.sentence_encoder, texts, limit=self.config.max_tokens, cache=cache)

    def encode(self, inputs: Inputs) -> Memory:
        """Project token states to the decoder's width; run the encoder first where it is trained."""
        states = inputs.values
        if not states.is_floating_point():
            assert isinstance(self.sentence_encoder, SentenceTransformerEncoder)
            states = self.sentence_encoder.token_states(states, inputs.mask)
        return Memory(self.dropout(self.norm(self.project(states))), inputs.mask)

    def states(self, memory: Memory, sids: Int64[Tensor, "row given"]) -> Output:
        """States that predict each code."""
        return self.decoder(memory, sids)

    def logits(self, states: Float[Tensor, "row level width"]) -> Float[Tensor, "row level code"]:
        """Scores over each level's codes; codes that a level lacks get -inf."""
        return self.decoder.logits(states)

    def sid_loss(self, output: Output, sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
        """Mean cross-entropy over levels; there is no end to predict."""
        return code_loss(self.logits(output.states), sids)

    def route(self, memory: Memory, *, width: int) -> None:
        """It knows no categories of its own."""
        return None

    def stepper(self, *, normalizer: Normalizer = "full_vocab") -> Stepper:
        """Copy the decoder's weights for decoding level by level."""
        from restd.models.compact_stepper import CompactStepper

        return CompactStepper(self, normalizer=normalizer)
