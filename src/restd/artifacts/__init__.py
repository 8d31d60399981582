"""Folders that can be trusted: a manifest, safetensors and parquet, hashed, written whole or not at all."""

from restd.artifacts.lock import sole_writer
from restd.artifacts.manifest import FileEntry, Manifest, hash_file, hash_json
from restd.artifacts.store import Artifact, Writer, create, open_artifact, read_manifest

__all__ = [
    "Artifact",
    "FileEntry",
    "Manifest",
    "Writer",
    "create",
    "hash_file",
    "hash_json",
    "open_artifact",
    "read_manifest",
    "sole_writer",
]
