"""`shop`: a generated catalogue in three languages, with judged queries, that needs no download.

One world of products is drawn from a seed; a locale only decides how it is worded. Grades follow from the products'
attributes by rule (see `judging`), so they hold whatever the texts say.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa

from restd.data.shop.items import item_batches
from restd.data.shop.judgments import judgment_batches
from restd.data.shop.lexicon import load_lexicon
from restd.data.shop.world import build_world
from restd.data.source import Source
from restd.errors import ConfigError

__all__ = ["ShopSpec", "shop_source"]

LOCALES = ("us", "es", "jp")
FEWEST, MOST = 500, 1_000_000


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
