"""Shoppers: who takes what after what, drawn by rule, so that the next purchase can be learnt from those before it.

A shopper has favourite leaves, a brand in each department, two colours and a level of price. Purchases come in
projects. A project begins in a favourite leaf and sets a brand and a colour. What fits the bought product comes next,
and hardly ever before it; then the leaf that follows the bought one, in one direction only; and so on until the
shopper begins another project. Impulses interrupt projects without ending them, so the item before the last one
matters too.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from restd.data.histories import Histories
from restd.data.shop.items import numbered
from restd.data.shop.taxonomy import Taxonomy
from restd.data.shop.wishes import Catalogue, Wish, build_catalogue
from restd.data.shop.world import World, pick_value
from restd.errors import DataError

FEWEST_EVENTS, MOST_EVENTS = 5, 40
"""How long a history can be."""
CORE = 5
"""Events that each user and each taken item have, where the catalogue is not too large for the users."""

_FURTHER = 4.2  # purchases after the fewest, on average
_CHUNK = 4096  # shoppers drawn together
_SHELF = 160  # a shopper looks at so many of a leaf's items, the most popular ones
_GLANCES = 16  # popular items that catch the eye at each purchase, one of which can become an impulse

_IMPULSE = 0.1
_BEGIN = 0.15
_FIT_FIRST, _FIT_AGAIN = 0.7, 0.25  # what fits the bought product: the first such purchase, and a further one

_FAVOURITES = (0.5, 0.3, 0.2)  # how often a project begins in the first, the second, the third favourite leaf
_SAME_DEPARTMENT = 0.6  # of the further favourites
_LEVELS = 0.35  # spread of the shoppers' levels, in logarithms of the price
_TOLERANCE = 0.18  # how far a price strays from its shopper's level

# What an item gains, in logarithms of its odds, by its popularity, for the project it joins and for its shopper.
_APPEAL = 0.2
_PROJECT_BRAND, _PROJECT_COLOR = 2.2, 1.6
_OWN_BRAND, _OWN_COLOR = 1.2, 0.9
_VERSION = -5.0  # of a product the shopper has
_LAST_RESORT = -1e6  # below every other item, above those the shopper has


class _Move(IntEnum):
    """What a shopper does next."""

    BEGIN = 0
    FIT = 1
    FOLLOW = 2
    IMPULSE = 3


@dataclass(frozen=True, slots=True)
class _Shelves:
    """The shop as its shoppers see it."""

    shop: Catalogue
    follows: np.ndarray
    """The leaf after each leaf."""
    fitted: np.ndarray
    """Whether anything fits the product of each item."""
    expense: np.ndarray
    """Logarithm of each item's price over its leaf's usual one."""
    appeal: np.ndarray
    crowd: np.ndarray
    """Popularity, summed up from the first item to each."""
    width: int


@dataclass(frozen=True, slots=True)
class _Tastes:
    """Columns over shoppers that never change."""

    leaves: np.ndarray
    brands: np.ndarray
    """The favoured brand of each department."""
    colors: np.ndarray
    level: np.ndarray

    def take(self, rows: np.ndarray) -> "_Tastes":
        """Return some of the shoppers."""
        return _Tastes(self.leaves[rows], self.brands[rows], self.colors[rows], self.level[rows])


@dataclass(frozen=True, slots=True)
class _Projects:
    """Columns over shoppers: the item a project began with, and its latest item that is no accessory; -1 before any.

    `fits` counts the accessories bought for the latest item.
    """

    first: np.ndarray
    latest: np.ndarray
    fits: np.ndarray

    def take(self, rows: np.ndarray) -> "_Projects":
        """Return some of the shoppers."""
        return _Projects(self.first[rows], self.latest[rows], self.fits[rows])

    def after(self, moves: np.ndarray, chosen: np.ndarray) -> "_Projects":
        """Return where the projects stand once these items are taken."""
        moved = (moves == _Move.BEGIN) | (moves == _Move.FOLLOW)
        return _Projects(
            first=np.where(moves == _Move.BEGIN, chosen, self.first),
            latest=np.where(moved, chosen, self.latest),
            fits=np.where(moved, 0, self.fits + (moves == _Move.FIT)),
        )


def following_leaves(tree: Taxonomy) -> np.ndarray:
    """Return the leaf that shoppers turn to after each leaf: its companion, else the next of the department.

    Of two leaves that accompany each other the dearer comes first, so no two leaves follow each other; and as far as
    that allows, each leaf follows one other. After an accessory comes what follows the leaf it is made for.

    >>> from restd.data.shop.taxonomy import load_taxonomy
    >>> tree = load_taxonomy()
    >>> keys = [leaf.key for leaf in tree.leaves]
    >>> after = following_leaves(tree)
    >>> [keys[after[keys.index(key)]] for key in ("kettle", "phone", "phone_case")]
    ['mug', 'headphones', 'headphones']
    """
    after = np.full(len(tree.leaves), -1, dtype=np.int64)
    for place, leaf in enumerate(tree.leaves):
        other = tree.leaves[leaf.companion]
        leads = leaf.companion >= 0 and (other.companion != place or other.price < leaf.price)
        if leads and leaf.companion not in after:
            after[place] = leaf.companion
    for place, leaf in enumerate(tree.leaves):
        if leaf.host < 0 and after[place] < 0:
            after[place] = _next_leaf(tree, after, place)
    hosts = np.array([leaf.host for leaf in tree.leaves])
    return np.where(hosts >= 0, after[hosts], after)


def _next_leaf(tree: Taxonomy, after: np.ndarray, place: int) -> int:
    """Return the next leaf, round the tree, that is no accessory and does not lead straight back.

    One that follows no other is preferred, then one of the same department.
    """
    own = tree.leaves[place].department
    others = [(place + step) % len(tree.leaves) for step in range(1, len(tree.leaves))]
    others = [at for at in others if tree.leaves[at].host < 0 and after[at] != place]
    return min(others, key=lambda at: (at in after, tree.leaves[at].department != own))


def _shelves(world: World) -> _Shelves:
    shop = build_catalogue(world, [Wish(0)])
    _, accessories = shop.accessories.find(world.product)
    usual = np.array([np.median(np.log(world.price[world.leaf == leaf])) for leaf in range(len(world.taxonomy.leaves))])
    return _Shelves(
        shop=shop,
        follows=following_leaves(world.taxonomy),
        fitted=accessories > 0,
        expense=np.log(world.price) - usual[world.leaf],
        appeal=np.log(world.popularity),
        crowd=np.cumsum(world.popularity.astype(np.float64)),
        width=min(_SHELF, int(np.bincount(world.leaf).max())),
    )


def _draw_tastes(world: World, count: int, rng: np.random.Generator) -> _Tastes:
    """Draw what shoppers like: leaves that are not accessories, brands as often as the shop sells them."""
    nodes = world.taxonomy.leaves
    departments = np.array([node.department for node in nodes])
    plain = np.array([node.host < 0 for node in nodes])
    places = range(len(world.taxonomy.departments))
    within = [tuple(np.flatnonzero(plain & (departments == place)).tolist()) for place in places]
    leaves = rng.choice(np.flatnonzero(plain), (count, len(_FAVOURITES)))
    near = pick_value(within, departments[leaves[:, :1]], rng.integers(0, 1 << 16, leaves.shape))
    near[:, 0] = leaves[:, 0]
    sold = [world.brand[departments[world.leaf] == place] for place in places]
    return _Tastes(
        leaves=np.where(rng.random(leaves.shape) < _SAME_DEPARTMENT, near, leaves),
        brands=np.stack([rng.choice(brands, count) for brands in sold], axis=1),
        colors=world.color[rng.integers(0, len(world), (count, 2))],
        level=rng.normal(0.0, _LEVELS, count),
    )


def _draw_moves(shelves: _Shelves, projects: _Projects, rng: np.random.Generator) -> np.ndarray:
    chance, fit = rng.random((2, len(projects.latest)))
    wanted = np.where(projects.fits == 0, _FIT_FIRST, _FIT_AGAIN)
    moves = np.where(shelves.fitted[projects.latest] & (fit < wanted), _Move.FIT, _Move.FOLLOW)
    moves[chance < _IMPULSE + _BEGIN] = _Move.BEGIN
    moves[chance < _IMPULSE] = _Move.IMPULSE
    moves[projects.latest < 0] = _Move.BEGIN
    return moves


def _shown(
    shelves: _Shelves, tastes: _Tastes, projects: _Projects, moves: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the items each shopper looks at for a move, -1 where there are fewer."""
    shop = shelves.shop
    everyone = np.arange(len(moves))
    favourite = tastes.leaves[everyone, rng.choice(len(_FAVOURITES), size=len(moves), p=_FAVOURITES)]
    leaf = np.where(moves == _Move.BEGIN, favourite, shelves.follows[shop.world.leaf[projects.latest]])
    shown = shop.indexes[Wish(0)].take(leaf, shelves.width).astype(np.int64)
    fit = moves == _Move.FIT
    shown[fit] = shop.accessories.take(shop.world.product[projects.latest[fit]], shelves.width)
    shown[moves == _Move.IMPULSE] = -1
    return shown


def _liking(
    shelves: _Shelves, tastes: _Tastes, projects: _Projects, moves: np.ndarray, shown: np.ndarray
) -> np.ndarray:
    """Return how much each shopper likes each item shown: its brand, colour, price and popularity."""
    world = shelves.shop.world
    department = np.array([node.department for node in world.taxonomy.leaves])[world.leaf[shown]]
    brand, color = world.brand[shown], world.color[shown]
    first = projects.first[:, None]
    ongoing = (moves != _Move.BEGIN)[:, None]
    gap = (shelves.expense[shown] - tastes.level[:, None]) / _TOLERANCE
    liking = _APPEAL * shelves.appeal[shown] - gap * gap / 2
    liking += _PROJECT_BRAND * (ongoing & (brand == world.brand[first]))
    liking += _PROJECT_COLOR * (ongoing & (color == world.color[first]))
    liking += _OWN_BRAND * (brand == np.take_along_axis(tastes.brands, department, axis=1))
    liking += _OWN_COLOR * (color[:, :, None] == tastes.colors[:, None, :]).any(axis=2)
    return np.where(shown >= 0, liking, -np.inf)


def _without_owned(world: World, liking: np.ndarray, shown: np.ndarray, bought: np.ndarray) -> np.ndarray:
    """Rule out the items a shopper has, and make other versions of the same products unlikely."""
    liking, product = liking.copy(), world.product[shown]
    for past in bought.T:
        liking[product == world.product[past][:, None]] += _VERSION
        liking[shown == past[:, None]] = -np.inf
    return liking


def _with_glances(
    shelves: _Shelves, shown: np.ndarray, liking: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Add popular items, which are taken only where nothing else is left: on impulse, or when a shelf is empty."""
    draws = rng.random((len(shown), _GLANCES)) * shelves.crowd[-1]
    glances = np.minimum(np.searchsorted(shelves.crowd, draws, side="right"), len(shelves.crowd) - 1)
    return np.hstack([shown, glances]), np.hstack([liking, np.full(glances.shape, _LAST_RESORT)])


def _draw_chunk(shelves: _Shelves, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the purchases of shoppers, one row each, padded with -1."""
    world, rows = shelves.shop.world, np.arange(len(lengths))
    tastes = _draw_tastes(world, len(rows), rng)
    projects = _Projects(np.full(len(rows), -1), np.full(len(rows), -1), np.zeros(len(rows), dtype=np.int64))
    bought = np.full((len(rows), lengths.max()), -1, dtype=np.int64)
    for step in range(lengths.max()):
        going = lengths[rows] > step
        rows, tastes, projects = rows[going], tastes.take(going), projects.take(going)
        moves = _draw_moves(shelves, projects, rng)
        shown = _shown(shelves, tastes, projects, moves, rng)
        liking = _liking(shelves, tastes, projects, moves, shown)
        shown, liking = _with_glances(shelves, shown, liking, rng)
        liking = _without_owned(world, liking, shown, bought[rows, :step])
        best = (liking + rng.gumbel(size=liking.shape)).argmax(axis=1)
        chosen = shown[np.arange(len(rows)), best]
        projects = projects.after(moves, chosen)
        bought[rows, step] = chosen
    return bought


def draw_purchases(world: World, users: int, seed: int) -> Histories:
    """Draw what every shopper takes, before any core; the same arguments always give the same purchases.

    >>> from restd.data.shop.world import build_world
    >>> drawn = draw_purchases(build_world(500, 0), 100, 0)
    >>> len(drawn), int(drawn.lengths.min()) >= FEWEST_EVENTS, drawn.once() is drawn
    (100, True, True)
    """
    shelves = _shelves(world)
    taken, counts = [], []
    for start in range(0, users, _CHUNK):
        rng = np.random.default_rng([seed, 6, start])
        further = rng.geometric(1 / (1 + _FURTHER), min(_CHUNK, users - start)) - 1
        lengths = np.minimum(FEWEST_EVENTS + further, MOST_EVENTS)
        bought = _draw_chunk(shelves, lengths, rng)
        taken.append(bought[bought >= 0])
        counts.append((bought >= 0).sum(axis=1))
    items, places = np.unique(np.concatenate(taken), return_inverse=True)
    first = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    names = (numbered("U", np.arange(users)), numbered("S", items))
    return Histories(*names, first, places.astype(np.int64)).once()


def thinned(drawn: Histories) -> Histories:
    """Return the core of the purchases, or all of them where that would cost half of the shoppers."""
    try:
        held = drawn.core(CORE)
    except DataError:
        return drawn
    return held if 2 * len(held) > len(drawn) else drawn


def shopper_notes(drawn: Histories, held: Histories, items: int) -> tuple[str, ...]:
    """Return sentences that say how many shoppers, purchases and items there are."""
    lengths = held.lengths
    lost, left = drawn.events - held.events, len(drawn) - len(held)
    core = (
        f"{lost:,} purchases and {left:,} shoppers were dropped so that each shopper and each taken item has {CORE}."
        if np.bincount(held.taken).min() >= CORE
        else f"Items with fewer than {CORE} takers are kept: the shoppers are too few for so large a catalogue."
    )
    return (
        "Every shopper is invented; purchases follow by rule from tastes, from what fits what, and from prices.",
        f"{held.events:,} purchases of {len(held):,} shoppers, {lengths.min()} to {lengths.max()} each and "
        f"{lengths.mean():.1f} on average. {core}",
        f"{items - len(held.items):,} of {items:,} items were taken by nobody but can be recommended.",
    )
