"""Invented names: brands in two scripts, and model names that are unique within a brand."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from restd.shop.taxonomy import read_words


@dataclass(frozen=True, slots=True)
class Brand:
    """One brand, spelt in Latin letters and in kana."""

    latin: str
    kana: str


def brand_count(items: int) -> int:
    """Return the number of brands of a catalogue, which grows more slowly than the number of items.

    >>> brand_count(500), brand_count(20_000), brand_count(1_000_000)
    (40, 328, 3045)
    """
    return round(40 * (items / 500) ** 0.57)


def draw_brands(count: int, rng: np.random.Generator) -> tuple[Brand, ...]:
    """Return invented brands, all different in both scripts, short names first.

    >>> brands = draw_brands(50, np.random.default_rng(0))
    >>> len({brand.latin for brand in brands}), len({brand.kana for brand in brands})
    (50, 50)
    """
    words = read_words("world")["brands"]
    reserved = set(words.pop("reserved"))
    parts = {key: [(*word.split(), "", "")[:2] for word in group] for key, group in words.items()}
    short = [combo for combo in product(parts["first"], parts["middle"][:1], parts["last"])]
    long = [combo for combo in product(parts["first"], parts["middle"][1:], parts["last"])]
    brands: dict[str, Brand] = {}
    kana_seen: set[str] = set()
    for combos in (short, long):
        for position in rng.permutation(len(combos)):
            combo = combos[position]
            latin, kana = ("".join(part[script] for part in combo) for script in (0, 1))
            clash = combo[0][0][-1] == (combo[1][0] or combo[2][0])[0]
            if clash or kana in kana_seen or latin in brands or latin in reserved:
                continue
            brands[latin] = Brand(latin, kana)
            kana_seen.add(kana)
            if len(brands) == count:
                return tuple(brands.values())
    raise AssertionError(f"world.toml has too few parts of brand names: made {len(brands)}, expected {count}")


def model_names(brand: np.ndarray) -> list[str]:
    """Return a model name for each product, unique within its brand.

    >>> model_names(np.array([0, 0, 1]))
    ['KX-100', 'TR-100', 'Aria 110']
    """
    words = read_words("world")["models"]
    order = np.argsort(brand, kind="stable")
    position = np.arange(len(brand))
    is_first = np.r_[True, brand[order][1:] != brand[order][:-1]]
    rank = np.empty(len(brand), dtype=np.int64)
    rank[order] = position - np.maximum.accumulate(np.where(is_first, position, 0))
    width = len(words["codes"])
    prefix = (rank + brand) % width
    number = 100 + 10 * (rank // width) + 10 * (brand % 40)
    styles = (
        [f"{code}-" for code in words["codes"]],
        [f"{word} " for word in words["words"]],
        [f"{word} {code[0]}" for word, code in zip(words["words"], words["codes"], strict=True)],
    )
    heads = [style[at] for style, at in zip((styles[b % 3] for b in brand), prefix, strict=True)]
    return [f"{head}{tail}" for head, tail in zip(heads, number.tolist(), strict=True)]
