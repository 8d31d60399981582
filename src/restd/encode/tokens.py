"""Token states of a frozen encoder, made once: a retriever that does not train its encoder need not run it again."""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float16, Int64
from safetensors.torch import load_file
from torch import Tensor

from restd.artifacts import create, open_artifact, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.encode.encoders import Encoder
from restd.encode.ragged import Ragged
from restd.encode.shards import open_partial, write_shard
from restd.progress import progress

KIND = "token-states"
SCHEMA = 1
_SHARD_TEXTS = 8_192
_BATCH = 64


@runtime_checkable
class TokenEncoder(Protocol):
    """An encoder that also gives a state for every token."""

    @property
    def token_dim(self) -> int | None:
        """Width of the states; None where this model has none after all."""
        ...

    def tokens(self, texts: Sequence[str], *, limit: int) -> tuple[list[Int64[np.ndarray, "_"]], int]:
        """Token ids of each text, at most `limit`, and how many texts were cut."""
        ...

    def token_states(
        self, ids: Int64[Tensor, "row position"], mask: Bool[Tensor, "row position"]
    ) -> Float[Tensor, "row position dim"]:
        """Run the encoder up to its last hidden states."""
        ...


def states_dim(encoder: Encoder) -> int:
    """Width of what `states_of` gives."""
    return (encoder.token_dim if isinstance(encoder, TokenEncoder) else None) or encoder.dim


def texts_hash(texts: Sequence[str]) -> str:
    """Hash of texts and their order."""
    digest = hashlib.sha256()
    for text in texts:
        held = text.encode()
        digest.update(len(held).to_bytes(8, "little") + held)
    return digest.hexdigest()


def states_of(encoder: Encoder, texts: Sequence[str], *, limit: int, cache: Path | None = None) -> Ragged:
    """Encode texts to token states (one state a text where the encoder has no token states), in float16.

    With `cache`, the states are kept there as an artefact and mapped from disk; what is there already is not made
    again, and a run that was interrupted goes on where it stopped.
    """
    if cache is None:
        if not isinstance(encoder, TokenEncoder) or encoder.token_dim is None:
            return Ragged.of(_vectors(encoder, texts))
        ids, cut = encoder.tokens(texts, limit=limit)
        return Ragged.of(_states(encoder, ids), cut=cut)
    settings = {"encoder": encoder.identity, "limit": limit, "texts": texts_hash(texts), "count": len(texts)}
    if not _is_made(cache, settings):
        # runs side by side want the same states: one makes them, the others wait and find them made
        with sole_writer(cache.parent / ".making", wait=True):
            if not _is_made(cache, settings):
                _make(encoder, texts, limit, cache, settings)
    artifact = open_artifact(cache, kind=KIND, schema=SCHEMA)
    held = [load_file(cache / name) for name in sorted(artifact.manifest.files)]
    cut = int(sum(shard["cut"] for shard in held))
    return Ragged.of_shards([(shard["values"], shard["lengths"].numpy()) for shard in held], cut=cut)


def _is_made(cache: Path, settings: dict[str, object]) -> bool:
    if not (cache / MANIFEST).is_file():
        return False
    return open_artifact(cache, kind=KIND, schema=SCHEMA).manifest.settings == settings


def _make(encoder: Encoder, texts: Sequence[str], limit: int, cache: Path, settings: dict[str, object]) -> None:
    partial = open_partial(cache, {**settings, "rows": _SHARD_TEXTS})
    with progress("Encoding texts", total=len(texts)) as advance:
        for number, start in enumerate(range(0, len(texts), _SHARD_TEXTS)):
            path = partial / f"states-{number:05d}.safetensors"
            part = texts[start : start + _SHARD_TEXTS]
            if not path.exists():
                made = states_of(encoder, part, limit=limit)
                cut = np.array(made.cut)
                write_shard(path, {"values": made.shards[0].numpy(), "lengths": made.lengths, "cut": cut})
            advance(len(part))
    with create(cache, kind=KIND, schema=SCHEMA, settings=settings) as writer:
        for path in sorted(partial.glob("states-*.safetensors")):
            writer.adopt(path)
    shutil.rmtree(partial, ignore_errors=True)


def _vectors(encoder: Encoder, texts: Sequence[str]) -> Iterator[Float16[np.ndarray, "1 dim"]]:
    for start in range(0, len(texts), _SHARD_TEXTS):
        # an encoder may refuse an empty text; a space is the nearest thing to nothing
        vectors = encoder.encode([text or " " for text in texts[start : start + _SHARD_TEXTS]])
        yield from vectors.astype(np.float16)[:, None]


def _states(encoder: TokenEncoder, ids: Sequence[Int64[np.ndarray, "_"]]) -> list[Float16[np.ndarray, "_ dim"]]:
    texts = Ragged.of(ids)
    found: list[np.ndarray] = [np.zeros((0, 0), np.float16)] * len(ids)
    by_length = np.argsort(texts.lengths, kind="stable")  # near lengths share a batch
    for start in range(0, len(by_length), _BATCH):
        rows = by_length[start : start + _BATCH]
        inputs = texts.batch(rows)
        with torch.inference_mode():
            states = encoder.token_states(inputs.values, inputs.mask).half().cpu().numpy()
        for row, state in zip(rows, states, strict=True):
            found[row] = state[: texts.lengths[row]]
    return found
