"""The generated world without any text: products, their variants and attributes as numeric columns."""

from dataclasses import dataclass

import numpy as np

from restd.shop.names import Brand, brand_count, draw_brands, model_names
from restd.shop.taxonomy import Taxonomy, load_taxonomy

VARIANT_SHARES = (0.25, 0.25, 0.2, 0.13, 0.1, 0.07)
"""Probabilities that a product has one to six variants."""


@dataclass(frozen=True, slots=True)
class World:
    """One entry per item in each column, and the names of the brands and products they refer to.

    `size` is an index into the sizes of the item's leaf; colour, material and feature are indices into the taxonomy.
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


def _pad_rows(rows: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of unequal length as a padded matrix, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    table = np.zeros((len(rows), lengths.max()), dtype=np.int64)
    for position, row in enumerate(rows):
        table[position, : len(row)] = row
    return table, lengths


def pick_value(rows: list[tuple[int, ...]], leaf: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return one value per entry of `leaf`, from the list of that leaf at `draws` modulo its length."""
    table, lengths = _pad_rows(rows)
    return table[leaf, draws % lengths[leaf]]


def other_value(rows: list[tuple[int, ...]], leaf: np.ndarray, own: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return a value from the list of each leaf that differs from `own`.

    >>> other_value([(4, 7)], np.array([0, 0]), np.array([4, 7]), np.array([0, 0])).tolist()
    [7, 4]
    """
    picked = pick_value(rows, leaf, draws)
    return np.where(picked == own, pick_value(rows, leaf, draws + 1), picked)


def _link_hosts(leaf: np.ndarray, popularity: np.ndarray, taxonomy: Taxonomy, rng: np.random.Generator) -> np.ndarray:
    """Draw the product that each accessory fits; popular products are drawn more often."""
    host = np.full(len(leaf), -1, dtype=np.int64)
    for position, node in enumerate(taxonomy.leaves):
        if node.host < 0:
            continue
        accessories = np.flatnonzero(leaf == position)
        hosts = np.flatnonzero(leaf == node.host)
        hosts = hosts[np.argsort(-popularity[hosts], kind="stable")]
        host[accessories] = hosts[(len(hosts) * rng.random(len(accessories)) ** 1.4).astype(np.int64)]
    return host


def _draw_products(count: int, brands: int, taxonomy: Taxonomy, rng: np.random.Generator) -> _Products:
    leaves = len(taxonomy.leaves)
    weights = rng.lognormal(0.0, 0.35, leaves)
    leaf = rng.choice(leaves, size=count, p=weights / weights.sum())
    leaf[:leaves] = np.arange(leaves)  # every leaf has a product, even in the smallest shop
    departments = len(taxonomy.departments)
    department = np.array([node.department for node in taxonomy.leaves])[leaf]
    per_department = (brands - 1 - department) // departments + 1
    brand = department + departments * (per_department * rng.random(count) ** 1.6).astype(np.int64)
    material = pick_value(
        [node.materials for node in taxonomy.leaves], leaf, (4 * rng.random(count) ** 1.2).astype(np.int64)
    )
    feature = pick_value([node.features for node in taxonomy.leaves], leaf, rng.integers(0, 1 << 16, count))
    popularity = 1.0 / (3.0 + rng.permutation(count)) ** 0.85
    level = np.array([node.price for node in taxonomy.leaves])[leaf]
    price = level * rng.lognormal(0.0, 0.3, count) * rng.lognormal(0.0, 0.25, brands)[brand]
    return _Products(leaf, brand, material, feature, _link_hosts(leaf, popularity, taxonomy, rng), popularity, price)


def build_world(items: int, seed: int) -> World:
    """Draw the products and their variants. The same size and seed always give the same world.

    >>> world = build_world(500, 0)
    >>> len(world), world.popularity.mean().round(3).item()
    (500, 1.0)
    """
    taxonomy = load_taxonomy()
    rng = np.random.default_rng([seed, 1])
    brands = draw_brands(brand_count(items), rng)
    variant_counts = rng.choice(np.arange(1, 7), size=items, p=VARIANT_SHARES)
    ends = np.cumsum(variant_counts)
    count = int(np.searchsorted(ends, items)) + 1
    products = _draw_products(count, len(brands), taxonomy, rng)
    product = np.repeat(np.arange(count), variant_counts[:count])[:items]
    variant = np.arange(items) - np.r_[0, ends][product]
    offsets = rng.integers(0, 1 << 16, (2, count))[:, product]
    leaf = products.leaf[product]
    # Variants come in pairs of one colour and two sizes, so no two variants of a product are equal.
    color = pick_value([node.colors for node in taxonomy.leaves], leaf, offsets[0] + variant // 2)
    scale = np.array([len(node.sizes) for node in taxonomy.leaves])
    size = (offsets[1] + variant) % scale[leaf]
    popularity = products.popularity[product] / (1.0 + variant) ** 0.7 * rng.lognormal(0.0, 0.3, items)
    price = np.maximum(np.round(products.price[product] * (1.0 + 0.06 * size)), 2.0) - 0.01
    shuffle = rng.permutation(items)  # so that adjacent items are not variants of one product
    return World(
        taxonomy=taxonomy,
        brands=brands,
        models=model_names(products.brand),
        product_brand=products.brand,
        leaf=leaf[shuffle],
        product=product[shuffle],
        brand=products.brand[product][shuffle],
        color=color[shuffle],
        material=products.material[product][shuffle],
        size=size[shuffle],
        feature=products.feature[product][shuffle],
        host=products.host[product][shuffle],
        price=price[shuffle].astype(np.float32),
        popularity=(popularity / popularity.mean())[shuffle].astype(np.float32),
    )
