"""The sentence encoder of queries: the one the index was made with, or another by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from restd.encode import Embeddings, Encoder, is_fitted, load_encoder, load_recorded, same_encoder
from restd.errors import ArtifactError, ConfigError
from restd.index import SidIndex

_INDEX = "index"


def find_encoder(name: str, index: SidIndex, folder: Path | None) -> Encoder:
    """Load the encoder of this name; `index` stands for the one the index was made with.

    Args:
        name: `index`, or what `load_encoder` takes.
        index: knows which encoder made its vectors.
        folder: where `restd index` put the index; an encoder that was fitted to the catalogue is there.
    """
    if name != _INDEX:
        if is_fitted(name):
            raise ConfigError(
                f"{name} is fitted to a catalogue: make the index with it, and take compact.encoder=index."
            )
        return load_encoder(name)
    identity = index.origin.get("encoder")
    if identity is None or "file" in identity:
        raise ConfigError(
            "The index has no encoder for queries, because its Semantic IDs or vectors were brought from elsewhere; "
            "name one, as in --set compact.encoder=minilm."
        )
    if not is_fitted(identity["name"]):
        return refuse_other_encoder(load_recorded(identity), identity)
    if folder is None or not (folder / "embeddings").is_dir():
        raise ConfigError(
            "The index was encoded with an encoder fitted to its catalogue, which is kept beside it in 'embeddings'; "
            "name the folder restd index made, or another encoder with --set compact.encoder=minilm."
        )
    return refuse_other_encoder(Embeddings.open(folder / "embeddings").encoder(), identity)


def refuse_other_encoder(encoder: Encoder, identity: Mapping[str, Any]) -> Encoder:
    """Return the encoder; one of another identity is an error."""
    if not same_encoder(encoder, identity):
        raise ArtifactError(
            f"Expected the encoder {identity}, got {encoder.identity}; install the original, or make index and model "
            "again."
        )
    return encoder
