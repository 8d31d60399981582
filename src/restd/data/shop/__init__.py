"""`shop`: a generated catalogue in three languages, with judged queries, that needs no download.

One world of products is drawn from a seed; a locale only decides how it is worded. Grades follow from the products'
attributes by rule (see `judging`), so they hold whatever the texts say. The same world has shoppers, for
recommendation (see `shoppers`).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa

from restd.data.shop.items import item_batches
from restd.data.shop.judgments import judgment_batches
from restd.data.shop.lexicon import load_lexicon
from restd.data.shop.shoppers import draw_purchases, shopper_notes, thinned
from restd.data.shop.world import build_world
from restd.data.source import Source
from restd.errors import ConfigError

__all__ = ["ShopSpec", "ShopperSpec", "shop_source", "shoppers_source"]

LOCALES = ("us", "es", "jp")
FEWEST, MOST = 500, 1_000_000
FEWEST_USERS, MOST_USERS = 100, 1_000_000


@dataclass(frozen=True, slots=True)
class ShopSpec:
    """Which shop to generate: its language, its size and the seed of its world.

    >>> ShopSpec(locale="fr")
    Traceback (most recent call last):
    restd.errors.ConfigError: shop has no locale 'fr'; choose one of us, es, jp.
    """

    locale: str = "us"
    items: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.locale not in LOCALES:
            raise ConfigError(f"shop has no locale {self.locale!r}; choose one of {', '.join(LOCALES)}.")
        if not FEWEST <= self.items <= MOST:
            raise ConfigError(f"shop cannot have {self.items:,} items; choose a number from {FEWEST:,} to {MOST:,}.")
        if self.seed < 0:
            raise ConfigError(f"shop cannot start from seed {self.seed}; choose a whole number of at least 0.")


def shop_source(spec: ShopSpec) -> Source:
    """Return the shop as streams of items and judgments; nothing is generated before a stream is walked.

    Judgments carry a further column `kind`: how the query was asked.

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
        "Every product, brand and query is invented; grades follow from the products' attributes by rule.",
        "Pools are incomplete, as judged pools are: an item without a row may still suit the query.",
    )
    return Source(name="shop", settings=asdict(spec), items=items, judgments=judgments, notes=notes)


@dataclass(frozen=True, slots=True)
class ShopperSpec:
    """Which shop to generate, and how many shoppers of it.

    >>> ShopperSpec(users=3)
    Traceback (most recent call last):
    restd.errors.ConfigError: shop cannot have 3 users; choose a number from 100 to 1,000,000.
    """

    locale: str = "us"
    items: int = 2_000
    users: int = 4_000
    seed: int = 0

    def __post_init__(self) -> None:
        ShopSpec(self.locale, self.items, self.seed)
        if not FEWEST_USERS <= self.users <= MOST_USERS:
            wanted = f"{FEWEST_USERS:,} to {MOST_USERS:,}"
            raise ConfigError(f"shop cannot have {self.users:,} users; choose a number from {wanted}.")


def shoppers_source(spec: ShopperSpec) -> Source:
    """Return the shop as streams of items and histories; the purchases are drawn at once, the items when walked.

    The items are those of `shop_source`, all of them, whether anybody took them or not.

    >>> source = shoppers_source(ShopperSpec(items=500, users=500))
    >>> assert source.histories is not None
    >>> next(source.histories()).schema.names
    ['user', 'item', 'time']
    """
    drawn = draw_purchases(build_world(spec.items, spec.seed), spec.users, spec.seed)
    held = thinned(drawn)
    return Source(
        name="shoppers",
        settings=asdict(spec),
        items=shop_source(ShopSpec(spec.locale, spec.items, spec.seed)).items,
        histories=held.to_batches,
        notes=shopper_notes(drawn, held, spec.items),
    )
