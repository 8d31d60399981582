"""Relevance grades by rule: which items are judged for a query, and with which grade.

Exact: the item has every attribute the query asks for. Substitute: same leaf category, exactly one attribute differs.
Complement: an accessory of an exact item, the product an exact item is an accessory of, or an item of the companion
leaf with the brand (and colour) the query asks for. Irrelevant: an item of another leaf of the same department that is
not linked to the query's leaf.
"""

from dataclasses import dataclass

import numpy as np

from restd.data.schema import GRADES
from restd.shop.intents import Catalogue, Facet
from restd.shop.queries import Queries

EXACT_CAP = 7
SUBSTITUTE_CAP = 3
_WINDOW = 16  # number of popular near misses among which substitutes are looked for


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """Rows of the judged pool: position of the query, item and grade."""

    query: np.ndarray
    item: np.ndarray
    grade: np.ndarray


def _keep_first(items: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """Keep at most `caps` items per row, the first ones that are not -1, and set the others to -1."""
    keep_mask = (items >= 0) & (np.cumsum(items >= 0, axis=1) <= caps[:, None])
    return np.where(keep_mask, items, -1)


def _exact(catalogue: Catalogue, mask: Facet, queries: Queries) -> np.ndarray:
    """Return the most popular items with all attributes of the query, always including its seed item."""
    items = catalogue.indexes[mask].take(queries.key, EXACT_CAP)
    absent = ~(items == queries.seed[:, None]).any(axis=1)
    items[absent, -1] = queries.seed[absent]
    return items


def _droppable(mask: Facet) -> list[Facet]:
    """Return the facets a substitute may miss: not the product an accessory fits, nor the brand of a named model."""
    required = Facet.FITS | (Facet.BRAND if Facet.MODEL in mask else Facet(0))
    return [facet for facet in mask if facet not in required]


def _substitutes(
    catalogue: Catalogue, mask: Facet, queries: Queries, caps: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the most popular items that differ in exactly one facet, which is drawn per query."""
    substitutes = np.full((len(queries), _WINDOW), -1, dtype=np.int64)
    droppable = _droppable(mask)
    if not droppable:
        return substitutes
    draws = rng.integers(0, len(droppable), len(queries))
    for position, facet in enumerate(droppable):
        rows = np.flatnonzero(draws == position)
        seeds = queries.seed[rows]
        rest = mask & ~facet
        near = catalogue.indexes[rest].take(catalogue.key(rest, seeds), _WINDOW)
        differs = catalogue.bits[facet][near] != catalogue.bits[facet][seeds][:, None]
        substitutes[rows] = np.where((near >= 0) & differs, near, -1)
    return _keep_first(substitutes, caps)


def _complements(
    catalogue: Catalogue, mask: Facet, queries: Queries, exact: np.ndarray, caps: np.ndarray
) -> np.ndarray:
    """Return accessories of the best exact item, the product it fits, and a companion item of the same brand."""
    world = catalogue.world
    best = exact[:, 0]
    accessories = catalogue.accessories.take(world.product[best], 2)
    host = world.host[best]
    hosts = np.where(host[:, None] >= 0, catalogue.products.take(host, 2), -1)
    parts = [accessories, hosts]
    if Facet.BRAND in mask:
        companion = np.array([leaf.companion for leaf in world.taxonomy.leaves])[world.leaf[queries.seed]]
        style = mask & (Facet.BRAND | Facet.COLOR)
        key = np.maximum(companion, 0).astype(np.int64)
        for facet in style:
            key |= catalogue.bits[facet][queries.seed]
        parts.append(np.where(companion[:, None] >= 0, catalogue.indexes[style].take(key, 1), -1))
    return _keep_first(np.concatenate(parts, axis=1), caps)


def _irrelevant(catalogue: Catalogue, queries: Queries, rng: np.random.Generator) -> np.ndarray:
    """Return up to two items of unlinked leaves of the department, in the seed item's colour if there are any."""
    leaves = catalogue.world.taxonomy.leaves
    leaf = catalogue.world.leaf[queries.seed]
    width = max(len(node.unrelated) for node in leaves)
    unrelated = np.array([[node.unrelated[at % len(node.unrelated)] for at in range(width)] for node in leaves])
    items = np.full((len(queries), 2), -1, dtype=np.int64)
    for column in range(2):
        other_leaf = unrelated[leaf, rng.integers(0, width, len(queries))].astype(np.int64)
        fraction = rng.random(len(queries))
        for mask in (Facet(0), Facet.COLOR):
            index = catalogue.indexes[mask]
            start, count = index.find(other_leaf | catalogue.bits[mask][queries.seed] if mask else other_leaf)
            position = np.minimum(start + (np.minimum(count, 20) * fraction).astype(np.int64), len(index.items) - 1)
            items[:, column] = np.where(count > 0, index.items[position], items[:, column])
    items[:, 1] = np.where(items[:, 1] == items[:, 0], -1, items[:, 1])
    return items


def judge(catalogue: Catalogue, queries: Queries, rng: np.random.Generator) -> JudgedRows:
    """Return the judged pool of each query, in the order of the queries, best grades first.

    >>> from restd.shop.queries import INDEXED, draw_queries
    >>> from restd.shop.intents import build_catalogue
    >>> from restd.shop.world import build_world
    >>> catalogue = build_catalogue(build_world(500, 0), INDEXED)
    >>> rows = judge(catalogue, draw_queries(catalogue, 0), np.random.default_rng(0))
    >>> sorted(set(rows.grade.tolist()), reverse=True)
    [3.0, 2.0, 1.0, 0.0]
    """
    widths = (EXACT_CAP, _WINDOW, 5, 2)
    starts = np.cumsum((0, *widths))
    pool = np.full((len(queries), starts[-1]), -1, dtype=np.int64)
    for value in np.unique(queries.mask):
        mask = Facet(int(value))
        rows = np.flatnonzero(queries.mask == value)
        group = queries.take(rows)
        exact = _exact(catalogue, mask, group)
        exact_counts = (exact >= 0).sum(axis=1)
        caps = np.clip(rng.integers(5, 9, len(rows)) - exact_counts, 0, SUBSTITUTE_CAP)
        substitutes = _substitutes(catalogue, mask, group, caps, rng)
        complements = _complements(catalogue, mask, group, exact, rng.integers(0, 3, len(rows)))
        irrelevant = _irrelevant(catalogue, group, rng)
        for start, part in zip(starts, (exact, substitutes, complements, irrelevant), strict=False):
            pool[rows, start : start + part.shape[1]] = part
    grade = np.repeat(np.array([GRADES[letter] for letter in "ESCI"], dtype=np.float32), widths)
    query, column = np.nonzero(pool >= 0)
    return JudgedRows(query, pool[query, column], grade[column])
