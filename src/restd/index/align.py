"""The stage between embeddings and codebooks: an alignment learned from judged and pseudo-queries."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from restd.artifacts import create, hash_file, open_artifact, read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.config import plain
from restd.data import Catalog, Pairs, read_pairs
from restd.data.dataset import find_table
from restd.data.pseudo_pairs import describe_items, held_out_items, pseudo_query_pairs, without_items
from restd.encode import Embeddings, encode_texts
from restd.errors import ConfigError
from restd.index.config import IndexConfig
from restd.progress import Notify
from restd.quantize.alignment import AlignConfig, Alignment, QueryPairs, fit_alignment

FOLDER = "alignment"
KIND = "alignment"
SCHEMA = 1
_LARGEST = 200_000
"""Items whose embeddings are held in memory; of a larger catalogue those with a judged query, filled up at random."""
_HELD_OUT = 0.05
_VALIDATION = 2_000


class Aligned(NamedTuple):
    """An alignment and the hash of its artefact."""

    alignment: Alignment
    content: str


class AlignmentQueries(NamedTuple):
    """Embedded queries with the items that answer them, as rows of the catalogue."""

    train: QueryPairs
    valid: QueryPairs


def align(
    catalog: Catalog,
    embeddings: Embeddings,
    judgments: Path | None,
    out: Path,
    config: IndexConfig,
    *,
    queries: AlignmentQueries | None = None,
    notify: Notify,
) -> Aligned | None:
    """Learn the alignment of an index, or keep the one in `out`; None where it is switched off or nothing teaches it.

    Args:
        catalog: the items; pseudo-queries are made from their words.
        embeddings: of the same items.
        judgments: folder or table of judged queries; None where there are none.
        out: folder of the index.
        config: the section [align], and the width of the latents.
        queries: what `query_pairs` and `embed_pairs` give, where that was needed before.
        notify: receives progress messages.
    """
    settings = config.align
    if not is_aligned(settings, judgments):
        return None
    if "file" in embeddings.settings["encoder"]:
        if settings.enabled == "on":
            raise ConfigError("Vectors brought from elsewhere have no encoder for queries; set align.enabled=off.")
        notify("No alignment: the vectors were brought from elsewhere, so queries cannot be encoded")
        return None
    target = out / FOLDER
    parents = {"embeddings": embeddings.artifact.content}
    if judgments is not None:
        parents["judgments"] = hash_file(find_table(judgments, "judgments"))
    wanted = {"config": plain(settings), "dim": config.fit.dim}
    if (target / MANIFEST).is_file():
        manifest = read_manifest(target)
        if manifest.parents == parents and {name: manifest.settings.get(name) for name in wanted} == wanted:
            artifact = open_artifact(target, kind=KIND, schema=SCHEMA)
            alignment = Alignment.of_tensors(artifact.tensors("alignment"))
            assert alignment is not None
            notify("Kept the alignment")
            return Aligned(alignment, artifact.content)
    if queries is None:
        pairs = query_pairs(catalog, judgments, settings)
        queries = AlignmentQueries(*embed_pairs(embeddings, pairs, notify=notify))
    vectors, train, valid = within_memory(embeddings, *queries, most=_LARGEST, seed=settings.seed)
    fitted = fit_alignment(vectors, train, valid, settings, dim=config.fit.dim)
    before, after = fitted.history[0], max(fitted.history)
    notify(
        f"Aligned items and queries in {config.fit.dim} dimensions: reciprocal rank of validation queries "
        f"{before:.3f} before, {after:.3f} after {len(fitted.history) - 1} epochs"
    )
    with create(target, kind=KIND, schema=SCHEMA, settings={**wanted, "history": fitted.history}, parents=parents) as w:
        w.tensors("alignment", fitted.alignment.tensors())
    return Aligned(fitted.alignment, read_manifest(target).content)


def is_aligned(settings: AlignConfig, judgments: Path | None) -> bool:
    """Whether an index is aligned under these settings; insisting on it with nothing to learn from is an error."""
    if settings.enabled == "off" or (settings.enabled == "auto" and judgments is None):
        return False
    if judgments is None and not settings.pseudo_queries:
        raise ConfigError(
            "align.enabled = on needs queries: pass judgments, or set align.pseudo_queries above 0 to learn from the "
            "items' own words."
        )
    return True


def query_pairs(catalog: Catalog, judgments: Path | None, settings: AlignConfig) -> tuple[Pairs, Pairs]:
    """Judged and drawn queries, for training and for validation."""
    ids = catalog.ids()
    train = valid = None
    if judgments is not None:
        train, valid, _ = read_pairs(judgments, ids, need_training=not settings.pseudo_queries)
        valid = valid.some(_VALIDATION)
    if settings.pseudo_queries:
        items = describe_items(catalog, ids)
        drawn = pseudo_query_pairs(items, per_item=settings.pseudo_queries, seed=settings.seed)
        if judgments is not None:
            drawn = without_items(drawn, held_out_items(judgments, ids))
        if train is None or valid is None:
            few = max(1, min(_VALIDATION, round(_HELD_OUT * len(drawn))))
            order = np.random.default_rng(settings.seed).permutation(len(drawn))
            train, valid = drawn.only(np.sort(order[few:])), drawn.only(np.sort(order[:few]))
        else:
            train = train.with_queries(drawn)
    assert train is not None
    assert valid is not None
    return train, valid


def embed_pairs(embeddings: Embeddings, parts: Iterable[Pairs], *, notify: Notify) -> Iterator[QueryPairs]:
    """The same pairs with the embeddings of their queries."""
    parts = tuple(parts)
    notify(f"Encoding {sum(len(pairs.texts) for pairs in parts):,} queries")
    encoder = embeddings.encoder()
    for pairs in parts:
        vectors = np.asarray(encode_texts(encoder, list(map(str, pairs.texts))))
        yield QueryPairs(vectors, pairs.text, pairs.item, pairs.grade)


def within_memory(
    embeddings: Embeddings, train: QueryPairs, valid: QueryPairs, *, most: int, seed: int
) -> tuple[Float[np.ndarray, "item dim"], QueryPairs, QueryPairs]:
    """Embeddings of all items, or of `most`: those with a validation or a training query first, others at random.

    Pairs then name items by their place among them; pairs of items that were left out are missing.
    """
    rows = choose_rows(embeddings.items, valid.item, train.item, most=most, seed=seed)
    return vectors_of(embeddings, rows), train.within(rows), valid.within(rows)


def choose_rows(items: int, *first: Int64[np.ndarray, "_"], most: int, seed: int) -> Int64[np.ndarray, "row"]:
    """Rows of all items, or of `most`: those named first, filled up at random; ascending.

    >>> choose_rows(5, np.array([4, 1]), most=2, seed=0).tolist()
    [1, 4]
    """
    if items <= most:
        return np.arange(items)
    wanted = np.concatenate([*first, np.random.default_rng(seed).permutation(items)])
    return np.sort(wanted[np.sort(np.unique(wanted, return_index=True)[1])[:most]])


def vectors_of(embeddings: Embeddings, rows: Int64[np.ndarray, "row"]) -> Float[np.ndarray, "row dim"]:
    """Embeddings of some items, read batch by batch; `rows` must be ascending."""
    parts, start = [], 0
    for batch in embeddings.batches():
        inside = rows[(rows >= start) & (rows < start + len(batch))] - start
        parts.append(np.asarray(batch)[inside].astype(np.float32))
        start += len(batch)
    return np.concatenate(parts)
