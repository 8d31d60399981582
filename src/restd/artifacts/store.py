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
        """Write `name.parquet` from a stream of batches, which may be empty if `schema` is given; return its rows."""
        stream = iter(batches)
        first = next(stream, None)
        if schema is None and first is None:
            raise ValueError(f"table {name!r} is empty and has no schema; pass schema=")
        rows = 0
        columns = first.schema if first is not None else schema
        with pq.ParquetWriter(self.folder / f"{name}.parquet", columns, compression="zstd") as sink:
            for batch in chain([first] if first is not None else [], stream):
                sink.write_batch(batch)
                rows += batch.num_rows
        return rows

    def adopt(self, path: Path) -> None:
        """Add a finished file to the artefact without moving it, so that it survives if the writing fails."""
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
        with explain_full_disk(target):
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
def explain_full_disk(target: Path) -> Iterator[None]:
    """Turn "no space left on device" into an error that says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if _is_full_disk(error):
            raise ArtifactError(
                f"The disk is full: {target} could not be written, and what was there before is unchanged. Free some "
                "space, or choose another --out, and run the same command again."
            ) from error
        raise


def _is_full_disk(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    return "os error 28" in str(error)  # safetensors reports the system's code as text


def check_target(target: Path, *, kind: str) -> None:
    """Raise an error if `target` is anything but an artefact of the same kind, or empty."""
    recover(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / MANIFEST).is_file():
        raise ArtifactError(
            f"{target} contains files that restd did not write. Choose another folder, or empty this one."
        )
    manifest = read_manifest(target)
    if manifest.kind != kind:
        raise ArtifactError(
            f"{target} is an artefact of kind '{manifest.kind}', not '{kind}'. Choose another folder, or delete it."
        )
    foreign = sorted({entry.name for entry in target.iterdir()} - {MANIFEST, *manifest.files})
    if foreign:
        raise ArtifactError(
            f"{target} contains {foreign[0]!r}, which restd did not write and would delete. Move it, or choose another "
            "folder."
        )


def read_manifest(folder: Path) -> Manifest:
    """Read an artefact's manifest without reading its files."""
    folder = Path(folder)
    recover(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(f"{folder} is not an artefact: it has no {MANIFEST}. Check the path, or make it first.")
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
        """Raise an error unless this artefact was made from `parent`, an artefact or its content hash."""
        content = parent if isinstance(parent, str) else parent.content
        expected = self.manifest.parents.get(role)
        if expected != content:
            origin = f"{role} {expected[:8]}" if expected else f"no {role} at all"
            other = f"the {role}" if isinstance(parent, str) else str(parent.folder)
            raise ArtifactError(
                f"{self.folder} was made from {origin}, but {other} is {content[:8]}. "
                "Use the original, or make this artefact again."
            )


def open_artifact(folder: Path, *, kind: str, schema: int) -> Artifact:
    """Open an artefact after checking kind, schema and the hash of every file."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest.kind != kind:
        raise ArtifactError(
            f"Expected an artefact of kind '{kind}', but {folder} is of kind '{manifest.kind}'. Check the path."
        )
    if manifest.schema != schema:
        raise ArtifactError(
            f"{folder / MANIFEST} has schema {manifest.schema} of '{kind}', but this version of restd reads schema "
            f"{schema}. Install the version that wrote it, or make the artefact again."
        )
    for name, entry in manifest.files.items():
        _check_file(folder / name, entry)
    return Artifact(folder, manifest)


def _check_file(path: Path, entry: FileEntry) -> None:
    remedy = "Restore it from a copy, or make the artefact again."
    if not path.is_file():
        raise ArtifactError(f"{path} is missing, though the manifest lists it. {remedy}")
    size = path.stat().st_size
    if size != entry.size:
        raise ArtifactError(f"{path} has {size:,} bytes, but the manifest says {entry.size:,}. {remedy}")
    if (sha256 := hash_file(path)) != entry.sha256:
        raise ArtifactError(
            f"{path} was changed: its hash is {sha256[:8]}, but the manifest says {entry.sha256[:8]}. {remedy}"
        )
