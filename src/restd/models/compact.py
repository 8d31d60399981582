"""The default retriever: a pretrained sentence encoder and a small decoder, for machines without an accelerator."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from restd.artifacts import Artifact
from restd.artifacts.store import Writer
from restd.config import OPTIONAL
from restd.encode import (
    Encoder,
    Inputs,
    Ragged,
    SentenceTransformerEncoder,
    read_encoder,
    states_dim,
    states_of,
    write_encoder,
)
from restd.errors import ConfigError
from restd.models.compact_decoder import CodeDecoder, DecoderShape
from restd.models.compact_geometry import GeometryShape, LatentGeometry
from restd.models.contract import Backbone, Memory, Output, code_loss, load_weights, seeded, soft_code_loss
from restd.models.decode_protocol import Normalizer, Stepper
from restd.models.query_encoder import find_encoder
from restd.models.registry import BACKBONES, BackboneKind, BuildContext, ModelConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactConfig:
    """Settings of the compact retriever.

    Args:
        encoder: `index` for the encoder the index was made with, or the name of another.
        tune_encoder: train the encoder too, instead of running it once and keeping its token states.
        encoder_rate: learning rate of a trained encoder, as a share of the decoder's.
        max_tokens: where longer texts are cut.
        width: width of the decoder's states; 256 to 384 are enough for tens of thousands of items.
        blocks: decoder blocks.
        heads: attention heads.
        feed: width of the feed-forward layers, in widths.
        dropout: share of activations dropped in training.
        steps: latent steps before the first code, as in CaLIR.
        geometry: start as good as the index: add to each level's logits how near its codewords are to what the codes so
            far left of the query's own latent; `auto` where the index can say how it projects queries.
        geometry_rate: learning rate of the projection that gives this latent, as a share of the decoder's.
        codewords: start each level's output embeddings from the index's codewords, as RIPOR does. Unlike `geometry` it
            adds nothing to the logits: only the first weights differ.
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
    geometry: bool | Literal["auto"] = False
    geometry_rate: float = 0.1
    codewords: bool = field(default=False, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if self.width < 1 or self.heads < 1 or self.width % self.heads:
            raise ConfigError(f"compact.width ({self.width}) must be divisible by compact.heads ({self.heads}).")
        for name, least in (("blocks", 1), ("feed", 1), ("max_tokens", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"compact.{name} must be at least {least}, got {getattr(self, name)}.")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"compact.dropout must be at least 0 and below 1, got {self.dropout}.")
        if self.geometry_rate < 0:
            raise ConfigError(f"compact.geometry_rate must be at least 0, got {self.geometry_rate}.")

    @property
    def shape(self) -> DecoderShape:
        """The decoder's part of the settings."""
        return DecoderShape(self.width, self.blocks, self.heads, self.feed, self.dropout, self.steps)


class CompactBackbone(Backbone):
    """A sentence encoder, frozen or trained, and a pre-norm decoder over codes only.

    With a geometry, a state is the decoder's own and the residual of the query's latent behind it.

    Args:
        encoder: of the texts.
        sizes: codes of each level.
        config: settings.
        seed: random seed of the first weights.
        geometry: of the index, with `config.geometry` and only then.
        ends: whether code 0 ends an identifier.

    >>> import torch
    >>> from restd.encode import fit_tfidf_svd
    >>> encoder = fit_tfidf_svd(["red kettle", "blue kettle", "oak desk", "desk lamp"], seed=0)
    >>> model = CompactBackbone(encoder, (4, 4), CompactConfig(width=16, heads=2), seed=0)
    >>> memory = model.encode(model.prepare(["red lamp"]).batch(torch.arange(1).numpy()))
    >>> model.logits(model.states(memory, torch.tensor([[1, 2]])).states).shape
    torch.Size([1, 2, 4])
    """

    kind = "compact"

    def __init__(
        self,
        encoder: Encoder,
        sizes: tuple[int, ...],
        config: CompactConfig,
        *,
        seed: int,
        geometry: LatentGeometry | None = None,
        ends: bool = False,
    ) -> None:
        if config.geometry is not (geometry is not None):
            raise ConfigError(
                f"compact.geometry is {config.geometry}, but the geometry of an index was "
                f"{'not ' if geometry is None else ''}given; make the model with make_backbone."
            )
        super().__init__(sizes, config.width + (0 if geometry is None else geometry.shape.dim), config, ends=ends)
        self._trained: SentenceTransformerEncoder | None = None
        if config.tune_encoder:
            self._trained = _trainable(encoder)
        self.sentence_encoder = encoder
        with seeded(seed):
            self.decoder = CodeDecoder(sizes, config.shape)
            self.project = nn.Linear(states_dim(encoder), config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        if self._trained is not None:
            self.encoder = self._trained.module
        self.geometry = geometry

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates of parts that want another one than the rest, relative to it."""
        rates = {"encoder.": self.config.encoder_rate}
        return rates if self.geometry is None else {**rates, "geometry.project.": self.config.geometry_rate}

    @property
    def unused_parameters(self) -> bool:
        """A trained encoder has a pooling layer, which token states do not use."""
        return self._trained is not None

    def describe(self) -> dict[str, Any]:
        """Settings, which sentence encoder it is, and the shape of the geometry, if any."""
        described = {**super().describe(), "encoder": self.sentence_encoder.identity}
        return described if self.geometry is None else {**described, "geometry": self.geometry.shape.describe()}

    def write(self, writer: Writer, state: Mapping[str, Tensor], ids: pa.StringArray) -> None:
        """Weights, and an encoder that was fitted to the catalogue: it exists nowhere else."""
        super().write(writer, state, ids)
        write_encoder(writer, self.sentence_encoder)

    def prepare(self, texts: Sequence[str], *, role: str = "query", cache: Path | None = None) -> Ragged:
        """Token states of a frozen encoder, made once and kept in `cache`; token ids for a trained one.

        Queries and items are read alike, so `role` changes nothing here.
        """
        if self._trained is not None:
            ids, cut = self._trained.tokens(texts, limit=self.config.max_tokens)
            return Ragged.of(ids, cut=cut)
        return states_of(self.sentence_encoder, texts, limit=self.config.max_tokens, cache=cache)

    def encode(self, inputs: Inputs) -> Memory:
        """Project token states to the decoder's width; run the encoder first where it is trained."""
        states = inputs.values
        if not states.is_floating_point():
            assert self._trained is not None
            states = self._trained.token_states(states, inputs.mask)
        latent = None if self.geometry is None else self.geometry(states, inputs.mask)
        return Memory(self.dropout(self.norm(self.project(states))), inputs.mask, latent=latent)

    def states(self, memory: Memory, sids: Int64[Tensor, "row given"]) -> Output:
        """States that predict each code."""
        if self.geometry is None:
            return self.decoder(memory, sids)
        assert memory.latent is not None
        return self.geometry.beside(self.decoder(memory, sids), self.geometry.residuals(memory.latent, sids))

    def logits(self, states: Float[Tensor, "row level width"]) -> Float[Tensor, "row level code"]:
        """Scores over each level's codes; codes that a level lacks get -inf."""
        if self.geometry is None:
            return self.decoder.logits(states)
        own, residuals = states.split([self.config.width, self.geometry.shape.dim], dim=-1)
        return self.decoder.logits(own) + self.geometry.logits(residuals)

    def sid_loss(self, output: Output, sids: Int64[Tensor, "row level"]) -> Float[Tensor, ""]:
        """Mean cross-entropy over levels; there is no end of the sequence to predict."""
        return code_loss(self.logits(output.states), self.learned(sids, sids))

    @property
    def soft_targets(self) -> bool:
        """Yes."""
        return True

    def soft_sid_loss(
        self,
        output: Output,
        targets: Float[Tensor, "row level code"],
        *,
        allowed: Bool[Tensor, "row level code"] | None = None,
        weights: Float[Tensor, "position"] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy over levels; there is no end of the sequence to predict."""
        return soft_code_loss(self.logits(output.states), targets, allowed=allowed, weights=weights, ends=self.ends)

    def stepper(self, *, normalizer: Normalizer = "full_vocab") -> Stepper:
        """Copy the decoder's weights for decoding level by level."""
        from restd.models.compact_stepper import CompactStepper

        return CompactStepper(self, normalizer=normalizer)


def _trainable(encoder: Encoder) -> SentenceTransformerEncoder:
    """The encoder as one that can be trained; any other is an error."""
    if isinstance(encoder, SentenceTransformerEncoder) and encoder.token_dim is not None:
        return encoder
    raise ConfigError(
        f"The encoder {encoder.identity['name']!r} cannot be trained; choose a sentence-transformers model such as "
        "minilm, or leave compact.tune_encoder off."
    )


def _make(config: ModelConfig, context: BuildContext) -> CompactBackbone:
    own = config.section("compact")
    encoder = find_encoder(own.encoder, context.index, context.folder)
    geometry = None
    if own.geometry:
        try:
            geometry = LatentGeometry.of_index(context.index, encoder, limit=own.max_tokens)
        except ConfigError as error:
            if own.geometry != "auto":
                raise
            logger.warning("The decoder starts without the geometry of the index. %s", error)
        own = replace(own, geometry=geometry is not None)
    index = context.index
    made = CompactBackbone(encoder, index.sizes, own, seed=context.seed, geometry=geometry, ends=index.ends)
    if own.codewords:
        made.decoder.start_from_codewords(index.latents_and_codebooks()[1].values.float(), seed=context.seed)
    return made


def _read(artifact: Artifact, description: Mapping[str, Any]) -> CompactBackbone:
    encoder = read_encoder(artifact, description["encoder"])
    config = CompactConfig(**description["config"])
    sizes, geometry = tuple(description["sizes"]), None
    if config.geometry:
        geometry = LatentGeometry(sizes, GeometryShape.read(description["geometry"]))
    ends = description.get("ends", False)
    return load_weights(CompactBackbone(encoder, sizes, config, seed=0, geometry=geometry, ends=ends), artifact)


BACKBONES.add(
    BackboneKind(
        name="compact",
        summary="A pretrained sentence encoder, frozen by default, and a small decoder; trains without an accelerator.",
        config=CompactConfig,
        task="search",
        make=_make,
        read=_read,
        base_training={
            **{"updates": 0, "epochs": 12, "micro": 128, "lr": 1e-3, "weight_decay": 0.05, "warm_up": 0.05},
            "indexing": "title",
        },
        continued_training={"micro": 128, "lr": 1e-4},
        latent_steps=True,
    )
)
