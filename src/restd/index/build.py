"""From a catalogue to an index: encode, fit, assign, resolve. A stage whose inputs are unchanged is not run again."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float16

from restd.artifacts import create, open_artifact, read_manifest, sole_writer
from restd.artifacts.manifest import MANIFEST
from restd.config import plain
from restd.data import Catalog
from restd.encode import Embeddings, encode_catalog, import_vectors
from restd.errors import ArtifactError, ConfigError
from restd.index.keys import refuse_too_many
from restd.index.policies import POLICIES, UNIQUE_WITHIN, Problem, policy_named
from restd.index.sid_index import FOLDER, KIND, SidIndex
from restd.index.table import SidTable
from restd.progress import progress
from restd.quantize import (
    Codebooks,
    KMeansConfig,
    Quantizer,
    RqVaeConfig,
    assign,
    assign_balanced,
    fit_kmeans,
    fit_rqvae,
    level_sizes,
    quantizer_from_state,
)

logger = logging.getLogger(__name__)

QUANTIZER_KIND = "quantizer"
QUANTIZER_SCHEMA = 1
_OURS = re.compile(
    rf"embeddings|quantizer|{FOLDER}|quality\.(json|png)|\.lock|\.(embeddings|quantizer|{FOLDER})\.(partial|old|tmp-.+)"
)
"""Everything restd index ever puts into its folder."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """How to make an index; defaults are the paper's four levels of residuals of width 32.

    Args:
        encoder: `auto`, `minilm`, `use-multilingual`, `tfidf-svd`, a sentence-transformers hub id or folder.
        quantizer: residual k-means or RQ-VAE; its own settings are in the section of that name.
        policy: what to do with items that get the same codes.
        balanced: assign codes so that all of a level are used alike, at some cost in error.
    """

    encoder: str = "auto"
    quantizer: Literal["kmeans", "rqvae"] = "kmeans"
    policy: str = "single_substitution"
    balanced: bool = False
    kmeans: KMeansConfig = field(default_factory=KMeansConfig)
    rqvae: RqVaeConfig = field(default_factory=RqVaeConfig)

    @property
    def fit(self) -> KMeansConfig | RqVaeConfig:
        """Settings of the quantiser in use."""
        return self.kmeans if self.quantizer == "kmeans" else self.rqvae


def build_index(
    catalog: Catalog,
    out: Path,
    config: IndexConfig | None = None,
    *,
    vectors: Path | None = None,
    vector_column: str = "vector",
    device: str | None = None,
    tell: Tell = logger.info,
) -> SidIndex:
    """Make the index of a catalogue in `out`, which then holds `embeddings`, `quantizer` and `index`.

    The index is complete in itself; the other two are what lets a second run skip its stages, and may be deleted.
    """
    config = config or IndexConfig()
    policy_named(config.policy)
    refuse_foreign_folder(out)
    items = len(catalog.ids())
    sizes = level_sizes(config.fit.codes, levels=config.fit.levels, items=items)  # before anything costly is done
    if config.policy in UNIQUE_WITHIN:
        refuse_too_many(items, sizes)
    with sole_writer(out):
        refuse_to_undo_changes(out)
        embeddings = _encode(catalog, out, config, vectors=vectors, column=vector_column, device=device, tell=tell)
        quantizer, parent = _fit(embeddings, out, config, tell=tell)
        return _index(catalog, embeddings, quantizer, parent, out, config, tell=tell)


def refuse_to_undo_changes(out: Path) -> None:
    """Refuse to make an index anew where items were added or removed since: they would silently be back or gone."""
    target = out / FOLDER
    if (target / MANIFEST).is_file() and "index" in read_manifest(target).parents:
        raise ArtifactError(
            f"Items were added to or removed from {target} since it was made, and making it again would undo that; "
            f"choose another --out, or delete {target} first."
        )


def refuse_foreign_folder(out: Path) -> None:
    """Refuse to write into a folder that holds anything but an index and its stages."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ArtifactError(f"{out} is a file; --out wants a folder, new or made by restd index.")
    for entry in out.iterdir():
        if not _OURS.fullmatch(entry.name):
            raise ArtifactError(
                f"{out} already holds {entry.name!r}, which restd index did not write; choose another --out."
            )


def _encode(
    catalog: Catalog,
    out: Path,
    config: IndexConfig,
    *,
    vectors: Path | None,
    column: str,
    device: str | None,
    tell: Tell,
) -> Embeddings:
    target = out / "embeddings"
    existed = (target / MANIFEST).is_file() and read_manifest(target).created
    tell(f"Encoding {catalog.path}")
    if vectors is not None:
        embeddings = import_vectors(catalog, vectors, target, column=column)
    else:
        embeddings = encode_catalog(catalog, target, encoder=config.encoder, device=device, seed=config.fit.seed)
    kept = existed == embeddings.artifact.manifest.created
    name = embeddings.settings["encoder"]["name"]
    tell(f"{'Kept' if kept else 'Made'} {embeddings.items:,} embeddings of width {embeddings.dim} ({name})")
    if embeddings.without_text:
        tell(f"{embeddings.without_text:,} items have no text at all: their codes are arbitrary")
    return embeddings


def _fit(embeddings: Embeddings, out: Path, config: IndexConfig, *, tell: Tell) -> tuple[Quantizer, str]:
    target = out / "quantizer"
    settings = {"quantizer": config.quantizer, "config": plain(config.fit)}
    if (target / MANIFEST).is_file():
        try:
            artifact = open_artifact(target, kind=QUANTIZER_KIND, schema=QUANTIZER_SCHEMA)
        except ArtifactError as error:
            raise ArtifactError(f"{error} It only saves work: delete {target} and run the command again.") from error
        manifest = artifact.manifest
        same = manifest.parents == {"embeddings": embeddings.artifact.content}
        if same and {name: manifest.settings[name] for name in settings} == settings:
            tell("Kept the codebooks")
            tensors = artifact.tensors("quantizer")
            codebooks = Codebooks(tensors.pop("codebooks"), tuple(manifest.settings["sizes"]))
            return quantizer_from_state(manifest.settings["state"], tensors, codebooks), artifact.content
    tell(f"Fitting {config.quantizer} codebooks")
    sample = embeddings.sample(config.fit.sample, seed=config.fit.seed)
    if isinstance(config.fit, KMeansConfig):
        quantizer: Quantizer = fit_kmeans(sample, config.fit, items=embeddings.items)
    else:
        quantizer = fit_rqvae(sample, config.fit, items=embeddings.items)
    state = {**settings, "state": dict(quantizer.settings), "sizes": list(quantizer.codebooks.sizes)}
    parents = {"embeddings": embeddings.artifact.content}
    with create(target, kind=QUANTIZER_KIND, schema=QUANTIZER_SCHEMA, settings=state, parents=parents) as writer:
        writer.tensors("quantizer", {"codebooks": quantizer.codebooks.values, **quantizer.tensors()})
    return quantizer, read_manifest(target).content


def _index(
    catalog: Catalog,
    embeddings: Embeddings,
    quantizer: Quantizer,
    parent: str,
    out: Path,
    config: IndexConfig,
    *,
    tell: Tell,
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
        if same and settings["origin"] == origin:
            tell("Kept the Semantic IDs")
            return SidIndex.load(target)
    latents = _latents(embeddings, quantizer)
    tell("Assigning codes")
    if config.balanced:
        raw = assign_balanced(latents, quantizer.codebooks, seed=config.fit.seed)
    else:
        raw = assign(latents, quantizer.codebooks)
    tell(f"Resolving collisions ({config.policy})")
    found = POLICIES[config.policy](Problem(latents, raw, quantizer.codebooks))
    table = SidTable(catalog.ids(), found.sids, found.sizes)
    index = SidIndex(table, raw, latents, quantizer.codebooks, quantizer, config.policy, origin)
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
            f"{embeddings.artifact.folder} holds {start:,} vectors for {len(latents):,} items; delete it."
        )
    if not np.isfinite(latents).all():
        raise ConfigError(
            "Some latents are beyond the range of float16; keep kmeans.normalize on, or scale the vectors down."
        )
    return latents


def with_shape(
    config: IndexConfig,
    *,
    levels: int | None = None,
    codes: int | tuple[int, ...] | None = None,
    dim: int | None = None,
    seed: int | None = None,
) -> IndexConfig:
    """Set what both quantisers have in common."""
    given = {"levels": levels, "codes": codes, "dim": dim, "seed": seed}
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(config, kmeans=replace(config.kmeans, **changes), rqvae=replace(config.rqvae, **changes))
