"""A data set on disk: items, and judgments or histories of them, as one artefact."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from restd.artifacts import Artifact, create, open_artifact, read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.data.source import Batches, Source
from restd.errors import DataError
from restd.progress import Advance, progress

KIND = "dataset"
SCHEMA = 1
TABLES = ("items", "judgments", "histories")
Task = Literal["search", "recommend"]
"""What a model is asked: a text, or what a user took so far."""
EVIDENCE: dict[Task, str] = {"search": "judgments", "recommend": "histories"}
"""The table a task is learned from and judged by."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `write_dataset` wrote: rows per table."""

    folder: Path
    rows: dict[str, int]
    notes: tuple[str, ...]


def write_dataset(source: Source, folder: Path) -> Written:
    """Write every stream of a source to `folder` as parquet, whole or not at all."""
    streams: dict[str, Batches] = {name: stream for name in TABLES if (stream := getattr(source, name)) is not None}
    rows: dict[str, int] = {}
    settings = {"source": source.name, **source.settings}
    with create(folder, kind=KIND, schema=SCHEMA, settings=settings) as writer:
        for name, stream in streams.items():
            with progress(f"Writing {name}", total=None) as advance:
                rows[name] = writer.table(name, _watched(stream, advance))
    return Written(folder, rows, source.notes)


def _watched(stream: Batches, advance: Advance) -> Iterator[pa.RecordBatch]:
    for batch in stream():
        yield batch
        advance(batch.num_rows)


def open_dataset(folder: Path) -> Artifact:
    """Open a data set after checking every file's hash."""
    return open_artifact(folder, kind=KIND, schema=SCHEMA)


def find_table(path: Path, name: str) -> Path:
    """Return the file of table `name`: the path itself, or the one inside a data set folder (which is then checked).

    >>> find_table(Path("items.csv"), "items")
    PosixPath('items.csv')
    """
    found = optional_table(path, name)
    if found is None:
        raise DataError(f"{path} holds no file named {name}.*; name the file itself, or put one there.")
    return found


def optional_table(path: Path, name: str) -> Path | None:
    """Return the file of table `name` as `find_table` does, or None where a folder has none."""
    if not path.is_dir():
        return path
    if (path / MANIFEST).is_file() and read_manifest(path).kind == KIND:
        listed = f"{name}.parquet" in open_dataset(path).manifest.files
        return path / f"{name}.parquet" if listed else None
    matches = [match for match in sorted(path.glob(f"{name}.*")) if match.is_file()]
    if len(matches) > 1:
        raise DataError(f"{path} holds {len(matches)} files named {name}.*, and one is wanted; name the file itself.")
    return matches[0] if matches else None


def task_in(folder: Path) -> Task:
    """The task a data set is for: `recommend` where it has histories alone; one that has both tables must be told."""
    if not folder.is_dir() or optional_table(folder, EVIDENCE["recommend"]) is None:
        return "search"
    if optional_table(folder, EVIDENCE["search"]) is None:
        return "recommend"
    raise DataError(f"{folder} has judgments and histories; say which are meant with --task search or recommend.")
