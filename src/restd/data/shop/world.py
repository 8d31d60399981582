"""The world before words: products, their variants and what each of them is like, as columns of numbers."""

from dataclasses import dataclass

import numpy as np

from restd.data.shop.names import Brand, brand_count, draw_brands, model_names
from restd.data.shop.taxonomy import Taxonomy, load_taxonomy

VARIANT_SHARES = (0.25, 0.25, 0.2, 0.13, 0.1, 0.07)
"""How often a product comes in one to six versions."""


@dataclass(frozen=True, slots=True)
class World:
    """Columns over items, and the names of brands and products they point to.

    `size` is a place in the scale of the item's leaf; colours, materials and features are places in the taxonomy.
    `host` is the product an accessory fits, or -1.
    """

    taxonomy: Taxonomy
    brands: tuple[Brand, ...]
    models: list[str]
    product_brand: np.ndarray
    leaf: np.ndarray
    product: np.ndarray
    brand: np.ndarray
    color: np.ndarray
    material: np.ndarray
    size: np.ndarray
    feature: np.ndarray
    host: np.ndarray
    price: np.ndarray
    popularity: np.ndarray

    def __len__(self) -> int:
        return len(self.leaf)


@dataclass(frozen=True, slots=True)
class _Products:
    leaf: np.ndarray
    brand: np.ndarray
    material: np.ndarray
    feature: np.ndarray
    host: np.ndarray
    popularity: np.ndarray
    price: np.ndarray


def _ragged(rows: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows of unequal length to a matrix, beside their lengths."""
    lengths = np.array([len(row) for row in rows])
    table = np.zeros((len(rows), lengths.max()), dtype=np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table, lengths


def pick_value(rows: list[tuple[int, ...]], leaf: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return each leaf's value at a place, counted round its own list."""
    table, lengths = _ragged(rows)
    return table[leaf, places % lengths[leaf]]


def other_value(rows: list[tuple[int, ...]], leaf: np.ndarray, own: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return a value of each leaf's list that is not the given one.

    >>> other_value([(4, 7)], np.array([0, 0]), np.array([4, 7]), np.array([0, 0])).tolist()
    [7, 4]
    """
    drawn = pick_value(rows, leaf, places)
    return np.where(drawn == own, pick_value(rows, leaf, places + 1), drawn)


def _link_hosts(leaf: np.ndarray, popularity: np.ndarray, tree: Taxonomy, rng: np.random.Generator) -> np.ndarray:
    """Give each accessory product the product it fits, popular ones more often."""
    host = np.full(len(leaf), -1, dtype=np.int64)
    for place, node in enumerate(tree.leaves):
        if node.host < 0:
            continue
        mine = np.flatnonzero(leaf == place)
        theirs = np.flatnonzero(leaf == node.host)
        theirs = theirs[np.argsort(-popularity[theirs], kind="stable")]
        host[mine] = theirs[(len(theirs) * rng.random(len(mine)) ** 1.4).astype(np.int64)]
    return host


def _draw_products(count: int, brands: int, tree: Taxonomy, rng: np.random.Generator) -> _Products:
    leaves = len(tree.leaves)
    weights = rng.lognormal(0.0, 0.35, leaves)
    leaf = rng.choice(leaves, size=count, p=weights / weights.sum())
    leaf[:leaves] = np.arange(leaves)  # no leaf of the tree stays empty, however small the shop
    departments = len(tree.departments)
    department = np.array([node.department for node in tree.leaves])[leaf]
    per_department = (brands - 1 - department) // departments + 1
    brand = department + departments * (per_department * rng.random(count) ** 1.6).astype(np.int64)
    material = pick_value(
        [node.materials for node in tree.leaves], leaf, (4 * rng.random(count) ** 1.2).astype(np.int64)
    )
    feature = pick_value([node.features for node in tree.leaves], leaf, rng.integers(0, 1 << 16, count))
    popularity = 1.0 / (3.0 + rng.permutation(count)) ** 0.85
    level = np.array([node.price for node in tree.leaves])[leaf]
    price = level * rng.lognormal(0.0, 0.3, count) * rng.lognormal(0.0, 0.25, brands)[brand]
    return _Products(leaf, brand, material, feature, _link_hosts(leaf, popularity, tree, rng), popularity, price)


def build_world(items: int, seed: int) -> World:
    """Draw the products and their versions; the same size and seed always give the same world.

    >>> world = build_world(500, 0)
    >>> len(world), world.popularity.mean().round(3).item()
    (500, 1.0)
    """
    tree = load_taxonomy()
    rng = np.random.default_rng([seed, 1])
    brands = draw_brands(brand_count(items), rng)
    versions = rng.choice(np.arange(1, 7), size=items, p=VARIANT_SHARES)
    ends = np.cumsum(versions)
    count = int(np.searchsorted(ends, items)) + 1
    made = _draw_products(count, len(brands), tree, rng)
    product = np.repeat(np.arange(count), versions[:count])[:items]
    version = np.arange(items) - np.r_[0, ends][product]
    start = rng.integers(0, 1 << 16, (2, count))[:, product]
    leaf = made.leaf[product]
    # Versions come in pairs of one colour and two sizes, so no two versions of a product are alike.
    color = pick_value([node.colors for node in tree.leaves], leaf, start[0] + version // 2)
    scale = np.array([len(node.sizes) for node in tree.leaves])
    size = (start[1] + version) % scale[leaf]
    popularity = made.popularity[product] / (1.0 + version) ** 0.7 * rng.lognormal(0.0, 0.3, items)
    price = np.maximum(np.round(made.price[product] * (1.0 + 0.06 * size)), 2.0) - 0.01
    mix = rng.permutation(items)  # neighbours in the list should not be versions of one product
    return World(
        taxonomy=tree,
        brands=brands,
        models=model_names(made.brand),
        product_brand=made.brand,
        leaf=leaf[mix],
        product=product[mix],
        brand=made.brand[product][mix],
        color=color[mix],
        material=made.material[product][mix],
        size=size[mix],
        feature=made.feature[product][mix],
        host=made.host[product][mix],
        price=price[mix].astype(np.float32),
        popularity=(popularity / popularity.mean())[mix].astype(np.float32),
    )
