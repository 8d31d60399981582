"""Signals for identifier schemes that learn from more than vectors: categories, and judged queries."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from restd.data import Catalog, read_pairs
from restd.data.categories import Categories, read_category_paths
from restd.encode import Embeddings
from restd.errors import ConfigError
from restd.index.align import choose_rows, embed_pairs, vectors_of
from restd.index.config import IndexConfig
from restd.progress import Notify
from restd.quantize import QUANTIZERS, Alignment, QueryPairs, Signals

_DEPTH = 3
"""Depths of a category path that are used, as the paper's CaLIR does."""


def gather_signals(
    catalog: Catalog,
    embeddings: Embeddings,
    judgments: Path | None,
    config: IndexConfig,
    *,
    alignment: Alignment | None,
    notify: Notify,
) -> tuple[Float[np.ndarray, "item dim"], Signals]:
    """Vectors that a scheme is made from, with the signals that it needs, row for row.

    A scheme with a geometry is fitted to at most as many items as its settings say, those with training queries first;
    a scheme without one names every item.
    """
    kind = QUANTIZERS[config.quantizer]
    most = config.fit.sample if kind.has_geometry else embeddings.items
    train = _no_pairs(embeddings.dim)
    if "queries" in kind.needs:
        train = _judged_queries(catalog, embeddings, judgments, config, notify=notify)
    rows = choose_rows(embeddings.items, train.item, most=most, seed=config.settings.seed)
    vectors, train = vectors_of(embeddings, rows), train.within(rows)
    categories = None
    if "categories" in kind.needs:
        categories = _categories(catalog, config).only(rows)
    if alignment is not None:
        vectors = alignment.items(vectors)
        train = QueryPairs(alignment.queries(train.vectors), train.query, train.item, train.grade)
    return vectors, Signals(categories, train if "queries" in kind.needs else None)


def _no_pairs(dim: int) -> QueryPairs:
    none = np.zeros(0, np.int64)
    return QueryPairs(np.zeros((0, dim), np.float32), none, none)


def _judged_queries(
    catalog: Catalog, embeddings: Embeddings, judgments: Path | None, config: IndexConfig, *, notify: Notify
) -> QueryPairs:
    if judgments is None:
        raise ConfigError(
            f"The quantiser {config.quantizer} learns from training queries, and there are none. Pass --judgments, or "
            "put judgments beside the items; kmeans and rqvae need none."
        )
    if "file" in embeddings.settings["encoder"]:
        raise ConfigError(
            f"The quantiser {config.quantizer} learns from training queries, but these vectors were brought from "
            "elsewhere, so queries cannot be encoded. Let restd encode the items, or choose kmeans or rqvae."
        )
    train, _, _ = read_pairs(judgments, catalog.ids())
    return next(embed_pairs(embeddings, [train], notify=notify))


def _categories(catalog: Catalog, config: IndexConfig) -> Categories:
    paths = read_category_paths(catalog, catalog.ids())
    if paths is None:
        raise ConfigError(
            f"The quantiser {config.quantizer} needs categories of the items, and {catalog.path} has none. Name their "
            "column (--map category=…), or choose another quantiser, such as kmeans."
        )
    return Categories.of_paths(paths, depth=min(_DEPTH, max(map(len, paths))))
