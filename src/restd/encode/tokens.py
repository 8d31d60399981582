"""Token states of a frozen encoder, computed once: a model that does not train its encoder need not run it again."""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float16, Int64
from safetensors.torch import load_file

from restd.artifacts import create, open_artifact, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.encode.contract import Encoder, TokenEncoder
from restd.encode.ragged import Ragged
from restd.encode.shards import open_partial, write_shard
from restd.progress import progress

KIND = "token-states"
SCHEMA = 1
_SHARD_TEXTS = 8_192
_BATCH = 64


def states_dim(encoder: Encoder) -> int:
    """Width of what `states_of` gives."""
    return (encoder.token_dim if isinstance(encoder, TokenEncoder) else None) or encoder.dim


def texts_hash(texts: Sequence[str]) -> str:
    """Hash of texts and their order."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def states_of(encoder: Encoder, texts: Sequence[str], *, limit: int, cache: Path | None = None) -> Ragged:
    """Encode texts to token states in float16; an encoder without token states gives one state per text.

    With `cache`, the states are stored there as an artefact and mapped from disk. States that are there already are not
    computed again, and a run that was interrupted continues where it stopped.
    """
    if cache is None:
        if not isinstance(encoder, TokenEncoder) or encoder.token_dim is None:
            return Ragged.of(_vectors(encoder, texts))
        ids, cut = encoder.tokens(texts, limit=limit)
        return Ragged.of(_states(encoder, ids), cut=cut)
    settings = {"encoder": encoder.identity, "limit": limit, "texts": texts_hash(texts), "count": len(texts)}
    if not _is_made(cache, settings):
        # parallel runs need the same states: one computes them, the others wait and then find them there
        with sole_writer(cache.parent / ".making", wait=True):
            if not _is_made(cache, settings):
                _make(encoder, texts, limit, cache, settings)
    artifact = open_artifact(cache, kind=KIND, schema=SCHEMA)
    shards = [load_file(cache / name) for name in sorted(artifact.manifest.files)]
    cut = int(sum(shard["cut"] for shard in shards))
    return Ragged.of_shards([(shard["values"], shard["lengths"].numpy()) for shard in shards], cut=cut)


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
                states = states_of(encoder, part, limit=limit)
                cut = np.array(states.cut)
                write_shard(path, {"values": states.shards[0].numpy(), "lengths": states.lengths, "cut": cut})
            advance(len(part))
    with create(cache, kind=KIND, schema=SCHEMA, settings=settings) as writer:
        for path in sorted(partial.glob("states-*.safetensors")):
            writer.adopt(path)
    shutil.rmtree(partial, ignore_errors=True)


def _vectors(encoder: Encoder, texts: Sequence[str]) -> Iterator[Float16[np.ndarray, "1 dim"]]:
    for start in range(0, len(texts), _SHARD_TEXTS):
        # an encoder may refuse an empty text, so it gets a space
        vectors = encoder.encode([text or " " for text in texts[start : start + _SHARD_TEXTS]])
        yield from vectors.astype(np.float16)[:, None]


def _states(encoder: TokenEncoder, ids: Sequence[Int64[np.ndarray, "_"]]) -> list[Float16[np.ndarray, "_ dim"]]:
    texts = Ragged.of(ids)
    states_by_text: list[np.ndarray] = [np.zeros((0, 0), np.float16)] * len(ids)
    by_length = np.argsort(texts.lengths, kind="stable")  # near lengths share a batch
    for start in range(0, len(by_length), _BATCH):
        rows = by_length[start : start + _BATCH]
        inputs = texts.batch(rows)
        with torch.inference_mode():
            states = encoder.token_states(inputs.values, inputs.mask).half().cpu().numpy()
        for row, state in zip(rows, states, strict=True):
            states_by_text[row] = state[: texts.lengths[row]]
    return states_by_text
