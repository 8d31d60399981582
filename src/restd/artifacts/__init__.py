"""Artefacts: folders of safetensors and parquet with a manifest of hashes, written whole or not at all."""

from restd.artifacts.files import refuse_foreign_files, write_atomically
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
    "refuse_foreign_files",
    "sole_writer",
    "write_atomically",
]
