"""From a catalogue to an index: encode, fit, assign, resolve. A stage whose inputs are unchanged is not run again."""

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float16

from restd.artifacts import create, hash_file, open_artifact, read_manifest, refuse_foreign_files, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.codes import Codebooks, as_tensor, assign
from restd.codes.keys import refuse_too_many
from restd.config import plain
from restd.data import Catalog
from restd.data.dataset import find_table
from restd.encode import Embeddings, encode_catalog, import_vectors
from restd.errors import ArtifactError
from restd.index.align import FOLDER as ALIGNMENT
from restd.index.align import Aligned, align
from restd.index.capacity import refuse_overfull
from restd.index.collisions import CollisionProblem
from restd.index.config import IndexConfig, refuse_unused
from restd.index.policies import POLICIES
from restd.index.shape import FOLDER as SHAPE
from restd.index.shape import measure_shape, refuse_unmeasurable
from restd.index.sid_index import FOLDER, KIND, SidIndex
from restd.index.signals import gather_signals
from restd.index.table import SidTable
from restd.progress import Notify, progress
from restd.quantize import (
    QUANTIZERS,
    AlignedQuantizer,
    Quantizer,
    assign_balanced,
    check_latents,
    restore_quantizer,
)

logger = logging.getLogger(__name__)

QUANTIZER_KIND = "quantizer"
QUANTIZER_SCHEMA = 1
_OURS = ("embeddings", SHAPE, ALIGNMENT, "quantizer", FOLDER, "quality.json", "quality.png", "encoders")
"""Everything restd index ever puts into its folder."""


def build_index(
    catalog: Catalog,
    out: Path,
    config: IndexConfig | None = None,
    *,
    judgments: Path | None = None,
    vectors: Path | None = None,
    vector_column: str = "vector",
    device: str | None = None,
    notify: Notify = logger.info,
) -> SidIndex:
    """Make the index of a catalogue in `out`, which then holds `embeddings`, `quantizer` and `index`.

    The index is complete in itself; the others are what lets a second run skip its stages, and may be deleted.

    Args:
        catalog: the items.
        out: folder of the index.
        config: how to make it; the paper's shape by default. With `shape.mode` auto, width, levels and codes are
            measured on validation queries.
        judgments: folder or table of judged queries. With it, items and queries are aligned before anything is
            quantised, unless `config.align` says otherwise.
        vectors: item vectors of your own, instead of encoding texts.
        vector_column: their column, if they are in a parquet file.
        device: where the encoder runs.
        notify: receives progress messages.
    """
    config = config or IndexConfig()
    refuse_foreign_folder(out)
    refuse_unused(config)
    measured = config.shape.mode == "auto"
    if measured:  # before anything costly is done
        refuse_unmeasurable(config, judgments, vectors=vectors is not None)
    else:
        _refuse_shape(config, items=len(catalog.ids()))
    with sole_writer(out):
        refuse_to_undo_changes(out)
        embeddings = _encode(catalog, out, config, vectors=vectors, column=vector_column, device=device, notify=notify)
        if not QUANTIZERS[config.quantizer].has_geometry:
            return _identify(catalog, embeddings, judgments, out, config, notify=notify)
        queries = None
        if measured:
            config, queries = measure_shape(catalog, embeddings, judgments, out, config, notify=notify)
        aligned = align(catalog, embeddings, judgments, out, config, queries=queries, notify=notify)
        quantizer, parent = _fit(catalog, embeddings, aligned, judgments, out, config, notify=notify)
        return _index(catalog, embeddings, quantizer, parent, out, config, notify=notify)


def _refuse_shape(config: IndexConfig, *, items: int) -> None:
    if not QUANTIZERS[config.quantizer].has_geometry:
        return
    sizes = QUANTIZERS[config.quantizer].sizes(config.fit.codes, levels=config.fit.levels, items=items)
    if POLICIES[config.policy].unique_within:
        refuse_too_many(items, sizes)
    if config.room is not None:
        refuse_overfull(items, sizes, capacity=config.room)


def refuse_to_undo_changes(out: Path) -> None:
    """Refuse to build an index again where items were added or removed since: they would silently be back or gone."""
    target = out / FOLDER
    if (target / MANIFEST).is_file() and "index" in read_manifest(target).parents:
        raise ArtifactError(
            f"Items were added to or removed from {target} since it was built, and building it again would undo that. "
            f"Choose another --out, or delete {target} first."
        )


def refuse_foreign_folder(out: Path) -> None:
    """Refuse to write into a folder that contains anything but an index and its stages."""
    refuse_foreign_files(out, ours=_OURS, command="restd index")


def _encode(
    catalog: Catalog,
    out: Path,
    config: IndexConfig,
    *,
    vectors: Path | None,
    column: str,
    device: str | None,
    notify: Notify,
) -> Embeddings:
    target = out / "embeddings"
    existed = (target / MANIFEST).is_file() and read_manifest(target).created
    notify(f"Encoding {catalog.path}")
    if vectors is not None:
        embeddings = import_vectors(catalog, vectors, target, column=column)
    else:
        embeddings = encode_catalog(catalog, target, encoder=config.encoder, device=device, seed=config.settings.seed)
    reused = existed == embeddings.artifact.manifest.created
    name = embeddings.settings["encoder"]["name"]
    notify(f"{'Kept' if reused else 'Made'} {embeddings.items:,} embeddings of width {embeddings.dim} ({name})")
    if embeddings.without_text:
        notify(f"{embeddings.without_text:,} items have no text at all: their codes are arbitrary")
    return embeddings


def _fit(
    catalog: Catalog,
    embeddings: Embeddings,
    aligned: Aligned | None,
    judgments: Path | None,
    out: Path,
    config: IndexConfig,
    *,
    notify: Notify,
) -> tuple[Quantizer, str]:
    target = out / "quantizer"
    settings = {"quantizer": config.quantizer, "config": plain(config.fit)}
    parents = {"embeddings": embeddings.artifact.content}
    if aligned is not None:
        parents["alignment"] = aligned.content
    kind = QUANTIZERS[config.quantizer]
    if "queries" in kind.needs and judgments is not None:
        parents["judgments"] = hash_file(find_table(judgments, "judgments"))
    if "categories" in kind.needs:  # they may change where no text does
        parents |= embeddings.artifact.manifest.parents
    if (target / MANIFEST).is_file():
        try:
            artifact = open_artifact(target, kind=QUANTIZER_KIND, schema=QUANTIZER_SCHEMA)
        except ArtifactError as error:
            raise ArtifactError(f"{error} It only saves time: delete {target} and run the command again.") from error
        manifest = artifact.manifest
        same = manifest.parents == parents
        if same and {name: manifest.settings[name] for name in settings} == settings:
            notify("Kept the codebooks")
            arrays = artifact.tensors("quantizer")
            codebooks = Codebooks.from_arrays(arrays, sizes=manifest.settings["sizes"])
            learned = {name: array for name, array in arrays.items() if not Codebooks.is_own_name(name)}
            return restore_quantizer(manifest.settings["state"], learned, codebooks), artifact.content
    notify(f"Fitting {config.quantizer} codebooks")
    assert kind.fit is not None
    alignment = None if aligned is None else aligned.alignment
    if kind.needs:
        points, signals = gather_signals(catalog, embeddings, judgments, config, alignment=alignment, notify=notify)
        quantizer: Quantizer = kind.fit(points, config.fit, items=embeddings.items, signals=signals)
    else:
        sample = embeddings.sample(config.fit.sample, seed=config.fit.seed)
        points = sample if alignment is None else alignment.items(sample)
        quantizer = kind.fit(points, config.fit, items=embeddings.items)
    if aligned is not None:
        quantizer = AlignedQuantizer(aligned.alignment, quantizer)
    state = {**settings, "state": dict(quantizer.settings), "sizes": list(quantizer.codebooks.sizes)}
    with create(target, kind=QUANTIZER_KIND, schema=QUANTIZER_SCHEMA, settings=state, parents=parents) as writer:
        writer.tensors("quantizer", {**quantizer.codebooks.to_arrays(), **quantizer.tensors()})
    return quantizer, read_manifest(target).content


def _identify(
    catalog: Catalog, embeddings: Embeddings, judgments: Path | None, out: Path, config: IndexConfig, *, notify: Notify
) -> SidIndex:
    """The index of a scheme without latents and codebooks: its identifiers are stored as they were made."""
    kind, target = QUANTIZERS[config.quantizer], out / FOLDER
    assert kind.identify is not None
    parents = {**embeddings.artifact.manifest.parents, "embeddings": embeddings.artifact.content}
    if "queries" in kind.needs and judgments is not None:
        parents["judgments"] = hash_file(find_table(judgments, "judgments"))
    origin: dict[str, Any] = {
        "encoder": embeddings.settings["encoder"],
        "reading": embeddings.settings["reading"],
        "scheme": {"name": config.quantizer, **plain(config.settings)},
    }
    if (target / MANIFEST).is_file():
        manifest = read_manifest(target)
        kept = manifest.settings["origin"] | {"identifiers": None} if manifest.kind == KIND else None
        if manifest.parents == parents and kept == origin | {"identifiers": None}:
            notify("Kept the identifiers")
            return SidIndex.load(target)
    vectors, signals = gather_signals(catalog, embeddings, judgments, config, alignment=None, notify=notify)
    notify(f"Making identifiers ({config.quantizer})")
    made = kind.identify(vectors, config.settings, signals)
    table = SidTable(catalog.ids(), made.sids, made.sizes, ends=made.ends)
    # a model is bound to these identifiers as it is to codebooks elsewhere: another index has other ones of that shape
    origin["identifiers"] = hashlib.sha256(np.ascontiguousarray(made.sids, "<i2").data).hexdigest()
    index = SidIndex(table, made.sids, made.points, None, None, "none", origin)
    index.save(target, parents=parents)
    return index


def _index(
    catalog: Catalog,
    embeddings: Embeddings,
    quantizer: Quantizer,
    parent: str,
    out: Path,
    config: IndexConfig,
    *,
    notify: Notify,
) -> SidIndex:
    target = out / FOLDER
    parents = {**embeddings.artifact.manifest.parents, "embeddings": embeddings.artifact.content, "quantizer": parent}
    origin: dict[str, Any] = {
        "encoder": embeddings.settings["encoder"],
        "reading": embeddings.settings["reading"],
        "balanced": config.balanced,
    }
    if (target / MANIFEST).is_file():
        manifest = read_manifest(target)
        settings = manifest.settings
        same = manifest.kind == KIND and manifest.parents == parents and settings["policy"] == config.policy
        if same and settings["origin"] == origin and settings.get("capacity") == config.room:
            notify("Kept the Semantic IDs")
            return SidIndex.load(target)
    latents = _latents(embeddings, quantizer)
    notify("Assigning codes")
    if config.balanced:
        raw = assign_balanced(latents, quantizer.codebooks, seed=config.fit.seed)
    else:
        raw = assign(as_tensor(latents), quantizer.codebooks).numpy()
    notify(f"Resolving collisions ({config.policy})")
    problem = CollisionProblem(latents, raw, quantizer.codebooks, capacity=config.room)
    resolution = POLICIES[config.policy].resolve(problem)
    table = SidTable(catalog.ids(), resolution.sids, resolution.sizes)
    index = SidIndex(table, raw, latents, quantizer.codebooks, quantizer, config.policy, origin, capacity=config.room)
    index.save(target, parents=parents)
    return index


def _latents(embeddings: Embeddings, quantizer: Quantizer) -> Float16[np.ndarray, "item dim"]:
    latents = np.empty((embeddings.items, quantizer.codebooks.dim), np.float16)
    start = 0
    with progress("Projecting", total=embeddings.items) as advance:
        for batch in embeddings.batches():
            latents[start : start + len(batch)] = quantizer.latents(batch)
            start += len(batch)
            advance(len(batch))
    if start != len(latents):
        raise ArtifactError(
            f"{embeddings.artifact.folder} has {start:,} vectors for {len(latents):,} items. Delete it and run again."
        )
    check_latents(latents)
    return latents
