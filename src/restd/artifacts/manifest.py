"""The manifest of an artefact: what it is, what it was made from, and a hash of every file."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from restd._version import __version__
from restd.errors import ArtifactError

MANIFEST = "manifest.json"
_RECORDED = ("faiss-cpu", "numpy", "pyarrow", "scikit-learn", "sentence-transformers", "torch", "transformers")


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, read in pieces so that size does not matter."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON; equal values give equal hashes whatever the order of their keys.

    >>> hash_json({"a": 1, "b": 2}) == hash_json({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def recorded_versions() -> dict[str, str]:
    """Return versions of what can change a result; they are recorded, but not part of the content hash."""
    versions = {"python": platform.python_version(), "platform": platform.platform(), "restd": __version__}
    for name in _RECORDED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and hash of one file of an artefact."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of `manifest.json`.

    `content` identifies what is in the artefact and what it was made from: two runs with the same result have the same
    `content`, whenever and wherever they ran. `seal` is a hash of the whole manifest, so that an edit is noticed.
    """

    kind: str
    schema: int
    settings: Mapping[str, Any]
    parents: Mapping[str, str]
    files: Mapping[str, FileEntry]
    versions: Mapping[str, str]
    created: str

    @property
    def content(self) -> str:
        """Hash of kind, schema, settings, parents and every file."""
        body = {name: getattr(self, name) for name in ("kind", "schema", "settings", "parents")}
        return hash_json({**body, "files": {name: entry.sha256 for name, entry in self.files.items()}})

    def to_bytes(self) -> bytes:
        """Return the canonical text of this manifest; any other bytes on disk mean that the file was edited."""
        body = {**asdict(self), "content": self.content}
        sealed = {**body, "seal": hash_json(body)}
        return (json.dumps(sealed, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: Path) -> "Manifest":
        """Parse and verify a manifest; `where` is named in errors."""
        try:
            body = json.loads(raw)
            fields = {name: body[name] for name in cls.__dataclass_fields__}
            fields["files"] = {name: FileEntry(**entry) for name, entry in body["files"].items()}
            manifest = cls(**fields)
            intact = manifest.to_bytes() == raw
        except (ValueError, KeyError, TypeError, AttributeError):
            intact, manifest = False, None
        if manifest is None or not intact:
            raise ArtifactError(
                f"{where} is damaged or was edited: its seal does not match its text. "
                "Restore it from a copy, or make the artefact again."
            )
        return manifest
