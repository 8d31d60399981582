"""Queries before they have words: a seed item and a set of facets each, split by intent rather than by wording."""

from dataclasses import dataclass
from itertools import combinations
from math import ceil

import numpy as np

from restd._splitmix import splitmix64
from restd.shop.intents import Catalogue, Facet, facet_column
from restd.shop.world import World

KINDS = ("broad", "attributes", "model", "fits", "need", "misspelt")
"""Kinds of query: broad, several attributes, brand and model, accessory for a model, described need, misspelt."""

_SHARES = (0.15, 0.33, 0.16, 0.0, 0.22, 0.14)
_FITS_SHARE = 0.4  # share of the queries with an accessory as seed item that ask for what it fits

_NO_FACETS = Facet(0)
_FACETS = (Facet.COLOR, Facet.MATERIAL, Facet.SIZE, Facet.FEATURE, Facet.BRAND)


def _facet_sets(facets: tuple[Facet, ...], size: int, *, base: Facet = _NO_FACETS) -> tuple[Facet, ...]:
    """Return every set of `size` facets, each joined with `base`."""
    masks = []
    for combo in combinations(facets, size):
        mask = base
        for facet in combo:
            mask |= facet
        masks.append(mask)
    return tuple(masks)


_UNBRANDED = _FACETS[:4]
_BRAND_AND_MODEL = Facet.BRAND | Facet.MODEL
_ATTRIBUTES = _facet_sets(_FACETS, 2) + _facet_sets(_FACETS, 3) + _facet_sets(_UNBRANDED, 4)
MASKS: dict[str, tuple[Facet, ...]] = {
    "broad": (_NO_FACETS, *_facet_sets(_FACETS, 1)),
    "attributes": _ATTRIBUTES,
    "model": (_BRAND_AND_MODEL, _BRAND_AND_MODEL | Facet.COLOR, _BRAND_AND_MODEL | Facet.SIZE),
    "fits": (Facet.FITS, *_facet_sets(_FACETS, 1, base=Facet.FITS)),
    "need": (
        _NO_FACETS,
        *_facet_sets(_UNBRANDED, 1),
        *_facet_sets(_UNBRANDED[:3], 1, base=Facet.FEATURE),
        *_facet_sets(_UNBRANDED, 3),
        *_facet_sets(_UNBRANDED, 4),
    ),
    "misspelt": (*_facet_sets(_FACETS, 1), *_ATTRIBUTES, _BRAND_AND_MODEL, _BRAND_AND_MODEL | Facet.COLOR),
}
"""The sets of facets each kind of query can have."""

INDEXED = tuple(dict.fromkeys(mask for group in MASKS.values() for mask in group))
"""All sets of facets that items are indexed by, including those that grading looks up with one facet less."""

_TARGET_EXACT = 5.0  # exact items per query; facets are picked to come close to it where the catalogue allows


@dataclass(frozen=True, slots=True)
class Queries:
    """One entry per query in each column. A query asks for those attributes of its `seed` item that `mask` names."""

    kind: np.ndarray
    mask: np.ndarray
    seed: np.ndarray
    key: np.ndarray
    split: np.ndarray

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: np.ndarray) -> "Queries":
        """Return the queries at `rows`."""
        return Queries(self.kind[rows], self.mask[rows], self.seed[rows], self.key[rows], self.split[rows])

    def intent(self, world: World, row: int) -> tuple[int, dict[Facet, int]]:
        """Return the leaf of one query and the value of each facet it asks for."""
        seed = self.seed[row]
        facets = Facet(int(self.mask[row]))
        return int(world.leaf[seed]), {facet: int(facet_column(world, facet)[seed]) for facet in facets}


@dataclass(frozen=True, slots=True)
class Quota:
    """Number of queries per split."""

    train: int
    held_out: int
    """Queries of the validation split, and again of the test split."""


def quota(items: int) -> Quota:
    """Return the number of queries for a catalogue of `items` items.

    >>> quota(20_000), quota(1_000_000)
    (Quota(train=12000, held_out=2060), Quota(train=600000, held_out=5000))
    """
    return Quota(train=ceil(0.6 * items), held_out=max(250, min(ceil(0.11 * items), 2000 + ceil(0.003 * items))))


def _hash_to_unit(keys: np.ndarray, seed: int) -> np.ndarray:
    """Hash keys to [0, 1) with splitmix64, which gives the same values on every machine and in every run."""
    start = np.array([seed], np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # offset of the seed in the sequence
    mixed = splitmix64(keys.astype(np.int64) + start.view(np.int64))
    return (mixed.view(np.uint64) >> np.uint64(11)) / float(1 << 53)


def _draw_seeds(catalogue: Catalogue, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the seed items of queries: half by popularity, half in turn so that rare items have queries too."""
    weight = np.cumsum(catalogue.world.popularity.astype(np.float64))
    popular = np.searchsorted(weight, rng.random(count) * weight[-1], side="right")
    turns = np.concatenate([rng.permutation(len(weight)) for _ in range(count // len(weight) + 1)])[:count]
    return np.where(rng.random(count) < 0.5, np.minimum(popular, len(weight) - 1), turns)


def _choose_masks(catalogue: Catalogue, kind: str, seeds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a few sets of facets per query and pick the one whose number of exact items is closest to the target."""
    masks = MASKS[kind]
    tries = {"broad": 2, "fits": 1}.get(kind, 3)
    mask_draws = rng.integers(0, len(masks), (tries, len(seeds)))
    gap = np.full((tries, len(seeds)), np.inf)
    for position, mask in enumerate(masks):
        trial, row = np.nonzero(mask_draws == position)
        _, count = catalogue.indexes[mask].find(catalogue.key(mask, seeds[row]))
        gap[trial, row] = np.abs(np.log(count / _TARGET_EXACT))
    best = mask_draws[np.argmin(gap, axis=0), np.arange(len(seeds))]
    return np.array([int(mask) for mask in masks])[best]


def draw_queries(catalogue: Catalogue, seed: int) -> Queries:
    """Draw more queries than the quota, because those whose text repeats another's are dropped later.

    The split depends on the key alone, so no two splits share an intent.

    >>> from restd.shop.intents import build_catalogue
    >>> from restd.shop.world import build_world
    >>> queries = draw_queries(build_catalogue(build_world(500, 0), INDEXED), 0)
    >>> set(queries.key[queries.split == 0]) & set(queries.key[queries.split == 2])
    set()
    """
    target = quota(len(catalogue.world))
    rng = np.random.default_rng([seed, 3])
    count = ceil(1.5 * (target.train + 2 * target.held_out)) + 300
    seeds = _draw_seeds(catalogue, count, rng)
    kind = rng.choice(len(KINDS), size=count, p=_SHARES)
    kind[(catalogue.world.host[seeds] >= 0) & (rng.random(count) < _FITS_SHARE)] = KINDS.index("fits")
    mask = np.zeros(count, dtype=np.int64)
    key = np.zeros(count, dtype=np.int64)
    for position, name in enumerate(KINDS):
        rows = np.flatnonzero(kind == position)
        mask[rows] = _choose_masks(catalogue, name, seeds[rows], rng)
    for value in np.unique(mask):
        rows = np.flatnonzero(mask == value)
        key[rows] = catalogue.key(Facet(int(value)), seeds[rows])
    share = target.held_out / (target.train + 2 * target.held_out)
    unit = _hash_to_unit(key, seed)
    split = np.where(unit < share, 2, np.where(unit < 2 * share, 1, 0))
    return Queries(kind, mask, seeds, key, split)
