"""Writing and opening artefacts."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from restd.artifacts.manifest import MANIFEST, FileEntry, Manifest, hash_file, recorded_versions
from restd.artifacts.swap import (
    fsync_file,
    fsync_folder,
    recover,
    remove_leftovers,
    replace_folder,
    temporary_folder,
)
from restd.errors import ArtifactError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Writer:
    """A folder under construction; nothing of it is visible at the target until it is complete."""

    folder: Path

    def tensors(self, name: str, values: Mapping[str, np.ndarray]) -> None:
        """Write `name.safetensors`."""
        contiguous = {key: np.ascontiguousarray(value) for key, value in values.items()}
        save_file(contiguous, self.folder / f"{name}.safetensors")

    def table(self, name: str, batches: Iterable[pa.RecordBatch], *, schema: pa.Schema | None = None) -> int:
        """Write `name.parquet` from a stream of batches (of a known schema, should it be empty); returns the rows."""
        stream = iter(batches)
        first = next(stream, None)
        if schema is None and first is None:
            raise ValueError(f"{name}: an empty stream needs a schema")
        rows = 0
        known = first.schema if first is not None else schema
        with pq.ParquetWriter(self.folder / f"{name}.parquet", known, compression="zstd") as sink:
            for batch in chain([first] if first is not None else [], stream):
                sink.write_batch(batch)
                rows += batch.num_rows
        return rows

    def adopt(self, path: Path) -> None:
        """Take a finished file into the artefact without moving it: should the writing fail, it is still there."""
        try:
            os.link(path, self.folder / path.name)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, self.folder / path.name)


@contextmanager
def create(
    target: Path,
    *,
    kind: str,
    schema: int,
    settings: Mapping[str, Any],
    parents: Mapping[str, str] | None = None,
) -> Iterator[Writer]:
    """Write an artefact: all of it appears at `target` when the block ends, or nothing does.

    A folder that is already there is replaced only if it is an artefact of the same kind.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "numbers"
    >>> with create(folder, kind="numbers", schema=1, settings={"n": 3}) as writer:
    ...     writer.tensors("values", {"x": np.arange(3)})
    >>> open_artifact(folder, kind="numbers", schema=1).tensors("values")["x"].tolist()
    [0, 1, 2]
    """
    target = Path(target)
    check_target(target, kind=kind)
    remove_leftovers(target)
    building = temporary_folder(target)
    try:
        with full_disk_told(target):
            building.mkdir(parents=True)
            yield Writer(building)
            entries: dict[str, FileEntry] = {}
            for path in sorted(building.iterdir()):
                fsync_file(path)
                entries[path.name] = FileEntry(path.stat().st_size, hash_file(path))
            manifest = Manifest(
                kind=kind,
                schema=schema,
                settings=dict(settings),
                parents=dict(parents or {}),
                files=entries,
                versions=recorded_versions(),
                created=datetime.now(UTC).isoformat(timespec="microseconds"),
            )
            (building / MANIFEST).write_bytes(manifest.to_bytes())
            for name in entries:  # safetensors makes files that only their owner may read
                (building / name).chmod((building / MANIFEST).stat().st_mode)
            fsync_file(building / MANIFEST)
            fsync_folder(building)
            replace_folder(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def full_disk_told(target: Path) -> Iterator[None]:
    """Turn the system's "no space left" into a sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if _is_full_disk(error):
            raise ArtifactError(
                f"The disk is full: {target} could not be written; nothing that was there has changed. "
                "Free some space, or choose another --out, and run the same command again."
            ) from error
        raise


def _is_full_disk(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    return "os error 28" in str(error)  # safetensors hands the system's code on as text


def check_target(target: Path, *, kind: str) -> None:
    """Refuse to write over anything but an artefact of the same kind."""
    recover(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / MANIFEST).is_file():
        raise ArtifactError(
            f"{target} already holds something that restd did not write; choose another folder or empty it."
        )
    manifest = read_manifest(target)
    if manifest.kind != kind:
        raise ArtifactError(
            f"{target} holds an artefact of kind '{manifest.kind}', not '{kind}'; choose another folder or remove it."
        )
    foreign = sorted({entry.name for entry in target.iterdir()} - {MANIFEST, *manifest.files})
    if foreign:
        raise ArtifactError(
            f"{target} also holds {foreign[0]!r}, which restd did not write and would delete; move it, or choose "
            "another folder."
        )


def read_manifest(folder: Path) -> Manifest:
    """Read an artefact's manifest without reading its files."""
    folder = Path(folder)
    recover(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(f"{folder} is not an artefact: it has no {MANIFEST}; check the path, or make it first.")
    return Manifest.from_bytes(path.read_bytes(), where=path)


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artefact whose files have all been checked."""

    folder: Path
    manifest: Manifest

    @property
    def content(self) -> str:
        """The content hash that children name as their parent."""
        return self.manifest.content

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """Read `name.safetensors`."""
        return load_file(self.folder / f"{name}.safetensors")

    def table(self, name: str, *, columns: list[str] | None = None) -> pa.Table:
        """Read `name.parquet`."""
        return pq.read_table(self.folder / f"{name}.parquet", columns=columns)

    def require_parent(self, role: str, parent: "Artifact | str") -> None:
        """Refuse a parent this artefact was not made from."""
        found = parent if isinstance(parent, str) else parent.content
        wanted = self.manifest.parents.get(role)
        if wanted != found:
            said = f"{role} {wanted[:8]}" if wanted else f"no {role} at all"
            place = "the one given" if isinstance(parent, str) else str(parent.folder)
            raise ArtifactError(
                f"{self.folder} was made from {said}, but {place} is {found[:8]}; "
                "point to the original, or make this artefact again."
            )


def open_artifact(folder: Path, *, kind: str, schema: int) -> Artifact:
    """Open an artefact after checking kind, schema and the hash of every file."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest.kind != kind:
        raise ArtifactError(
            f"{folder} is an artefact of kind '{manifest.kind}', but one of kind '{kind}' is wanted here."
        )
    if manifest.schema != schema:
        raise ArtifactError(
            f"{folder / MANIFEST} has schema {manifest.schema} of '{kind}', and this version of restd reads schema "
            f"{schema}; install the version that wrote it, or make the artefact again."
        )
    for name, entry in manifest.files.items():
        _check_file(folder / name, entry)
    return Artifact(folder, manifest)


def _check_file(path: Path, entry: FileEntry) -> None:
    remedy = "restore it from a copy, or make the artefact again."
    if not path.is_file():
        raise ArtifactError(f"{path} is missing, though the manifest lists it; {remedy}")
    size = path.stat().st_size
    if size != entry.size:
        raise ArtifactError(f"{path} has {size:,} bytes where the manifest says {entry.size:,}; {remedy}")
    if (found := hash_file(path)) != entry.sha256:
        raise ArtifactError(
            f"{path} was changed: its hash is {found[:8]} where the manifest says {entry.sha256[:8]}; {remedy}"
        )
