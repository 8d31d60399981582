"""Embeddings of a catalogue on disk: shards of vectors, made resumably, in the catalogue's order."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import safe_open
from safetensors.numpy import load_file

from restd.artifacts import Artifact, create, hash_file, open_artifact
from restd.data import Catalog
from restd.data.readers import column_names, read_batches
from restd.encode.contract import Encoder
from restd.encode.encoders import (
    fit_encoder,
    is_fitted,
    load_encoder,
    load_recorded,
    read_encoder,
    write_encoder,
)
from restd.encode.identity import same_encoder
from restd.encode.language import default_encoder
from restd.encode.shards import open_partial, write_shard
from restd.errors import ArtifactError, DataError, RestdError
from restd.progress import Advance, progress

logger = getLogger(__name__)

KIND = "embeddings"
SCHEMA = 1
AUTO = "auto"
_SHARD_ROWS = 16_384
_CHUNK_ROWS = 1_024
_FIT_TEXTS = 100_000
_LOOK_TEXTS = 500


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors of every item, row for row in the catalogue's order; read shard by shard."""

    artifact: Artifact

    @classmethod
    def open(cls, folder: Path) -> "Embeddings":
        """Open after checking every shard's hash."""
        return cls(open_artifact(folder, kind=KIND, schema=SCHEMA))

    @property
    def settings(self) -> dict[str, Any]:
        """The encoder's identity, the number of items, and how the catalogue was read."""
        return dict(self.artifact.manifest.settings)

    @property
    def items(self) -> int:
        """Number of vectors."""
        return self.settings["items"]

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.settings["encoder"]["dim"]

    @property
    def without_text(self) -> int:
        """Items that had nothing to encode; their vectors are zero."""
        return self.settings["without_text"]

    def batches(self) -> Iterator[Float[np.ndarray, "item dim"]]:
        """Yield the vectors, one shard at a time."""
        for name in sorted(self.artifact.manifest.files):
            if name.startswith("shard-"):
                yield load_file(self.artifact.folder / name)["vectors"]

    def sample(self, count: int, *, seed: int) -> Float[np.ndarray, "sample dim"]:
        """Return `count` rows drawn without replacement, in catalogue order; all rows if there are no more."""
        if count >= self.items:
            return np.concatenate(list(self.batches()))
        rows = np.sort(np.random.default_rng(seed).choice(self.items, count, replace=False))
        parts, start = [], 0
        for batch in self.batches():
            low, high = np.searchsorted(rows, [start, start + len(batch)])
            parts.append(batch[rows[low:high] - start])
            start += len(batch)
        return np.concatenate(parts)

    def encoder(self, *, device: str | None = None) -> Encoder:
        """Load the encoder that made these vectors, for queries and new items; one that has changed is an error."""
        recorded = self.settings["encoder"]
        if "file" in recorded:
            raise ArtifactError(
                f"The vectors in {self.artifact.folder} were imported from {recorded['file']!r}, so there is no "
                "encoder for new texts. Import vectors for new items too."
            )
        return read_encoder(self.artifact, recorded, device=device)


def encode_catalog(
    catalog: Catalog, target: Path, *, encoder: str | Encoder = AUTO, device: str | None = None, seed: int = 0
) -> Embeddings:
    """Encode every item to `target`; an interrupted run continues where it stopped.

    Embeddings that are there already are kept if items, settings and the encoder itself have not changed. For the last
    the encoder is loaded and its identity compared, unless it was fitted to the same items.

    Args:
        catalog: the items.
        target: folder of the embeddings.
        encoder: a name, or an encoder that is loaded already and was not fitted to a catalogue.
        device: where an encoder that is loaded by name runs.
        seed: of an encoder that is fitted.
    """
    parents = {"catalog": catalog.identity()}
    requested = {"encoder": encoder if isinstance(encoder, str) else encoder.identity, "seed": seed}
    existing = _unchanged(target, requested, parents)
    if existing is not None and (not isinstance(encoder, str) or _is_current(existing, device)):
        return existing
    total = len(catalog.ids())
    model = (
        _make_encoder(catalog, encoder, total=total, device=device, seed=seed) if isinstance(encoder, str) else encoder
    )
    plan = {"identity": model.identity, "parents": parents, "rows": _SHARD_ROWS}
    partial = open_partial(target, plan)
    without_text = 0
    with progress("Encoding", total=total) as advance:
        for number, texts in enumerate(_shards_of_texts(catalog)):
            path = partial / f"shard-{number:05d}.safetensors"
            without_text += sum(not text for text in texts)
            if not path.exists():
                _write_shard(path, encode_texts(model, texts, advance), start=number * _SHARD_ROWS)
            else:
                advance(len(texts))
    settings = {
        "requested": requested,
        "encoder": model.identity,
        "items": total,
        "without_text": without_text,
        "reading": catalog.reading(),
    }
    return _seal(target, partial, settings, parents, model)


def import_vectors(catalog: Catalog, source: Path, target: Path, *, column: str = "vector") -> Embeddings:
    """Import vectors made elsewhere, from a `.npy` file or a column of a table, in the catalogue's order."""
    if not source.is_file():
        raise DataError(f"{source} does not exist, or is not a file; check --vectors.")
    parents = {"catalog": catalog.identity()}
    requested = {"vectors": hash_file(source), "column": column}
    if existing := _unchanged(target, requested, parents):
        return existing
    total = len(catalog.ids())
    partial = open_partial(target, {"vectors": requested, "parents": parents})
    rows, width = 0, None
    for number, vectors in enumerate(_vector_batches(source, column)):
        width = vectors.shape[1] if width is None else width
        if vectors.shape[1] != width:
            raise DataError(
                f"{source}: vectors from row {rows} on have width {vectors.shape[1]}, those before {width}. All "
                "vectors need the same width."
            )
        _write_shard(partial / f"shard-{number:05d}.safetensors", vectors, start=rows, source=source)
        rows += len(vectors)
    if rows != total:
        raise DataError(
            f"{source} contains {rows:,} vectors, but {catalog.path} has {total:,} items. Provide one vector per item."
        )
    identity = {"name": "vectors", "file": source.name, "dim": width}
    settings = {
        "requested": requested,
        "encoder": identity,
        "items": total,
        "without_text": 0,
        "reading": catalog.reading(),
    }
    return _seal(target, partial, settings, parents, None)


def _unchanged(target: Path, requested: dict[str, Any], parents: dict[str, str]) -> Embeddings | None:
    if not (target / "manifest.json").is_file():
        return None
    try:
        existing = Embeddings.open(target)
    except ArtifactError as error:
        raise ArtifactError(f"{error} It only saves work: delete {target} and run the same command again.") from error
    manifest = existing.artifact.manifest
    same = manifest.settings["requested"] == requested and manifest.parents == parents
    return existing if same else None


def _is_current(existing: Embeddings, device: str | None) -> bool:
    """Return whether the encoder is still the one that made these embeddings."""
    recorded = existing.settings["encoder"]
    if is_fitted(recorded["name"]):
        return True  # items and seed decide it, and they have not changed
    try:
        encoder = load_recorded(recorded, device=device)
    except RestdError as error:
        logger.warning(
            "%s is used as it is: whether its encoder has changed is unknown. %s", existing.artifact.folder, error
        )
        return True
    return same_encoder(encoder, recorded)


def _make_encoder(catalog: Catalog, name: str, *, total: int, device: str | None, seed: int) -> Encoder:
    if name == AUTO:
        name = default_encoder(_some_texts(catalog, _LOOK_TEXTS, total=total))
    if is_fitted(name):
        return fit_encoder(name, _some_texts(catalog, _FIT_TEXTS, total=total), seed=seed)
    return load_encoder(name, device=device)


def _some_texts(catalog: Catalog, count: int, *, total: int) -> list[str]:
    """Return evenly spaced texts, so that a catalogue sorted by category is sampled throughout."""
    stride = max(1, -(-total // count))
    sample: list[str] = []
    start = 0
    for batch in catalog.batches():
        texts = catalog.texts(batch).to_pylist()
        sample.extend(texts[(-start) % stride :: stride])
        start += len(texts)
    return sample


def _shards_of_texts(catalog: Catalog) -> Iterator[list[str]]:
    texts = (text for batch in catalog.batches() for text in catalog.texts(batch).to_pylist())
    while shard := list(islice(texts, _SHARD_ROWS)):
        yield shard


def encode_texts(
    model: Encoder, texts: Sequence[str], advance: Advance = lambda count=1, **fields: None
) -> Float[np.ndarray, "text dim"]:
    """Encode texts in chunks of a thousand; an empty text gives zeros."""
    vectors = np.zeros((len(texts), model.dim), np.float32)
    for start in range(0, len(texts), _CHUNK_ROWS):
        rows = [row for row in range(start, min(start + _CHUNK_ROWS, len(texts))) if texts[row]]
        if rows:
            vectors[rows] = model.encode([texts[row] for row in rows])
        advance(min(_CHUNK_ROWS, len(texts) - start))
    return vectors


def _write_shard(path: Path, vectors: np.ndarray, *, start: int, source: Path | None = None) -> None:
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        where = source or "the encoder's output"
        raise DataError(
            f"{where}: vector {start + int(bad.argmax())} contains NaN or infinity. All numbers must be finite."
        )
    write_shard(path, {"vectors": vectors.astype(np.float32, copy=False)})


def _rows_in(shard: Path) -> int:
    with safe_open(shard, framework="numpy") as stream:
        return stream.get_slice("vectors").get_shape()[0]


def _vector_batches(source: Path, column: str) -> Iterator[Float[np.ndarray, "item dim"]]:
    if source.suffix == ".npy":
        try:
            array = np.load(source, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise DataError(f"{source} is not a .npy file of numbers: {error}.") from error
        real = np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)
        if array.ndim != 2 or not real or 0 in array.shape:
            raise DataError(
                f"{source} contains {array.dtype} of shape {array.shape}. Expected numbers of shape [items, dim], one "
                "row per item."
            )
        for start in range(0, len(array), _SHARD_ROWS):
            yield np.asarray(array[start : start + _SHARD_ROWS], np.float32)
        return
    if column not in column_names(source):
        raise DataError(f"{source} has no column {column!r}; it has: {', '.join(column_names(source))}.")
    row = 0
    for batch in read_batches(source, rows=_SHARD_ROWS, columns=[column]):
        lists = batch.column(0).to_pylist()
        widths = {len(vector) if isinstance(vector, list) else 0 for vector in lists}
        if len(widths) != 1 or 0 in widths:
            raise DataError(
                f"{source}: vectors from row {row} on have widths {sorted(widths)}. All vectors need the same width."
            )
        yield np.asarray(lists, np.float32)
        row += len(lists)


def _seal(
    target: Path, partial: Path, settings: dict[str, Any], parents: dict[str, str], model: Encoder | None
) -> Embeddings:
    shards = sorted(partial.glob("shard-*.safetensors"))
    rows = sum(_rows_in(shard) for shard in shards)
    if rows != settings["items"]:
        raise ArtifactError(
            f"{partial} contains {rows:,} vectors for {settings['items']:,} items, perhaps because another process "
            "wrote to it. Delete it and run the same command again."
        )
    with create(target, kind=KIND, schema=SCHEMA, settings=settings, parents=parents) as writer:
        for shard in shards:
            writer.adopt(shard)
        if model is not None:
            write_encoder(writer, model)
    shutil.rmtree(partial, ignore_errors=True)
    return Embeddings.open(target)
