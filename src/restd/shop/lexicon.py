"""The words of one locale, read from its TOML files into tables of phrases in the order of the taxonomy."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from restd.shop.phrases import Phrases, Template, make_phrases, title_case
from restd.shop.taxonomy import load_taxonomy, read_words

_MEASURE = re.compile(r"^([-\dx.]+) (\w+)$")


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The words of one locale: the shop's phrases, the customers' phrases and the templates for both."""

    shop: Mapping[str, Phrases]
    """Tables `noun`, `color`, `material`, `size`, `feature` and `pitch`, in the words of titles and descriptions."""
    customer: Mapping[str, Phrases]
    """The same attributes in the words of queries, and `need` and `clause` for queries that describe a need."""
    filler: Phrases
    templates: Mapping[str, tuple[Template, ...]]
    joiners: Mapping[str, str]
    paths: tuple[tuple[str, str, str], ...]
    kana: bool
    misspellings: tuple[tuple[str, str], ...]


def _size_words(sizes: tuple[str, ...], words: Mapping[str, Any], field: str, *, decimal: str) -> list[list[str]]:
    rows = []
    for size in sizes:
        if size in words:
            rows.append(words[size][field])
            continue
        measure = _MEASURE.match(size)
        if measure is None:
            raise KeyError(f"No words for the size {size!r}. Add it, or its unit, to [sizes] of the locale.")
        number = measure[1].replace(".", decimal)
        rows.append([pattern.replace("{n}", number) for pattern in words[measure[2]][field]])
    return rows


@cache
def load_lexicon(locale: str) -> Lexicon:
    """Read the files of a locale. They must have words for every key of the taxonomy.

    >>> load_lexicon("us").paths[0]
    ('Kitchen & Dining', 'Small Appliances', 'Electric Kettle')
    """
    taxonomy = load_taxonomy()
    words, leaves, features = (read_words(f"{locale}{part}") for part in ("", "_leaves", "_features"))
    style = words["grammar"]["title_case"]
    nodes = [leaves[leaf.key] for leaf in taxonomy.leaves]

    def table(rows: list[list[str]]) -> Phrases:
        return make_phrases(rows, style=style)

    def attributes(field: str) -> dict[str, Phrases]:
        sizes = _size_words(taxonomy.sizes, words["sizes"], field, decimal=words["grammar"]["decimal"])
        return {
            "noun": table([node[field] for node in nodes]),
            "color": table([words["colors"][key][field] for key in taxonomy.colors]),
            "material": table([words["materials"][key][field] for key in taxonomy.materials]),
            "size": table(sizes),
            "feature": table([features[key][field] for key in taxonomy.features]),
        }

    def leaf_name(node: Mapping[str, Any]) -> str:
        return title_case(re.sub(r"^\w+:", "", node["names"][0]), style)

    lines: dict[str, list[str]] = words["templates"]
    return Lexicon(
        shop=attributes("names") | {"pitch": table([node["pitch"] for node in nodes])},
        customer=attributes("asks")
        | {"need": table([node["needs"] for node in nodes])}
        | {"clause": table([features[key]["needs"] for key in taxonomy.features])},
        filler=table([lines["filler"]]),
        templates={kind: tuple(map(Template.parse, group)) for kind, group in lines.items() if kind != "filler"},
        joiners=words["joiners"],
        paths=tuple(
            (words["paths"][taxonomy.departments[leaf.department]], words["paths"][leaf.group], leaf_name(node))
            for leaf, node in zip(taxonomy.leaves, nodes, strict=True)
        ),
        kana=words["grammar"]["kana"],
        misspellings=tuple((right, wrong) for right, wrong in words["slips"]["pairs"]),
    )
