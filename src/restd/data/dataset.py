"""A data set on disk: items with judgments or histories, as one artefact."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from restd.artifacts import Artifact, create, hash_file, open_artifact, read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.data.source import Batches, Source
from restd.errors import DataError
from restd.progress import Advance, progress

KIND = "dataset"
SCHEMA = 1
TABLES = ("items", "judgments", "histories")
Task = Literal["search", "recommend"]
"""What a model does: find items for a text query, or recommend the next item of a history."""
EVIDENCE: dict[Task, str] = {"search": "judgments", "recommend": "histories"}
"""The table that a task is learned from and evaluated on."""


@dataclass(frozen=True, slots=True)
class Written:
    """The result of `write_dataset`."""

    folder: Path
    rows: dict[str, int]
    """Number of rows by table."""
    notes: tuple[str, ...]


def write_dataset(source: Source, folder: Path) -> Written:
    """Write the tables of a source to `folder` as parquet, all or none."""
    streams: dict[str, Batches] = {name: stream for name in TABLES if (stream := getattr(source, name)) is not None}
    rows: dict[str, int] = {}
    settings = {"source": source.name, **source.settings}
    with create(folder, kind=KIND, schema=SCHEMA, settings=settings) as writer:
        for name, stream in streams.items():
            with progress(f"Writing {name}", total=None) as advance:
                rows[name] = writer.table(name, _with_progress(stream, advance))
    return Written(folder, rows, source.notes)


def _with_progress(stream: Batches, advance: Advance) -> Iterator[pa.RecordBatch]:
    for batch in stream():
        yield batch
        advance(batch.num_rows)


def open_dataset(folder: Path) -> Artifact:
    """Open a data set after checking every file's hash."""
    return open_artifact(folder, kind=KIND, schema=SCHEMA)


def find_table(path: Path, name: str) -> Path:
    """Return the file of table `name`: the path itself, or the file inside a data set folder, which is checked.

    >>> find_table(Path("items.csv"), "items")
    PosixPath('items.csv')
    """
    table = optional_table(path, name)
    if table is None:
        raise DataError(f"{path} has no file named {name}.*. Pass the file itself, or put one there.")
    return table


def optional_table(path: Path, name: str) -> Path | None:
    """Return the file of table `name` as `find_table` does, or None if a folder has none."""
    if not path.is_dir():
        return path
    if (path / MANIFEST).is_file() and read_manifest(path).kind == KIND:
        listed = f"{name}.parquet" in open_dataset(path).manifest.files
        return path / f"{name}.parquet" if listed else None
    matches = [match for match in sorted(path.glob(f"{name}.*")) if match.is_file()]
    if len(matches) > 1:
        raise DataError(f"{path} has {len(matches)} files named {name}.*. Expected one; pass the file itself.")
    return matches[0] if matches else None


def items_hash(path: Path) -> str | None:
    """Hash of the item table of a data set's folder; None where it has none, or where the path is another table."""
    table = optional_table(path, "items") if path.is_dir() else None
    return None if table is None else hash_file(table)


def task_in(folder: Path) -> Task:
    """Return the task of a data set: `recommend` if it has histories only; with both tables it is ambiguous."""
    if not folder.is_dir() or optional_table(folder, EVIDENCE["recommend"]) is None:
        return "search"
    if optional_table(folder, EVIDENCE["search"]) is None:
        return "recommend"
    raise DataError(f"{folder} has judgments and histories. Choose one with --task search or --task recommend.")
