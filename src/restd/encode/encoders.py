"""Encoders by name: the registry, and how a name becomes an encoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from restd.artifacts import Artifact, Writer
from restd.encode.contract import Encoder, FittedEncoder
from restd.encode.identity import same_encoder
from restd.errors import ArtifactError, ConfigError
from restd.registry import Registry

logger = getLogger(__name__)

MINILM = "minilm"
USE_MULTILINGUAL = "use-multilingual"
TFIDF_SVD = "tfidf-svd"
_TENSORS, _TABLE = "encoder", "vocabulary"


@dataclass(frozen=True, slots=True)
class EncoderEntry:
    """An encoder that is chosen by name: one that is loaded, or one that is fitted to a catalogue.

    Args:
        name: what it is chosen by.
        summary: one sentence.
        load: makes it on a device (None: the best there is).
        fit: fits it to texts of a catalogue, with a seed.
        restore: makes a fitted one again from its state.
        source: the paper it is from; empty where it is from none.
    """

    name: str
    summary: str
    load: Callable[[str | None], Encoder] | None = None
    fit: Callable[[Sequence[str], int], FittedEncoder] | None = None
    restore: Callable[[Mapping[str, np.ndarray], pa.Table], FittedEncoder] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        parts = [part is not None for part in (self.load, self.fit, self.restore)]
        if parts not in ([True, False, False], [False, True, True]):
            raise ConfigError(f"The encoder {self.name!r} needs either `load`, or `fit` and `restore`.")


ENCODERS: Registry[EncoderEntry] = Registry(
    "encoder",
    group="encoders",
    homes=("restd.encode.sentence_transformer", "restd.encode.use_multilingual", "restd.encode.tfidf"),
)
"""Every encoder that has a name; any other sentence-transformers model is named by its hub id or folder."""


def load_encoder(name: str, *, device: str | None = None) -> Encoder:
    """Load an encoder that needs no fitting: a registered name, or a sentence-transformers model by hub id or folder.

    A name that is not registered is a model when it contains a slash or is a folder. Anything else is an error.

    >>> load_encoder("minlm")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    restd.errors.ConfigError: Unknown encoder 'minlm'. Did you mean 'minilm'? Known: ...
    """
    if name not in ENCODERS and ("/" in name or Path(name).is_dir()):
        return _load_sentence_model(name, device)
    try:
        entry = ENCODERS[name]
    except ConfigError as error:
        raise ConfigError(
            f"{error} Any other sentence-transformers model is named by its hub id (owner/model) or its folder."
        ) from None
    if entry.load is None:
        raise ConfigError(
            f"The encoder {name!r} is fitted to a catalogue and cannot be loaded alone. Build an index with it, or fit "
            "it with restd.encode.fit_encoder."
        )
    return entry.load(device)


def is_fitted(name: str) -> bool:
    """Return whether the encoder of this name is fitted to a catalogue."""
    return name in ENCODERS and ENCODERS[name].fit is not None


def fit_encoder(name: str, texts: Sequence[str], *, seed: int = 0) -> FittedEncoder:
    """Fit an encoder to (a sample of) a catalogue's texts."""
    fit = ENCODERS[name].fit
    if fit is None:
        raise ConfigError(f"The encoder {name!r} needs no fitting; load it with restd.encode.load_encoder.")
    return fit(texts, seed)


def write_encoder(writer: Writer, encoder: Encoder) -> None:
    """Store a fitted encoder in an artefact; one that is loaded by name needs nothing."""
    if isinstance(encoder, FittedEncoder):
        tensors, table = encoder.state()
        writer.tensors(_TENSORS, tensors)
        writer.table(_TABLE, table.to_batches(), schema=table.schema)


def read_encoder(artifact: Artifact, recorded: Mapping[str, Any], *, device: str | None = None) -> Encoder:
    """Load the encoder that an artefact was made with: from the artefact if it was fitted, else by its name.

    Args:
        artifact: where `write_encoder` stored a fitted one.
        recorded: the identity that the artefact names; another encoder under the same name is refused.
        device: where a loaded one runs.
    """
    name = recorded["name"]
    if is_fitted(name):
        restore = ENCODERS[name].restore
        assert restore is not None
        return restore(artifact.tensors(_TENSORS), artifact.table(_TABLE))
    encoder = load_recorded(recorded, device=device)
    if not same_encoder(encoder, recorded):
        raise ArtifactError(
            f"{artifact.folder} was made with the encoder {dict(recorded)}, but the one here is {encoder.identity}. "
            "Install the original, or encode the catalogue again."
        )
    return encoder


def load_recorded(recorded: Mapping[str, Any], *, device: str | None = None) -> Encoder:
    """Load the encoder of a recorded identity, without comparing the two."""
    name = recorded["name"]
    if name not in ENCODERS and "max_tokens" in recorded:  # earlier versions took hub ids without an owner, too
        return _load_sentence_model(name, device)
    return load_encoder(name, device=device)


def _load_sentence_model(name: str, device: str | None) -> Encoder:
    from restd.encode.sentence_transformer import SentenceTransformerEncoder

    logger.info("Loading %s as a sentence-transformers model", name)
    return SentenceTransformerEncoder(name, device=device)
