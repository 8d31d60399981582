"""Wishes as numbers: what a query asks for, packed into one integer, and the items that meet it, found by search.

A pair of leaf and wishes is one key; two queries ask for the same thing exactly when their keys are equal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntFlag

import numpy as np

from restd.data.shop.world import World


class Wish(IntFlag):
    """The attributes a query can ask for."""

    COLOR = 1
    MATERIAL = 2
    SIZE = 4
    FEATURE = 8
    BRAND = 16
    MODEL = 32
    FITS = 64


# Places in the 63 bits of a key. A model and a fitted model are never asked for at once and share their bits;
# the top bit tells them apart.
_SHIFT = {
    Wish.COLOR: 7,
    Wish.MATERIAL: 12,
    Wish.SIZE: 18,
    Wish.FEATURE: 21,
    Wish.BRAND: 28,
    Wish.MODEL: 41,
    Wish.FITS: 41,
}
_FITS_FLAG = 1 << 62


def wish_value(world: World, wish: Wish) -> np.ndarray:
    """Return the column of the world that a wish speaks about."""
    columns = {
        Wish.COLOR: world.color,
        Wish.MATERIAL: world.material,
        Wish.SIZE: world.size,
        Wish.FEATURE: world.feature,
        Wish.BRAND: world.brand,
        Wish.MODEL: world.product,
        Wish.FITS: world.host,
    }
    return columns[wish]


@dataclass(frozen=True, slots=True)
class Index:
    """Items sorted by key, the more popular first among equals."""

    keys: np.ndarray
    items: np.ndarray

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each key where its items begin and how many there are."""
        low = np.searchsorted(self.keys, keys)
        return low, np.searchsorted(self.keys, keys, side="right") - low

    def take(self, keys: np.ndarray, width: int) -> np.ndarray:
        """Return the `width` most popular items of each key, -1 where there are fewer."""
        low, count = self.find(keys)
        steps = np.arange(width)
        places = np.minimum(low[:, None] + steps, len(self.items) - 1)
        return np.where(steps < count[:, None], self.items[places], -1)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The world with what is needed to look wishes up in it."""

    world: World
    bits: Mapping[Wish, np.ndarray]
    indexes: Mapping[Wish, Index]
    accessories: Index
    """By the product they fit."""
    products: Index
    """By product: the versions of each."""

    def key(self, wishes: Wish, items: np.ndarray) -> np.ndarray:
        """Return the key of the query that asks for these attributes of these items."""
        return _packed(self.world.leaf, self.bits, wishes, items)


def _packed(leaf: np.ndarray, bits: Mapping[Wish, np.ndarray], wishes: Wish, items: np.ndarray) -> np.ndarray:
    key = leaf[items].astype(np.int64)
    for wish in wishes:
        key |= bits[wish][items]
    return key


def _sorted_index(keys: np.ndarray, by_popularity: np.ndarray) -> Index:
    ranked = keys[by_popularity]
    order = np.argsort(ranked, kind="stable")
    return Index(ranked[order], by_popularity[order].astype(np.int32))


def build_catalogue(world: World, masks: Iterable[Wish]) -> Catalogue:
    """Index the items under every set of wishes that will be asked.

    >>> from restd.data.shop.world import build_world
    >>> shop = build_catalogue(build_world(500, 0), [Wish(0), Wish.COLOR])
    >>> item = np.array([7])
    >>> alike = shop.indexes[Wish.COLOR].take(shop.key(Wish.COLOR, item), 50)
    >>> bool((shop.world.color[alike[alike >= 0]] == shop.world.color[7]).all())
    True
    """
    bits = {wish: (wish_value(world, wish).astype(np.int64) + 1) << shift for wish, shift in _SHIFT.items()}
    bits[Wish.FITS] = np.where(world.host < 0, 0, bits[Wish.FITS] | _FITS_FLAG)
    by_popularity = np.argsort(-world.popularity, kind="stable")
    everything = np.arange(len(world))
    return Catalogue(
        world=world,
        bits=bits,
        indexes={mask: _sorted_index(_packed(world.leaf, bits, mask, everything), by_popularity) for mask in masks},
        accessories=_sorted_index(world.host, by_popularity),
        products=_sorted_index(world.product, by_popularity),
    )
