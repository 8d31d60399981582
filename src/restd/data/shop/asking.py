"""Queries in words: each wish in a customer's wording, in lines that fit the kind of query."""

from typing import Any

import numpy as np
import pyarrow as pa

from restd.data.shop.items import brand_words, product_words, size_places
from restd.data.shop.lexicon import Lexicon
from restd.data.shop.phrases import kernels, render
from restd.data.shop.queries import KINDS, Queries
from restd.data.shop.spelling import misspell
from restd.data.shop.wishes import Wish
from restd.data.shop.world import World

AGREEING = ("color", "feature")
"""Wishes that take the gender and number of the noun, in languages that have them."""


def _wished(queries: Queries, wish: Wish, values: np.ndarray) -> np.ndarray:
    """Keep the values that are asked for and put -1 for the others."""
    return np.where(queries.mask & int(wish), values, -1)


def _slots(world: World, words: Lexicon, queries: Queries, rng: np.random.Generator) -> dict[str, Any]:
    seed = queries.seed
    draws = iter(rng.integers(0, 1 << 30, (8, len(queries))))
    said = words.customer
    leaf = world.leaf[seed]
    noun = said["noun"].pick(leaf, next(draws))
    slots: dict[str, Any] = {
        "noun": said["noun"].text(noun),
        "need": said["need"].text(said["need"].pick(leaf, next(draws))),
    }
    # A described need has no noun to agree with: adjectives fall back to their first form.
    forms = np.where(queries.kind == KINDS.index("need"), 0, said["noun"].form[noun])
    values = {
        "color": _wished(queries, Wish.COLOR, world.color[seed]),
        "material": _wished(queries, Wish.MATERIAL, world.material[seed]),
        "size": _wished(queries, Wish.SIZE, size_places(world, seed)),
        "feature": _wished(queries, Wish.FEATURE, world.feature[seed]),
    }
    for name, value in values.items():
        slots[name] = said[name].text(said[name].pick(value, next(draws)), forms if name in AGREEING else None)
    slots["clause"] = said["clause"].text(said["clause"].pick(values["feature"], next(draws)))
    brand = _wished(queries, Wish.BRAND, world.brand[seed])
    model = _wished(queries, Wish.MODEL, world.product[seed])
    host = _wished(queries, Wish.FITS, world.host[seed])
    slots["brand"] = brand_words(world, kana=words.kana).take(pa.array(brand, mask=brand < 0))
    slots["model"] = pa.array(world.models, pa.string()).take(pa.array(model, mask=model < 0))
    slots["host"] = product_words(world, kana=words.kana).take(pa.array(host, mask=host < 0))
    return slots


def _template_kinds(queries: Queries) -> np.ndarray:
    """Return the kind whose lines a query uses: a misspelt one is some other kind, spelt wrongly."""
    named = queries.mask & int(Wish.MODEL) != 0
    single = np.isin(queries.mask, [int(wish) for wish in Wish])
    clean = np.where(named, KINDS.index("model"), np.where(single, KINDS.index("broad"), KINDS.index("attributes")))
    return np.where(queries.kind == KINDS.index("misspelt"), clean, queries.kind)


def clean_texts(world: World, words: Lexicon, queries: Queries, rng: np.random.Generator) -> pa.Array:
    """Word the queries as a careful typist would."""
    slots = _slots(world, words, queries, rng)
    kinds = _template_kinds(queries)
    draws = rng.integers(0, 1 << 30, len(queries))
    order: list[np.ndarray] = []
    pieces: list[Any] = []
    for place, kind in enumerate(KINDS):
        rows = np.flatnonzero(kinds == place)
        if not len(rows):
            continue
        lines = words.templates[kind]
        mine = {name: column.take(pa.array(rows)) for name, column in slots.items()}
        joiner = words.joiners["need" if kind == "need" else "query"]
        order.append(rows)
        pieces.append(render(lines, draws[rows] % len(lines), mine, joiner=joiner))
    back = np.empty(len(queries), dtype=np.int64)
    back[np.concatenate(order)] = np.arange(len(queries))
    return kernels.utf8_trim_whitespace(kernels.utf8_lower(pa.concat_arrays(pieces).take(pa.array(back))))


def query_texts(world: World, words: Lexicon, queries: Queries, seed: int) -> pa.Array:
    """Word the queries, with a slip in every one of the misspelt kind."""
    rng = np.random.default_rng([seed, 4])
    clean = clean_texts(world, words, queries, rng)
    rows = np.flatnonzero(queries.kind == KINDS.index("misspelt"))
    draws = rng.integers(0, 1 << 30, len(rows)).tolist()
    wrong = [
        misspell(text, draw, kana=words.kana, slips=words.slips)
        for text, draw in zip(clean.take(pa.array(rows)).to_pylist(), draws, strict=True)
    ]
    mask = np.zeros(len(queries), dtype=bool)
    mask[rows] = True
    return kernels.replace_with_mask(clean, pa.array(mask), pa.array(wrong, pa.string()))
