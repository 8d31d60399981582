"""A retriever in one folder: model, heads, index, items, and the encoder that new items need."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from restd.artifacts import create, open_artifact
from restd.data import dataset
from restd.distill.heads import FOLDER as HEADS
from restd.encode import Encoder, RememberedEncoder, is_fitted, read_encoder, write_encoder
from restd.errors import ConfigError
from restd.index import SidIndex
from restd.models.query_encoder import find_encoder, refuse_other_encoder
from restd.models.store import FOLDER as MODEL
from restd.rankers import RankerContext, make_companion
from restd.rankers.stored import read_companion
from restd.search.fusion import FOLDER as FUSION
from restd.snapshot import Companion, Snapshot

INDEX, ITEMS, ENCODER = "index", "items", "encoder"
_KIND, _SCHEMA = "encoder", 1


def save_bundle(folder: Path, *, model: Path, snapshot: Snapshot, encoder: Encoder | None) -> None:
    """Write everything that `Retriever.load` needs.

    Args:
        folder: where to; what an earlier call wrote there is replaced.
        model: folder of the model; heads and fitted weights beside it are copied too.
        snapshot: what is searched now.
        encoder: one that was fitted to the catalogue and cannot be loaded by name; None where there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(model, folder / MODEL, dirs_exist_ok=True)
    for beside in (HEADS, FUSION):
        if (model.parent / beside).is_dir():
            shutil.copytree(model.parent / beside, folder / beside, dirs_exist_ok=True)
    _saved_as_read(snapshot).save(folder / INDEX)
    names = dict.fromkeys(["id", *snapshot.items.names()])
    table = pa.table({name: snapshot.ids if name == "id" else snapshot.items.column(name) for name in names})
    settings = {"source": "retriever"}
    with create(folder / ITEMS, kind=dataset.KIND, schema=dataset.SCHEMA, settings=settings) as writer:
        writer.table("items", table.to_batches(), schema=table.schema)
    if encoder is not None:
        with create(folder / ENCODER, kind=_KIND, schema=_SCHEMA, settings={"encoder": encoder.identity}) as writer:
            write_encoder(writer, encoder)


def _saved_as_read(snapshot: Snapshot) -> SidIndex:
    """The index with columns as the bundle names them, whatever the catalogue's own names were."""
    index, catalog = snapshot.index, snapshot.items.catalog
    if catalog is None:
        return index
    reading = {**catalog.reading(), "columns": {}, "text": list(catalog.text_columns)}
    return replace(index, origin={**index.origin, "reading": reading})


def item_encoder(snapshot: Snapshot, home: Path | None) -> Encoder:
    """The encoder of new items: the one the index was made with, from the bundle where one was fitted.

    Args:
        snapshot: whose index names the encoder.
        home: folder of the index, inside a bundle or not.
    """
    bundled = None if home is None else home.parent / ENCODER
    if bundled is not None and _is_bundle(bundled.parent) and bundled.is_dir():
        artifact = open_artifact(bundled, kind=_KIND, schema=_SCHEMA)
        return refuse_other_encoder(
            read_encoder(artifact, artifact.manifest.settings["encoder"]), snapshot.index.origin["encoder"]
        )
    return find_encoder("index", snapshot.index, home)


def fitted_encoder(snapshot: Snapshot, home: Path | None) -> Encoder | None:
    """The encoder of the index where it was fitted to the catalogue, and is still beside the index."""
    identity = snapshot.index.origin.get("encoder")
    if home is None or identity is None or "file" in identity or not is_fitted(identity["name"]):
        return None
    known = (home / "embeddings").is_dir() or (home.parent / ENCODER).is_dir()
    return item_encoder(snapshot, home) if known else None


def find_companion(
    name: str, snapshot: Snapshot, *, data: Path | None, home: Path | None, shared: dict[str, Any]
) -> Companion:
    """A part of a hybrid search by name: from the bundle where it keeps one, or made.

    Args:
        name: of the part.
        snapshot: what is searched.
        data: folder of items and judgments.
        home: folder of the index; an encoder that was fitted to the items may be in the bundle around it.
        shared: what parts share, such as the encoder.
    """
    if home is None or data is None:
        raise ConfigError(
            f"The companion {name!r} is made from the folders of index and items, which this retriever does not "
            "know; make the ranker yourself, or load the retriever from its folder."
        )
    if "encoder" not in shared and (encoder := fitted_encoder(snapshot, home)) is not None:
        shared["encoder"] = RememberedEncoder(encoder)
    context = RankerContext(snapshot, data, home, shared=shared)
    return read_companion(home.parent, name, context) or make_companion(name, context)


def _is_bundle(folder: Path) -> bool:
    return all((folder / name).is_dir() for name in (MODEL, INDEX, ITEMS))
