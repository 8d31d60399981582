"""Another encoder than the index's for dense rankers: loaded by its name, its embeddings of the items kept on disk."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from restd._arrow import pc
from restd.artifacts import hash_json, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.data import Catalog
from restd.encode import Embeddings, Encoder, RememberedEncoder, encode_catalog, for_role, is_fitted, load_encoder
from restd.errors import ConfigError, DataError
from restd.snapshot import Snapshot

FOLDER = "encoders"
"""Beside the index: embeddings of its items by other encoders than its own."""


@dataclass(frozen=True, slots=True, eq=False)
class OtherEncoder:
    """An encoder by name, as it reads queries, and where its embeddings of a catalogue are.

    Args:
        name: registered, a hub id, or a folder.
        queries: reads queries; remembers the last ones.
        items: reads items, or the name of one that is fitted to them.
        folder: of the embeddings.
    """

    name: str
    queries: Encoder
    items: Encoder | str
    folder: Path

    @classmethod
    def of(cls, name: str, snapshot: Snapshot, home: Path, *, trained: Path | None) -> "OtherEncoder":
        """Load an encoder, or fit one to the catalogue of a snapshot.

        Args:
            name: what `load_encoder` takes, or the name of an encoder that is fitted.
            snapshot: with its catalogue.
            home: the folder `restd index` made: the embeddings are kept in it, in `encoders`.
            trained: where they are kept if `home` is an index alone.
        """
        parent = home if not (home / MANIFEST).is_file() else trained
        if parent is None:
            raise ConfigError(
                f"The embeddings by {name!r} are kept beside the index, but {home} is the index alone. Name the folder "
                "restd index made, or pass --out."
            )
        catalog = _catalog(snapshot)
        if is_fitted(name):
            folder = parent / FOLDER / _folder_name(name, {"name": name, "catalog": catalog.identity()})
            embeddings = _encoded(catalog, folder, name)
            return cls(name, RememberedEncoder(embeddings.encoder()), name, folder)
        encoder = load_encoder(name)
        items, queries = for_role(encoder, "document"), for_role(encoder, "query")
        key = {"encoder": items.identity, "catalog": catalog.identity()}
        return cls(name, RememberedEncoder(queries), items, parent / FOLDER / _folder_name(name, key))

    def describe(self) -> dict[str, Any]:
        """What a protocol card says of it: all that decides the vectors."""
        identity = {key: value for key, value in self.queries.identity.items() if key != "name"}
        return {"encoder": self.name, "encoder_identity": identity}

    def item_vectors(self, snapshot: Snapshot) -> Float[np.ndarray, "item dim"]:
        """Embeddings of a snapshot's items; they are computed once, and a run that was killed continues."""
        catalog = _catalog(snapshot)
        vectors = np.concatenate(list(_encoded(catalog, self.folder, self.items).batches()))
        rows = pc.index_in(snapshot.ids, value_set=catalog.ids())
        if rows.null_count:
            raise DataError(
                f"{catalog.path} lacks {rows.null_count:,} of the {len(snapshot):,} items of the index, so the encoder "
                f"{self.name!r} cannot read them. Make the index again from the whole catalogue to use another encoder."
            )
        return vectors[rows.to_numpy()]


def _encoded(catalog: Catalog, folder: Path, encoder: Encoder | str) -> Embeddings:
    with sole_writer(folder.parent, wait=True):
        return encode_catalog(catalog, folder, encoder=encoder)


def _catalog(snapshot: Snapshot) -> Catalog:
    assert snapshot.items.catalog is not None
    return snapshot.items.catalog


def _folder_name(name: str, key: dict[str, Any]) -> str:
    """A readable name that only this encoder and catalogue have.

    >>> _folder_name("BAAI/bge-m3", {})
    'bge-m3-44136fa355b3'
    """
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name)[:40].strip(".-")
    return f"{readable}-{hash_json(key)[:12]}"
