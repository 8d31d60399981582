"""What a query asks for: a leaf category and some facets, packed into one integer key, and items indexed by such keys.

Two queries have the same intent exactly when their keys are equal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntFlag

import numpy as np

from restd.shop.world import World


class Facet(IntFlag):
    """The attributes a query can ask for."""

    COLOR = 1
    MATERIAL = 2
    SIZE = 4
    FEATURE = 8
    BRAND = 16
    MODEL = 32
    FITS = 64


# Bit offsets within a 63-bit key. A query never asks for a model and for a fitted model at once, so the two share
# their bits; the top bit tells them apart.
_SHIFT = {
    Facet.COLOR: 7,
    Facet.MATERIAL: 12,
    Facet.SIZE: 18,
    Facet.FEATURE: 21,
    Facet.BRAND: 28,
    Facet.MODEL: 41,
    Facet.FITS: 41,
}
_FITS_FLAG = 1 << 62


def facet_column(world: World, facet: Facet) -> np.ndarray:
    """Return the column of the world that a facet refers to."""
    columns = {
        Facet.COLOR: world.color,
        Facet.MATERIAL: world.material,
        Facet.SIZE: world.size,
        Facet.FEATURE: world.feature,
        Facet.BRAND: world.brand,
        Facet.MODEL: world.product,
        Facet.FITS: world.host,
    }
    return columns[facet]


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Items sorted by key; items with the same key are sorted by decreasing popularity."""

    keys: np.ndarray
    items: np.ndarray

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the start of each key's items and how many there are."""
        start = np.searchsorted(self.keys, keys)
        return start, np.searchsorted(self.keys, keys, side="right") - start

    def take(self, keys: np.ndarray, width: int) -> np.ndarray:
        """Return the `width` most popular items of each key, padded with -1."""
        start, count = self.find(keys)
        offsets = np.arange(width)
        positions = np.minimum(start[:, None] + offsets, len(self.items) - 1)
        return np.where(offsets < count[:, None], self.items[positions], -1)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A world with the indexes that find items by their facets."""

    world: World
    bits: Mapping[Facet, np.ndarray]
    """For each facet, every item's value shifted to its bits of the key."""
    indexes: Mapping[Facet, KeyIndex]
    """One index per set of facets."""
    accessories: KeyIndex
    """Accessories by the product they fit."""
    products: KeyIndex
    """Items by product: the variants of each."""

    def key(self, facets: Facet, items: np.ndarray) -> np.ndarray:
        """Return the key of the query that asks for these facets of these items."""
        return _pack(self.world.leaf, self.bits, facets, items)


def _pack(leaf: np.ndarray, bits: Mapping[Facet, np.ndarray], facets: Facet, items: np.ndarray) -> np.ndarray:
    key = leaf[items].astype(np.int64)
    for facet in facets:
        key |= bits[facet][items]
    return key


def _key_index(keys: np.ndarray, by_popularity: np.ndarray) -> KeyIndex:
    ranked = keys[by_popularity]
    order = np.argsort(ranked, kind="stable")
    return KeyIndex(ranked[order], by_popularity[order].astype(np.int32))


def build_catalogue(world: World, masks: Iterable[Facet]) -> Catalogue:
    """Index the items by each of the given sets of facets.

    >>> from restd.shop.world import build_world
    >>> catalogue = build_catalogue(build_world(500, 0), [Facet(0), Facet.COLOR])
    >>> item = np.array([7])
    >>> alike = catalogue.indexes[Facet.COLOR].take(catalogue.key(Facet.COLOR, item), 50)
    >>> bool((catalogue.world.color[alike[alike >= 0]] == catalogue.world.color[7]).all())
    True
    """
    bits = {facet: (facet_column(world, facet).astype(np.int64) + 1) << shift for facet, shift in _SHIFT.items()}
    bits[Facet.FITS] = np.where(world.host < 0, 0, bits[Facet.FITS] | _FITS_FLAG)
    by_popularity = np.argsort(-world.popularity, kind="stable")
    all_items = np.arange(len(world))
    return Catalogue(
        world=world,
        bits=bits,
        indexes={mask: _key_index(_pack(world.leaf, bits, mask, all_items), by_popularity) for mask in masks},
        accessories=_key_index(world.host, by_popularity),
        products=_key_index(world.product, by_popularity),
    )
