"""`shop`: a generated product catalogue in three languages, with judged queries and purchase histories.

One world of products is drawn from a seed; the locale only decides the words. Relevance grades are computed from the
products' attributes (see `grading`), never from their texts. Purchase histories for recommendation are drawn from the
same world (see `shoppers`). Nothing is downloaded.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa

from restd.data.datasets import DATASETS, DatasetEntry
from restd.data.source import Source
from restd.errors import ConfigError
from restd.shop.items import item_batches
from restd.shop.judgment_rows import judgment_batches
from restd.shop.lexicon import load_lexicon
from restd.shop.shoppers import draw_purchases, shopper_notes, thin_to_core
from restd.shop.world import build_world

__all__ = ["ShopSpec", "ShopperSpec", "shop_source", "shoppers_source"]

LOCALES = ("us", "es", "jp")
MIN_ITEMS, MAX_ITEMS = 500, 1_000_000
MIN_USERS, MAX_USERS = 100, 1_000_000


@dataclass(frozen=True, slots=True)
class ShopSpec:
    """What catalogue to generate: locale, number of items and random seed.

    >>> ShopSpec(locale="fr")
    Traceback (most recent call last):
    restd.errors.ConfigError: Unknown locale 'fr'. Choose one of us, es, jp.
    """

    locale: str = "us"
    items: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.locale not in LOCALES:
            raise ConfigError(f"Unknown locale {self.locale!r}. Choose one of {', '.join(LOCALES)}.")
        if not MIN_ITEMS <= self.items <= MAX_ITEMS:
            raise ConfigError(f"Expected {MIN_ITEMS:,} to {MAX_ITEMS:,} items, got {self.items:,}.")
        if self.seed < 0:
            raise ConfigError(f"Expected a seed of at least 0, got {self.seed}.")


def shop_source(spec: ShopSpec) -> Source:
    """Return the shop as streams of items and judgments, generated when a stream is iterated.

    Judgments have one more column, `kind`: the kind of query (see `restd.shop.queries.KINDS`).

    >>> source = shop_source(ShopSpec(items=500))
    >>> batch = next(source.items())
    >>> batch.num_rows, batch.schema.names
    (500, ['id', 'title', 'category', 'brand', 'color', 'description', 'price', 'popularity'])
    """

    def items() -> Iterator[pa.RecordBatch]:
        return item_batches(build_world(spec.items, spec.seed), load_lexicon(spec.locale), spec.seed)

    def judgments() -> Iterator[pa.RecordBatch]:
        return judgment_batches(build_world(spec.items, spec.seed), load_lexicon(spec.locale), spec.seed)

    notes = (
        "All products, brands and queries are invented; grades are computed from product attributes.",
        "Judgments are incomplete, as in any judged pool: an item without a row may still be relevant.",
    )
    return Source(name="shop", settings=asdict(spec), items=items, judgments=judgments, notes=notes)


@dataclass(frozen=True, slots=True)
class ShopperSpec:
    """What catalogue to generate, and for how many shoppers.

    >>> ShopperSpec(users=3)
    Traceback (most recent call last):
    restd.errors.ConfigError: Expected 100 to 1,000,000 users, got 3.
    """

    locale: str = "us"
    items: int = 2_000
    users: int = 4_000
    seed: int = 0

    def __post_init__(self) -> None:
        ShopSpec(self.locale, self.items, self.seed)
        if not MIN_USERS <= self.users <= MAX_USERS:
            raise ConfigError(f"Expected {MIN_USERS:,} to {MAX_USERS:,} users, got {self.users:,}.")


def shoppers_source(spec: ShopperSpec) -> Source:
    """Return the shop as streams of items and purchase histories.

    Purchases are drawn at once, items when their stream is iterated. The items are all of `shop_source`'s, including
    those that nobody bought.

    >>> source = shoppers_source(ShopperSpec(items=500, users=500))
    >>> assert source.histories is not None
    >>> next(source.histories()).schema.names
    ['user', 'item', 'time']
    """
    purchases = draw_purchases(build_world(spec.items, spec.seed), spec.users, spec.seed)
    histories = thin_to_core(purchases)
    return Source(
        name="shoppers",
        settings=asdict(spec),
        items=shop_source(ShopSpec(spec.locale, spec.items, spec.seed)).items,
        histories=histories.to_batches,
        notes=shopper_notes(purchases, histories, spec.items),
    )


def _shop(locale: str = "us", items: int = 20_000, seed: int = 0) -> Source:
    return shop_source(ShopSpec(locale, items, seed))


def _shoppers(locale: str = "us", items: int = 2_000, users: int = 4_000, seed: int = 0) -> Source:
    return shoppers_source(ShopperSpec(locale, items, users, seed))


DATASETS.add(
    DatasetEntry(
        "shop",
        "A generated shop in English, Spanish or Japanese, with queries graded by rule.",
        task="search",
        make=_shop,
    )
)
DATASETS.add(
    DatasetEntry(
        "shoppers",
        "Generated shoppers of the same shop, whose purchases follow from taste, fit and price.",
        task="recommend",
        make=_shoppers,
    )
)
