"""Texts of queries: each facet in customers' words, put into templates of the kind of query."""

from typing import Any

import numpy as np
import pyarrow as pa

from restd.shop.intents import Facet
from restd.shop.items import brand_names, product_names, size_values
from restd.shop.lexicon import Lexicon
from restd.shop.phrases import kernels, render
from restd.shop.queries import KINDS, Queries
from restd.shop.spelling import misspell
from restd.shop.world import World

AGREEING = ("color", "feature")
"""Facets whose words agree with the noun in gender and number, in languages with agreement."""


def _asked_values(queries: Queries, facet: Facet, values: np.ndarray) -> np.ndarray:
    """Return the values of a facet, -1 for queries that do not ask for it."""
    return np.where(queries.mask & int(facet), values, -1)


def _slots(world: World, lexicon: Lexicon, queries: Queries, rng: np.random.Generator) -> dict[str, Any]:
    seed = queries.seed
    draws = iter(rng.integers(0, 1 << 30, (8, len(queries))))
    phrases = lexicon.customer
    leaf = world.leaf[seed]
    noun = phrases["noun"].pick(leaf, next(draws))
    slots: dict[str, Any] = {
        "noun": phrases["noun"].text(noun),
        "need": phrases["need"].text(phrases["need"].pick(leaf, next(draws))),
    }
    # A described need has no noun to agree with, so adjectives take their first form.
    forms = np.where(queries.kind == KINDS.index("need"), 0, phrases["noun"].form[noun])
    values = {
        "color": _asked_values(queries, Facet.COLOR, world.color[seed]),
        "material": _asked_values(queries, Facet.MATERIAL, world.material[seed]),
        "size": _asked_values(queries, Facet.SIZE, size_values(world, seed)),
        "feature": _asked_values(queries, Facet.FEATURE, world.feature[seed]),
    }
    for name, value in values.items():
        slots[name] = phrases[name].text(phrases[name].pick(value, next(draws)), forms if name in AGREEING else None)
    slots["clause"] = phrases["clause"].text(phrases["clause"].pick(values["feature"], next(draws)))
    brand = _asked_values(queries, Facet.BRAND, world.brand[seed])
    model = _asked_values(queries, Facet.MODEL, world.product[seed])
    host = _asked_values(queries, Facet.FITS, world.host[seed])
    slots["brand"] = brand_names(world, kana=lexicon.kana).take(pa.array(brand, mask=brand < 0))
    slots["model"] = pa.array(world.models, pa.string()).take(pa.array(model, mask=model < 0))
    slots["host"] = product_names(world, kana=lexicon.kana).take(pa.array(host, mask=host < 0))
    return slots


def _template_kinds(queries: Queries) -> np.ndarray:
    """Return the kind whose templates a query uses; misspelt queries use those of another kind."""
    named = queries.mask & int(Facet.MODEL) != 0
    single = np.isin(queries.mask, [int(facet) for facet in Facet])
    clean = np.where(named, KINDS.index("model"), np.where(single, KINDS.index("broad"), KINDS.index("attributes")))
    return np.where(queries.kind == KINDS.index("misspelt"), clean, queries.kind)


def clean_texts(world: World, lexicon: Lexicon, queries: Queries, rng: np.random.Generator) -> pa.Array:
    """Return the texts of the queries without any misspelling."""
    slots = _slots(world, lexicon, queries, rng)
    kinds = _template_kinds(queries)
    draws = rng.integers(0, 1 << 30, len(queries))
    order: list[np.ndarray] = []
    pieces: list[Any] = []
    for position, kind in enumerate(KINDS):
        rows = np.flatnonzero(kinds == position)
        if not len(rows):
            continue
        templates = lexicon.templates[kind]
        kind_slots = {name: column.take(pa.array(rows)) for name, column in slots.items()}
        joiner = lexicon.joiners["need" if kind == "need" else "query"]
        order.append(rows)
        pieces.append(render(templates, draws[rows] % len(templates), kind_slots, joiner=joiner))
    inverse = np.empty(len(queries), dtype=np.int64)
    inverse[np.concatenate(order)] = np.arange(len(queries))
    return kernels.utf8_trim_whitespace(kernels.utf8_lower(pa.concat_arrays(pieces).take(pa.array(inverse))))


def query_texts(world: World, lexicon: Lexicon, queries: Queries, seed: int) -> pa.Array:
    """Return the texts of the queries; those of kind `misspelt` have one misspelling each."""
    rng = np.random.default_rng([seed, 4])
    clean = clean_texts(world, lexicon, queries, rng)
    rows = np.flatnonzero(queries.kind == KINDS.index("misspelt"))
    draws = rng.integers(0, 1 << 30, len(rows)).tolist()
    misspelt = [
        misspell(text, draw, kana=lexicon.kana, misspellings=lexicon.misspellings)
        for text, draw in zip(clean.take(pa.array(rows)).to_pylist(), draws, strict=True)
    ]
    mask = np.zeros(len(queries), dtype=bool)
    mask[rows] = True
    return kernels.replace_with_mask(clean, pa.array(mask), pa.array(misspelt, pa.string()))
