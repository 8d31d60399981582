"""Grades by rule: which items are judged for a query, and why each grade is true.

Exact meets every wish. Substitute is of the same leaf and misses one. Complement fits an exact item, is what an exact
item fits, or is of the leaf that accompanies the query's and of the brand (and colour) the query asks for. Irrelevant
is of another leaf of the department that nothing links to the query's.
"""

from dataclasses import dataclass

import numpy as np

from restd.data.schema import GRADES
from restd.data.shop.queries import Queries
from restd.data.shop.wishes import Catalogue, Wish

EXACT_CAP = 7
SUBSTITUTE_CAP = 3
_WINDOW = 16  # how far down the popular near misses to look


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows of the pool: the query's place, the item and the grade."""

    query: np.ndarray
    item: np.ndarray
    grade: np.ndarray


def _first(items: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """Keep the first so many items of each row that are there, and put -1 for the others."""
    kept = (items >= 0) & (np.cumsum(items >= 0, axis=1) <= caps[:, None])
    return np.where(kept, items, -1)


def _exact(shop: Catalogue, mask: Wish, queries: Queries) -> np.ndarray:
    """Return the most popular items that meet all wishes, the query's own seed always among them."""
    found = shop.indexes[mask].take(queries.key, EXACT_CAP)
    absent = ~(found == queries.seed[:, None]).any(axis=1)
    found[absent, -1] = queries.seed[absent]
    return found


def _droppable(mask: Wish) -> list[Wish]:
    """Return the wishes one may miss: not the model an accessory must fit, nor the brand of a named model."""
    kept = Wish.FITS | (Wish.BRAND if Wish.MODEL in mask else Wish(0))
    return [wish for wish in mask if wish not in kept]


def _substitutes(
    shop: Catalogue, mask: Wish, queries: Queries, caps: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the most popular items that miss just one wish, which one being drawn for each query."""
    out = np.full((len(queries), _WINDOW), -1, dtype=np.int64)
    options = _droppable(mask)
    if not options:
        return out
    drawn = rng.integers(0, len(options), len(queries))
    for place, wish in enumerate(options):
        rows = np.flatnonzero(drawn == place)
        rest = mask & ~wish
        wanted = shop.bits[wish][queries.seed[rows]]
        near = shop.indexes[rest].take(shop.key(rest, queries.seed[rows]), _WINDOW)
        out[rows] = np.where((near >= 0) & (shop.bits[wish][near] != wanted[:, None]), near, -1)
    return _first(out, caps)


def _complements(shop: Catalogue, mask: Wish, queries: Queries, exact: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """Return accessories of the best exact item, what it fits itself, or its brand's matching piece."""
    world = shop.world
    best = exact[:, 0]
    fitting = shop.accessories.take(world.product[best], 2)
    host = world.host[best]
    fitted = np.where(host[:, None] >= 0, shop.products.take(host, 2), -1)
    parts = [fitting, fitted]
    if Wish.BRAND in mask:
        companion = np.array([leaf.companion for leaf in world.taxonomy.leaves])[world.leaf[queries.seed]]
        style = mask & (Wish.BRAND | Wish.COLOR)
        key = np.maximum(companion, 0).astype(np.int64)
        for wish in style:
            key |= shop.bits[wish][queries.seed]
        parts.append(np.where(companion[:, None] >= 0, shop.indexes[style].take(key, 1), -1))
    return _first(np.concatenate(parts, axis=1), caps)


def _irrelevant(shop: Catalogue, queries: Queries, rng: np.random.Generator) -> np.ndarray:
    """Return up to two items of unlinked leaves of the department, of the seed's colour where there is one."""
    leaves = shop.world.taxonomy.leaves
    leaf = shop.world.leaf[queries.seed]
    width = max(len(node.unrelated) for node in leaves)
    table = np.array([[node.unrelated[at % len(node.unrelated)] for at in range(width)] for node in leaves])
    out = np.full((len(queries), 2), -1, dtype=np.int64)
    for slot in range(2):
        other = table[leaf, rng.integers(0, width, len(queries))].astype(np.int64)
        step = rng.random(len(queries))
        for mask in (Wish(0), Wish.COLOR):
            index = shop.indexes[mask]
            low, count = index.find(other | shop.bits[mask][queries.seed] if mask else other)
            place = low + (np.minimum(count, 20) * step).astype(np.int64)
            out[:, slot] = np.where(count > 0, index.items[np.minimum(place, len(index.items) - 1)], out[:, slot])
    out[:, 1] = np.where(out[:, 1] == out[:, 0], -1, out[:, 1])
    return out


def judge(shop: Catalogue, queries: Queries, rng: np.random.Generator) -> Judged:
    """Return the judged pool of each query, in the order of the queries and best grades first.

    >>> from restd.data.shop.queries import INDEXED, draw_queries
    >>> from restd.data.shop.wishes import build_catalogue
    >>> from restd.data.shop.world import build_world
    >>> shop = build_catalogue(build_world(500, 0), INDEXED)
    >>> rows = judge(shop, draw_queries(shop, 0), np.random.default_rng(0))
    >>> sorted(set(rows.grade.tolist()), reverse=True)
    [3.0, 2.0, 1.0, 0.0]
    """
    widths = (EXACT_CAP, _WINDOW, 5, 2)
    starts = np.cumsum((0, *widths))
    pool = np.full((len(queries), starts[-1]), -1, dtype=np.int64)
    for value in np.unique(queries.mask):
        mask = Wish(int(value))
        rows = np.flatnonzero(queries.mask == value)
        asked = queries.take(rows)
        exact = _exact(shop, mask, asked)
        number = (exact >= 0).sum(axis=1)
        caps = np.clip(rng.integers(5, 9, len(rows)) - number, 0, SUBSTITUTE_CAP)
        near = _substitutes(shop, mask, asked, caps, rng)
        beside = _complements(shop, mask, asked, exact, rng.integers(0, 3, len(rows)))
        for start, part in zip(starts, (exact, near, beside, _irrelevant(shop, asked, rng)), strict=False):
            pool[rows, start : start + part.shape[1]] = part
    grade = np.repeat(np.array([GRADES[letter] for letter in "ESCI"], dtype=np.float32), widths)
    query, place = np.nonzero(pool >= 0)
    return Judged(query, pool[query, place], grade[place])
