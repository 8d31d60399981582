"""Item rows: titles, descriptions and category paths, generated one batch at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from restd.data.schema import CATEGORY
from restd.shop.lexicon import Lexicon
from restd.shop.phrases import kernels, render
from restd.shop.world import World, other_value, pick_value

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


def make_ids(prefix: str, numbers: np.ndarray) -> Any:
    """Return identifiers: a prefix and seven digits.

    >>> make_ids("S", np.array([123])).to_pylist()
    ['S0000123']
    """
    digits = kernels.utf8_lpad(pa.array(numbers).cast(pa.string()), 7, "0")
    return kernels.binary_join_element_wise(prefix, digits, "")


def brand_names(world: World, *, kana: bool) -> pa.Array:
    """Return the name of every brand, in kana or in Latin letters."""
    return pa.array([brand.kana if kana else brand.latin for brand in world.brands], pa.string())


def product_names(world: World, *, kana: bool) -> pa.Array:
    """Return brand and model of every product, as an accessory names the product it fits."""
    brand = brand_names(world, kana=kana).take(pa.array(world.product_brand))
    return kernels.binary_join_element_wise(brand, pa.array(world.models, pa.string()), " ")


def size_values(world: World, rows: np.ndarray) -> np.ndarray:
    """Return the sizes of items as indices into `Taxonomy.sizes`, by which words are looked up."""
    return pick_value([leaf.sizes for leaf in world.taxonomy.leaves], world.leaf[rows], world.size[rows])


def _other_values(world: World, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw attributes of other items, for asides in descriptions that mislead lexical matching."""
    leaf = world.leaf[rows]
    nodes = world.taxonomy.leaves
    draws = rng.integers(0, 1 << 16, (4, len(rows)))
    other_leaves = [(*node.unrelated, node.companion) if node.companion >= 0 else node.unrelated for node in nodes]
    other = pick_value(other_leaves, leaf, draws[0])
    return {
        "noun": other,
        "color": pick_value([node.colors for node in nodes], other, draws[1]),
        "material": other_value([node.materials for node in nodes], leaf, world.material[rows], draws[2]),
        "feature": other_value([node.features for node in nodes], leaf, world.feature[rows], draws[3]),
    }


def _slots(world: World, lexicon: Lexicon, rows: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Return words for every attribute of the items, in lower case and in title case."""
    draws = iter(rng.integers(0, 1 << 30, (16, len(rows))))
    shop = lexicon.shop
    noun = shop["noun"].pick(world.leaf[rows], next(draws))
    forms = shop["noun"].form[noun]
    slots: dict[str, Any] = {"noun": shop["noun"].text(noun), "Noun": shop["noun"].text(noun, titled=True)}
    values = {
        "color": world.color[rows],
        "material": world.material[rows],
        "size": size_values(world, rows),
        "feature": world.feature[rows],
    }
    for name, value in values.items():
        wording = shop[name].pick(value, next(draws))
        agreeing = forms if name == "color" else None
        slots[name] = shop[name].text(wording, agreeing)
        slots[name.capitalize()] = shop[name].text(wording, agreeing, titled=True)
        if name == "color":
            slots["color_column"] = shop[name].text(wording, titled=True)
    other = _other_values(world, rows, rng)
    other_noun = shop["noun"].pick(other.pop("noun"), next(draws))
    slots["othernoun"] = shop["noun"].text(other_noun)
    for name, value in other.items():
        agreeing = shop["noun"].form[other_noun] if name == "color" else None
        slots[f"other{name}"] = shop[name].text(shop[name].pick(value, next(draws)), agreeing)
    slots["pitch"] = shop["pitch"].text(shop["pitch"].pick(world.leaf[rows], next(draws)))
    need = lexicon.customer["need"]
    slots["need"] = need.text(need.pick(world.leaf[rows], next(draws)))
    slots["filler"] = lexicon.filler.text(lexicon.filler.pick(np.zeros(len(rows), dtype=np.int64), next(draws)))
    return slots


def _render_field(lexicon: Lexicon, field: str, slots: dict[str, Any], fits: np.ndarray, draws: np.ndarray) -> pa.Array:
    """Render one text field; accessories have templates of their own."""
    plain, accessory = lexicon.templates[field], lexicon.templates[f"accessory_{field}"]
    picks = np.where(fits, len(plain) + draws % len(accessory), draws % len(plain))
    sentences = field == "description"
    return render(plain + accessory, picks, slots, joiner=lexicon.joiners[field], sentences=sentences)


def item_batches(world: World, lexicon: Lexicon, seed: int) -> Iterator[pa.RecordBatch]:
    """Yield the catalogue in batches. The texts depend on the world, the locale and the seed only.

    >>> from restd.shop.lexicon import load_lexicon
    >>> from restd.shop.world import build_world
    >>> batch = next(item_batches(build_world(500, 0), load_lexicon("es"), 0))
    >>> batch.num_rows, batch["title"].null_count
    (500, 0)
    """
    brands = brand_names(world, kana=lexicon.kana)
    models = pa.array(world.models, pa.string())
    products = product_names(world, kana=lexicon.kana)
    paths = pa.array(lexicon.paths, CATEGORY)
    for start in range(0, len(world), BATCH):
        rows = np.arange(start, min(start + BATCH, len(world)))
        rng = np.random.default_rng([seed, 2, start])
        slots = _slots(world, lexicon, rows, rng)
        host = world.host[rows]
        slots["brand"] = slots["Brand"] = brands.take(pa.array(world.brand[rows]))
        slots["model"] = slots["Model"] = models.take(pa.array(world.product[rows]))
        slots["host"] = products.take(pa.array(host, mask=host < 0))
        draws = rng.integers(0, 1 << 30, (2, len(rows)))
        columns = [
            make_ids("S", rows),
            _render_field(lexicon, "title", slots, host >= 0, draws[0]),
            paths.take(pa.array(world.leaf[rows])),
            slots["brand"],
            slots["color_column"],
            _render_field(lexicon, "description", slots, host >= 0, draws[1]),
            pa.array(world.price[rows]),
            pa.array(world.popularity[rows]),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=ITEMS)
