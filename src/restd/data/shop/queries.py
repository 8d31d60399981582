"""What customers want: queries drawn as sets of wishes, and their split by what they ask rather than how."""

from dataclasses import dataclass
from itertools import combinations
from math import ceil

import numpy as np

from restd.data.shop.wishes import Catalogue, Wish, wish_value
from restd.data.shop.world import World

KINDS = ("broad", "attributes", "model", "fits", "need", "misspelt")
"""Broad, attribute-laden, brand and model, accessory for a model, need described in words, misspelt."""

_SHARES = (0.15, 0.33, 0.16, 0.0, 0.22, 0.14)
_FITS_SHARE = 0.4  # of the queries whose first item is an accessory: what it fits is what people ask

_NOTHING = Wish(0)
_FACETS = (Wish.COLOR, Wish.MATERIAL, Wish.SIZE, Wish.FEATURE, Wish.BRAND)


def _sets(facets: tuple[Wish, ...], size: int, *, given: Wish = _NOTHING) -> tuple[Wish, ...]:
    """Return every set of so many wishes, joined to the given ones."""
    made = []
    for combo in combinations(facets, size):
        mask = given
        for wish in combo:
            mask |= wish
        made.append(mask)
    return tuple(made)


_PLAIN = _FACETS[:4]
_NAMED = Wish.BRAND | Wish.MODEL
_ATTRIBUTES = _sets(_FACETS, 2) + _sets(_FACETS, 3) + _sets(_PLAIN, 4)
MASKS: dict[str, tuple[Wish, ...]] = {
    "broad": (_NOTHING, *_sets(_FACETS, 1)),
    "attributes": _ATTRIBUTES,
    "model": (_NAMED, _NAMED | Wish.COLOR, _NAMED | Wish.SIZE),
    "fits": (Wish.FITS, *_sets(_FACETS, 1, given=Wish.FITS)),
    "need": (
        _NOTHING,
        *_sets(_PLAIN, 1),
        *_sets(_PLAIN[:3], 1, given=Wish.FEATURE),
        *_sets(_PLAIN, 3),
        *_sets(_PLAIN, 4),
    ),
    "misspelt": (*_sets(_FACETS, 1), *_ATTRIBUTES, _NAMED, _NAMED | Wish.COLOR),
}
"""The sets of wishes each kind of query can have."""

INDEXED = tuple(dict.fromkeys(mask for group in MASKS.values() for mask in group))
"""Every set to look items up by; taking one wish off any of them gives another of them."""

_WANTED = 5.0  # exact items; sets of wishes are chosen to come near it, as long as the catalogue allows


@dataclass(frozen=True, slots=True)
class Queries:
    """Columns over queries. The wishes are those attributes of the `seed` item that `mask` names."""

    kind: np.ndarray
    mask: np.ndarray
    seed: np.ndarray
    key: np.ndarray
    split: np.ndarray

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: np.ndarray) -> "Queries":
        """Return some of the queries."""
        return Queries(self.kind[rows], self.mask[rows], self.seed[rows], self.key[rows], self.split[rows])

    def wishes(self, world: World, row: int) -> tuple[int, dict[Wish, int]]:
        """Return one query's leaf and the values it asks for, unpacked."""
        seed = self.seed[row]
        return int(world.leaf[seed]), {wish: int(wish_value(world, wish)[seed]) for wish in Wish(int(self.mask[row]))}


@dataclass(frozen=True, slots=True)
class Quota:
    """How many queries the splits get."""

    train: int
    held: int
    """Of validation and of test, each."""


def quota(items: int) -> Quota:
    """Return the numbers of queries for a catalogue.

    >>> quota(20_000), quota(1_000_000)
    (Quota(train=12000, held=2060), Quota(train=600000, held=5000))
    """
    return Quota(train=ceil(0.6 * items), held=max(250, min(ceil(0.11 * items), 2000 + ceil(0.003 * items))))


def _mixed(keys: np.ndarray, seed: int) -> np.ndarray:
    """Spread the keys evenly over [0, 1) by splitmix64, which is the same on every machine and in every run."""
    value = keys.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % (1 << 64))
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((value ^ (value >> np.uint64(31))) >> np.uint64(11)) / float(1 << 53)


def _seeds(shop: Catalogue, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the items queries start from: half by popularity, half in turn so that the tail is asked for too."""
    weight = np.cumsum(shop.world.popularity.astype(np.float64))
    popular = np.searchsorted(weight, rng.random(count) * weight[-1], side="right")
    turns = np.concatenate([rng.permutation(len(weight)) for _ in range(count // len(weight) + 1)])[:count]
    return np.where(rng.random(count) < 0.5, np.minimum(popular, len(weight) - 1), turns)


def _choose_masks(shop: Catalogue, kind: str, seeds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Give each query, of a few drawn sets of wishes, the one met by nearest to the wanted number of items."""
    masks = MASKS[kind]
    tries = {"broad": 2, "fits": 1}.get(kind, 3)
    drawn = rng.integers(0, len(masks), (tries, len(seeds)))
    gap = np.full((tries, len(seeds)), np.inf)
    for place, mask in enumerate(masks):
        trial, row = np.nonzero(drawn == place)
        _, count = shop.indexes[mask].find(shop.key(mask, seeds[row]))
        gap[trial, row] = np.abs(np.log(count / _WANTED))
    best = drawn[np.argmin(gap, axis=0), np.arange(len(seeds))]
    return np.array([int(mask) for mask in masks])[best]


def draw_queries(shop: Catalogue, seed: int) -> Queries:
    """Draw more queries than the quota asks for; which of them stay is decided once they have words.

    Splits are drawn by key, so that whatever is asked in one split is asked in no other.

    >>> from restd.data.shop.wishes import build_catalogue
    >>> from restd.data.shop.world import build_world
    >>> drawn = draw_queries(build_catalogue(build_world(500, 0), INDEXED), 0)
    >>> set(drawn.key[drawn.split == 0]) & set(drawn.key[drawn.split == 2])
    set()
    """
    wanted = quota(len(shop.world))
    rng = np.random.default_rng([seed, 3])
    count = ceil(1.5 * (wanted.train + 2 * wanted.held)) + 300
    seeds = _seeds(shop, count, rng)
    kind = rng.choice(len(KINDS), size=count, p=_SHARES)
    kind[(shop.world.host[seeds] >= 0) & (rng.random(count) < _FITS_SHARE)] = KINDS.index("fits")
    mask = np.zeros(count, dtype=np.int64)
    key = np.zeros(count, dtype=np.int64)
    for place, name in enumerate(KINDS):
        rows = np.flatnonzero(kind == place)
        mask[rows] = _choose_masks(shop, name, seeds[rows], rng)
    for value in np.unique(mask):
        rows = np.flatnonzero(mask == value)
        key[rows] = shop.key(Wish(int(value)), seeds[rows])
    share = wanted.held / (wanted.train + 2 * wanted.held)
    spread = _mixed(key, seed)
    split = np.where(spread < share, 2, np.where(spread < 2 * share, 1, 0))
    return Queries(kind, mask, seeds, key, split)
