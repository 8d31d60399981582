"""Purchase histories drawn by rule, so that the next purchase can be learnt from the ones before it.

A shopper has favourite leaves, a favourite brand per department, two favourite colours and a price level. Purchases
come in projects. A project starts in a favourite leaf and sets a brand and a colour. Accessories of the product follow,
hardly ever before it; then an item of the leaf that follows, in one direction only; and so on until the shopper starts
another project. Impulse purchases interrupt a project without ending it, so the item before the last one matters too.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from restd.data.histories import Histories
from restd.errors import DataError
from restd.shop.intents import Catalogue, Facet, build_catalogue
from restd.shop.items import make_ids
from restd.shop.taxonomy import Taxonomy
from restd.shop.world import World, pick_value

MIN_EVENTS, MAX_EVENTS = 5, 40
"""Shortest and longest history."""
CORE = 5
"""Minimum number of events per user and per bought item, unless the catalogue is too large for the users."""

_MEAN_FURTHER_EVENTS = 4.2  # mean number of purchases beyond `MIN_EVENTS`
_CHUNK = 4096  # shoppers drawn together
_MAX_CANDIDATES = 160  # a shopper considers at most this many items of a leaf, the most popular ones
_IMPULSE_CANDIDATES = 16  # popular items drawn at each purchase, one of which can be bought on impulse

_IMPULSE = 0.1  # probability of an impulse purchase
_BEGIN = 0.15  # probability of a new project
_FIT_FIRST, _FIT_AGAIN = 0.7, 0.25  # probability of a first and of a further accessory

_FAVOURITE_SHARES = (0.5, 0.3, 0.2)  # probability that a project starts in the first, second, third favourite leaf
_SAME_DEPARTMENT = 0.6  # probability that a further favourite leaf is of the first one's department
_PRICE_LEVEL_SPREAD = 0.35  # standard deviation of price levels among shoppers, in log price
_PRICE_TOLERANCE = 0.18  # standard deviation of a shopper's purchases around the price level, in log price

# Terms of the log-odds of an item: popularity, match with the project, match with the shopper.
_POPULARITY_WEIGHT = 0.2
_PROJECT_BRAND, _PROJECT_COLOR = 2.2, 1.6
_SHOPPER_BRAND, _SHOPPER_COLOR = 1.2, 0.9
_OWNED_PRODUCT = -5.0  # for other variants of a product the shopper owns
_LAST_RESORT = -1e6  # below every other item, above the items the shopper owns


class _Move(IntEnum):
    """The next step of a shopper: start a project, buy an accessory, go on to the next leaf, or buy on impulse."""

    BEGIN = 0
    FIT = 1
    FOLLOW = 2
    IMPULSE = 3


@dataclass(frozen=True, slots=True)
class _Shop:
    """The catalogue and the columns that purchases depend on, one entry per item unless stated."""

    catalogue: Catalogue
    follows: np.ndarray
    """The leaf that follows each leaf."""
    fitted: np.ndarray
    """Whether the product has accessories."""
    log_relative_price: np.ndarray
    """Logarithm of the price divided by the median price of the leaf."""
    log_popularity: np.ndarray
    cumulative_popularity: np.ndarray
    """Cumulative sum over the items."""
    width: int
    """Number of candidate items per purchase, before impulse items."""


@dataclass(frozen=True, slots=True)
class _Tastes:
    """Fixed preferences, one entry per shopper."""

    leaves: np.ndarray
    brands: np.ndarray
    """The favourite brand in each department."""
    colors: np.ndarray
    level: np.ndarray

    def take(self, rows: np.ndarray) -> "_Tastes":
        """Return some of the shoppers."""
        return _Tastes(self.leaves[rows], self.brands[rows], self.colors[rows], self.level[rows])


@dataclass(frozen=True, slots=True)
class _Projects:
    """The current project of each shopper: its first item and its latest item that is not an accessory, or -1.

    `fits` is the number of accessories bought for the latest item.
    """

    first: np.ndarray
    latest: np.ndarray
    fits: np.ndarray

    def take(self, rows: np.ndarray) -> "_Projects":
        """Return some of the shoppers."""
        return _Projects(self.first[rows], self.latest[rows], self.fits[rows])

    def after(self, moves: np.ndarray, items: np.ndarray) -> "_Projects":
        """Return the projects after these items are bought."""
        moved = (moves == _Move.BEGIN) | (moves == _Move.FOLLOW)
        return _Projects(
            first=np.where(moves == _Move.BEGIN, items, self.first),
            latest=np.where(moved, items, self.latest),
            fits=np.where(moved, 0, self.fits + (moves == _Move.FIT)),
        )


def following_leaves(taxonomy: Taxonomy) -> np.ndarray:
    """Return the leaf that shoppers go on to after each leaf: its companion, or the next leaf of the department.

    No two leaves follow each other: of two mutual companions the more expensive one comes first. As far as that
    allows, each leaf follows exactly one other. An accessory is followed by whatever follows the leaf it fits.

    >>> from restd.shop.taxonomy import load_taxonomy
    >>> taxonomy = load_taxonomy()
    >>> keys = [leaf.key for leaf in taxonomy.leaves]
    >>> after = following_leaves(taxonomy)
    >>> [keys[after[keys.index(key)]] for key in ("kettle", "phone", "phone_case")]
    ['mug', 'headphones', 'headphones']
    """
    after = np.full(len(taxonomy.leaves), -1, dtype=np.int64)
    for position, leaf in enumerate(taxonomy.leaves):
        other = taxonomy.leaves[leaf.companion]
        leads = leaf.companion >= 0 and (other.companion != position or other.price < leaf.price)
        if leads and leaf.companion not in after:
            after[position] = leaf.companion
    for position, leaf in enumerate(taxonomy.leaves):
        if leaf.host < 0 and after[position] < 0:
            after[position] = _next_leaf(taxonomy, after, position)
    hosts = np.array([leaf.host for leaf in taxonomy.leaves])
    return np.where(hosts >= 0, after[hosts], after)


def _next_leaf(taxonomy: Taxonomy, after: np.ndarray, position: int) -> int:
    """Return the next leaf, in cyclic order, that is not an accessory and is not followed by this one.

    Leaves that follow no other leaf are preferred, then leaves of the same department.
    """
    department = taxonomy.leaves[position].department
    others = [(position + step) % len(taxonomy.leaves) for step in range(1, len(taxonomy.leaves))]
    others = [at for at in others if taxonomy.leaves[at].host < 0 and after[at] != position]
    return min(others, key=lambda at: (at in after, taxonomy.leaves[at].department != department))


def _make_shop(world: World) -> _Shop:
    catalogue = build_catalogue(world, [Facet(0)])
    _, accessories = catalogue.accessories.find(world.product)
    leaves = range(len(world.taxonomy.leaves))
    median_log_price = np.array([np.median(np.log(world.price[world.leaf == leaf])) for leaf in leaves])
    return _Shop(
        catalogue=catalogue,
        follows=following_leaves(world.taxonomy),
        fitted=accessories > 0,
        log_relative_price=np.log(world.price) - median_log_price[world.leaf],
        log_popularity=np.log(world.popularity),
        cumulative_popularity=np.cumsum(world.popularity.astype(np.float64)),
        width=min(_MAX_CANDIDATES, int(np.bincount(world.leaf).max())),
    )


def _draw_tastes(world: World, count: int, rng: np.random.Generator) -> _Tastes:
    """Draw preferences: leaves without the accessories, brands in proportion to their number of items."""
    nodes = world.taxonomy.leaves
    departments = np.array([node.department for node in nodes])
    plain = np.array([node.host < 0 for node in nodes])
    positions = range(len(world.taxonomy.departments))
    within = [tuple(np.flatnonzero(plain & (departments == position)).tolist()) for position in positions]
    leaves = rng.choice(np.flatnonzero(plain), (count, len(_FAVOURITE_SHARES)))
    near_leaves = pick_value(within, departments[leaves[:, :1]], rng.integers(0, 1 << 16, leaves.shape))
    near_leaves[:, 0] = leaves[:, 0]
    sold_brands = [world.brand[departments[world.leaf] == position] for position in positions]
    return _Tastes(
        leaves=np.where(rng.random(leaves.shape) < _SAME_DEPARTMENT, near_leaves, leaves),
        brands=np.stack([rng.choice(brands, count) for brands in sold_brands], axis=1),
        colors=world.color[rng.integers(0, len(world), (count, 2))],
        level=rng.normal(0.0, _PRICE_LEVEL_SPREAD, count),
    )


def _draw_moves(shop: _Shop, projects: _Projects, rng: np.random.Generator) -> np.ndarray:
    move_draw, fit_draw = rng.random((2, len(projects.latest)))
    fit_probability = np.where(projects.fits == 0, _FIT_FIRST, _FIT_AGAIN)
    moves = np.where(shop.fitted[projects.latest] & (fit_draw < fit_probability), _Move.FIT, _Move.FOLLOW)
    moves[move_draw < _IMPULSE + _BEGIN] = _Move.BEGIN
    moves[move_draw < _IMPULSE] = _Move.IMPULSE
    moves[projects.latest < 0] = _Move.BEGIN
    return moves


def _candidate_items(
    shop: _Shop, tastes: _Tastes, projects: _Projects, moves: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the candidate items of each shopper for a move, padded with -1."""
    catalogue = shop.catalogue
    rows = np.arange(len(moves))
    favourite = tastes.leaves[rows, rng.choice(len(_FAVOURITE_SHARES), size=len(moves), p=_FAVOURITE_SHARES)]
    leaf = np.where(moves == _Move.BEGIN, favourite, shop.follows[catalogue.world.leaf[projects.latest]])
    candidates = catalogue.indexes[Facet(0)].take(leaf, shop.width).astype(np.int64)
    fit = moves == _Move.FIT
    candidates[fit] = catalogue.accessories.take(catalogue.world.product[projects.latest[fit]], shop.width)
    candidates[moves == _Move.IMPULSE] = -1
    return candidates


def _utilities(
    shop: _Shop, tastes: _Tastes, projects: _Projects, moves: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """Return the utility (log-odds) of each candidate from its brand, colour, price and popularity."""
    world = shop.catalogue.world
    department = np.array([node.department for node in world.taxonomy.leaves])[world.leaf[candidates]]
    brand, color = world.brand[candidates], world.color[candidates]
    first = projects.first[:, None]
    ongoing = (moves != _Move.BEGIN)[:, None]
    gap = (shop.log_relative_price[candidates] - tastes.level[:, None]) / _PRICE_TOLERANCE
    utility = _POPULARITY_WEIGHT * shop.log_popularity[candidates] - gap * gap / 2
    utility += _PROJECT_BRAND * (ongoing & (brand == world.brand[first]))
    utility += _PROJECT_COLOR * (ongoing & (color == world.color[first]))
    utility += _SHOPPER_BRAND * (brand == np.take_along_axis(tastes.brands, department, axis=1))
    utility += _SHOPPER_COLOR * (color[:, :, None] == tastes.colors[:, None, :]).any(axis=2)
    return np.where(candidates >= 0, utility, -np.inf)


def _penalise_owned(world: World, utility: np.ndarray, candidates: np.ndarray, purchases: np.ndarray) -> np.ndarray:
    """Exclude the items a shopper owns and make other variants of the same products unlikely."""
    utility, product = utility.copy(), world.product[candidates]
    for past in purchases.T:
        utility[product == world.product[past][:, None]] += _OWNED_PRODUCT
        utility[candidates == past[:, None]] = -np.inf
    return utility


def _add_impulse_items(
    shop: _Shop, candidates: np.ndarray, utility: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Add popular items, which are bought only if there is no other candidate: on impulse, or when none is left."""
    cumulative = shop.cumulative_popularity
    draws = rng.random((len(candidates), _IMPULSE_CANDIDATES)) * cumulative[-1]
    impulse_items = np.minimum(np.searchsorted(cumulative, draws, side="right"), len(cumulative) - 1)
    return np.hstack([candidates, impulse_items]), np.hstack([utility, np.full(impulse_items.shape, _LAST_RESORT)])


def _draw_chunk(shop: _Shop, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the purchases, one row per shopper, padded with -1."""
    world, rows = shop.catalogue.world, np.arange(len(lengths))
    tastes = _draw_tastes(world, len(rows), rng)
    projects = _Projects(np.full(len(rows), -1), np.full(len(rows), -1), np.zeros(len(rows), dtype=np.int64))
    purchases = np.full((len(rows), lengths.max()), -1, dtype=np.int64)
    for step in range(lengths.max()):
        active = lengths[rows] > step
        rows, tastes, projects = rows[active], tastes.take(active), projects.take(active)
        moves = _draw_moves(shop, projects, rng)
        candidates = _candidate_items(shop, tastes, projects, moves, rng)
        utility = _utilities(shop, tastes, projects, moves, candidates)
        candidates, utility = _add_impulse_items(shop, candidates, utility, rng)
        utility = _penalise_owned(world, utility, candidates, purchases[rows, :step])
        best = (utility + rng.gumbel(size=utility.shape)).argmax(axis=1)
        items = candidates[np.arange(len(rows)), best]
        projects = projects.after(moves, items)
        purchases[rows, step] = items
    return purchases


def draw_purchases(world: World, users: int, seed: int) -> Histories:
    """Draw the purchases of every shopper, before `thin_to_core`. The same arguments always give the same purchases.

    >>> from restd.shop.world import build_world
    >>> histories = draw_purchases(build_world(500, 0), 100, 0)
    >>> len(histories), int(histories.lengths.min()) >= MIN_EVENTS, histories.once() is histories
    (100, True, True)
    """
    shop = _make_shop(world)
    bought_items, counts = [], []
    for start in range(0, users, _CHUNK):
        rng = np.random.default_rng([seed, 6, start])
        further = rng.geometric(1 / (1 + _MEAN_FURTHER_EVENTS), min(_CHUNK, users - start)) - 1
        lengths = np.minimum(MIN_EVENTS + further, MAX_EVENTS)
        purchases = _draw_chunk(shop, lengths, rng)
        bought_items.append(purchases[purchases >= 0])
        counts.append((purchases >= 0).sum(axis=1))
    items, positions = np.unique(np.concatenate(bought_items), return_inverse=True)
    first = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    ids = (make_ids("U", np.arange(users)), make_ids("S", items))
    return Histories(*ids, first, positions.astype(np.int64)).once()


def thin_to_core(purchases: Histories) -> Histories:
    """Return the `CORE`-core of the purchases, or all of them if the core has at most half of the shoppers."""
    try:
        core = purchases.core(CORE)
    except DataError:
        return purchases
    return core if 2 * len(core) > len(purchases) else purchases


def shopper_notes(purchases: Histories, histories: Histories, items: int) -> tuple[str, ...]:
    """Return sentences with the numbers of shoppers, purchases and items, before and after `thin_to_core`."""
    lengths = histories.lengths
    dropped_events, dropped_users = purchases.events - histories.events, len(purchases) - len(histories)
    core = (
        f"Dropped {dropped_events:,} purchases and {dropped_users:,} shoppers so that every shopper and every bought "
        f"item has at least {CORE} purchases."
        if np.bincount(histories.event_items).min() >= CORE
        else f"Items with fewer than {CORE} buyers were not dropped: there are too few shoppers for this catalogue."
    )
    return (
        "All shoppers are invented; their purchases follow from preferences, compatible products and prices.",
        f"{histories.events:,} purchases by {len(histories):,} shoppers, {lengths.min()} to {lengths.max()} each, "
        f"{lengths.mean():.1f} on average. {core}",
        f"{items - len(histories.items):,} of {items:,} items were bought by nobody but can be recommended.",
    )
