"""What can exist in the shop: leaves of the tree with their colours, materials, sizes, features and links."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Leaf:
    """One kind of product. Every number is an index into the lists of the `Taxonomy`."""

    key: str
    department: int
    group: str
    price: float
    colors: tuple[int, ...]
    materials: tuple[int, ...]
    sizes: tuple[int, ...]
    features: tuple[int, ...]
    host: int
    """The leaf whose products this accessory fits, or -1."""
    companion: int
    """The leaf that accompanies this one, or -1."""
    unrelated: tuple[int, ...]
    """Leaves of the same department without any link to this one, where irrelevant items come from."""


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """The tree and the vocabulary of attribute values, in keys that locales translate."""

    leaves: tuple[Leaf, ...]
    departments: tuple[str, ...]
    colors: tuple[str, ...]
    materials: tuple[str, ...]
    sizes: tuple[str, ...]
    features: tuple[str, ...]


def read_words(name: str) -> dict[str, Any]:
    """Return the tables of one of the package's TOML files."""
    return tomllib.loads(files("restd.data.shop").joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _ordered(words: list[str]) -> tuple[str, ...]:
    """Drop repetitions and keep the order of first appearance."""
    return tuple(dict.fromkeys(words))


def _unrelated(key: str, raw: dict[str, dict[str, Any]], order: tuple[str, ...]) -> tuple[int, ...]:
    department = raw[key]["path"].split("/")[0]
    links = {key, raw[key].get("fits"), raw[key].get("with")}
    links |= {other for other, row in raw.items() if key in (row.get("fits"), row.get("with"))}
    return tuple(
        place
        for place, other in enumerate(order)
        if other not in links and raw[other]["path"].split("/")[0] == department
    )


@cache
def load_taxonomy() -> Taxonomy:
    """Return the tree that every locale shares.

    >>> tree = load_taxonomy()
    >>> len(tree.leaves) >= 60, tree.leaves[0].key, tree.leaves[tree.leaves[0].companion].key
    (True, 'kettle', 'mug')
    """
    data = read_words("world")
    raw: dict[str, dict[str, Any]] = data["leaves"]
    order = tuple(raw)
    departments = _ordered([row["path"].split("/")[0] for row in raw.values()])
    colors = tuple(data["colors"].split())
    materials = _ordered([word for row in raw.values() for word in row["materials"].split()])
    features = _ordered([word for row in raw.values() for word in row["features"].split()])
    sizes = _ordered([size for scale in data["scales"].values() for size in scale])
    leaves = tuple(
        Leaf(
            key=key,
            department=departments.index(row["path"].split("/")[0]),
            group=row["path"].split("/")[1],
            price=float(row["price"]),
            colors=tuple(colors.index(word) for word in data["palettes"][row["palette"]].split()),
            materials=tuple(materials.index(word) for word in row["materials"].split()),
            sizes=tuple(sizes.index(size) for size in data["scales"][row["scale"]]),
            features=tuple(features.index(word) for word in row["features"].split()),
            host=order.index(row["fits"]) if "fits" in row else -1,
            companion=order.index(row["with"]) if "with" in row else -1,
            unrelated=_unrelated(key, raw, order),
        )
        for key, row in raw.items()
    )
    return Taxonomy(leaves, departments, colors, materials, sizes, features)
