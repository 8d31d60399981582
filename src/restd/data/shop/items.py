"""The catalogue in words: titles, descriptions and paths of the items, a batch at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from restd.data.schema import CATEGORY
from restd.data.shop.lexicon import Lexicon
from restd.data.shop.phrases import kernels, render
from restd.data.shop.world import World, other_value, pick_value

ITEMS = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("category", CATEGORY),
        ("brand", pa.string()),
        ("color", pa.string()),
        ("description", pa.string()),
        ("price", pa.float32()),
        ("popularity", pa.float32()),
    ]
)

BATCH = 50_000


def numbered(prefix: str, numbers: np.ndarray) -> Any:
    """Return identifiers such as `S0000123`.

    >>> numbered("S", np.array([123])).to_pylist()
    ['S0000123']
    """
    digits = kernels.utf8_lpad(pa.array(numbers).cast(pa.string()), 7, "0")
    return kernels.binary_join_element_wise(prefix, digits, "")


def brand_words(world: World, *, kana: bool) -> pa.Array:
    """Spell every brand in the script of the locale."""
    return pa.array([brand.kana if kana else brand.latin for brand in world.brands], pa.string())


def product_words(world: World, *, kana: bool) -> pa.Array:
    """Spell every product as brand and model, the way an accessory names what it fits."""
    brand = brand_words(world, kana=kana).take(pa.array(world.product_brand))
    return kernels.binary_join_element_wise(brand, pa.array(world.models, pa.string()), " ")


def size_places(world: World, rows: np.ndarray) -> np.ndarray:
    """Return the sizes of items as places in the taxonomy's list, which words are looked up by."""
    return pick_value([leaf.sizes for leaf in world.taxonomy.leaves], world.leaf[rows], world.size[rows])


def _others(world: World, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw attributes that are not the item's own, for the asides that mislead a matcher of words."""
    leaf = world.leaf[rows]
    nodes = world.taxonomy.leaves
    draws = rng.integers(0, 1 << 16, (4, len(rows)))
    beside = [(*node.unrelated, node.companion) if node.companion >= 0 else node.unrelated for node in nodes]
    other = pick_value(beside, leaf, draws[0])
    return {
        "noun": other,
        "color": pick_value([node.colors for node in nodes], other, draws[1]),
        "material": other_value([node.materials for node in nodes], leaf, world.material[rows], draws[2]),
        "feature": other_value([node.features for node in nodes], leaf, world.feature[rows], draws[3]),
    }


def _slots(world: World, words: Lexicon, rows: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Word every attribute of the items once, in running text and as in a title."""
    draws = iter(rng.integers(0, 1 << 30, (16, len(rows))))
    shop = words.shop
    noun = shop["noun"].pick(world.leaf[rows], next(draws))
    forms = shop["noun"].form[noun]
    slots: dict[str, Any] = {"noun": shop["noun"].text(noun), "Noun": shop["noun"].text(noun, titled=True)}
    values = {
        "color": world.color[rows],
        "material": world.material[rows],
        "size": size_places(world, rows),
        "feature": world.feature[rows],
    }
    for name, value in values.items():
        wording = shop[name].pick(value, next(draws))
        agreeing = forms if name == "color" else None
        slots[name] = shop[name].text(wording, agreeing)
        slots[name.capitalize()] = shop[name].text(wording, agreeing, titled=True)
        if name == "color":
            slots["color_column"] = shop[name].text(wording, titled=True)
    other = _others(world, rows, rng)
    other_noun = shop["noun"].pick(other.pop("noun"), next(draws))
    slots["othernoun"] = shop["noun"].text(other_noun)
    for name, value in other.items():
        agreeing = shop["noun"].form[other_noun] if name == "color" else None
        slots[f"other{name}"] = shop[name].text(shop[name].pick(value, next(draws)), agreeing)
    slots["pitch"] = shop["pitch"].text(shop["pitch"].pick(world.leaf[rows], next(draws)))
    need = words.customer["need"]
    slots["need"] = need.text(need.pick(world.leaf[rows], next(draws)))
    slots["filler"] = words.filler.text(words.filler.pick(np.zeros(len(rows), dtype=np.int64), next(draws)))
    return slots


def _lines(words: Lexicon, field: str, slots: dict[str, Any], fits: np.ndarray, draws: np.ndarray) -> pa.Array:
    """Render one text field, accessories by templates of their own."""
    own, accessory = words.templates[field], words.templates[f"accessory_{field}"]
    picks = np.where(fits, len(own) + draws % len(accessory), draws % len(own))
    sentences = field == "description"
    return render(own + accessory, picks, slots, joiner=words.joiners[field], sentences=sentences)


def item_batches(world: World, words: Lexicon, seed: int) -> Iterator[pa.RecordBatch]:
    """Yield the catalogue in batches whose texts depend on nothing but the world, the locale and the seed.

    >>> from restd.data.shop.lexicon import load_lexicon
    >>> from restd.data.shop.world import build_world
    >>> batch = next(item_batches(build_world(500, 0), load_lexicon("es"), 0))
    >>> batch.num_rows, batch["title"].null_count
    (500, 0)
    """
    brands = brand_words(world, kana=words.kana)
    models = pa.array(world.models, pa.string())
    products = product_words(world, kana=words.kana)
    paths = pa.array(words.paths, CATEGORY)
    for start in range(0, len(world), BATCH):
        rows = np.arange(start, min(start + BATCH, len(world)))
        rng = np.random.default_rng([seed, 2, start])
        slots = _slots(world, words, rows, rng)
        host = world.host[rows]
        slots["brand"] = slots["Brand"] = brands.take(pa.array(world.brand[rows]))
        slots["model"] = slots["Model"] = models.take(pa.array(world.product[rows]))
        slots["host"] = products.take(pa.array(host, mask=host < 0))
        draws = rng.integers(0, 1 << 30, (2, len(rows)))
        columns = [
            numbered("S", rows),
            _lines(words, "title", slots, host >= 0, draws[0]),
            paths.take(pa.array(world.leaf[rows])),
            slots["brand"],
            slots["color_column"],
            _lines(words, "description", slots, host >= 0, draws[1]),
            pa.array(world.price[rows]),
            pa.array(world.popularity[rows]),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=ITEMS)
