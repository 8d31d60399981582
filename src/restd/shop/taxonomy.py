"""The category tree of the shop: leaves with their possible colours, materials, sizes and features, and links."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf category. Integers are indices into the lists of the `Taxonomy`."""

    key: str
    department: int
    group: str
    price: float
    colors: tuple[int, ...]
    materials: tuple[int, ...]
    sizes: tuple[int, ...]
    features: tuple[int, ...]
    host: int
    """For accessories, the leaf whose products they fit; else -1."""
    companion: int
    """The leaf that goes with this one, as mugs go with kettles, or -1."""
    unrelated: tuple[int, ...]
    """Leaves of the same department that are not linked to this one; irrelevant items are drawn from them."""


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """The category tree and the attribute values, as keys that each locale has words for."""

    leaves: tuple[Leaf, ...]
    departments: tuple[str, ...]
    colors: tuple[str, ...]
    materials: tuple[str, ...]
    sizes: tuple[str, ...]
    features: tuple[str, ...]


def read_words(name: str) -> dict[str, Any]:
    """Read one of the TOML files of this package."""
    return tomllib.loads(files("restd.shop").joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _unique(words: list[str]) -> tuple[str, ...]:
    """Remove duplicates, keeping the order of first occurrence."""
    return tuple(dict.fromkeys(words))


def _unrelated(key: str, rows: dict[str, dict[str, Any]], keys: tuple[str, ...]) -> tuple[int, ...]:
    department = rows[key]["path"].split("/")[0]
    links = {key, rows[key].get("fits"), rows[key].get("with")}
    links |= {other for other, row in rows.items() if key in (row.get("fits"), row.get("with"))}
    return tuple(
        position
        for position, other in enumerate(keys)
        if other not in links and rows[other]["path"].split("/")[0] == department
    )


@cache
def load_taxonomy() -> Taxonomy:
    """Return the taxonomy, which all locales share.

    >>> taxonomy = load_taxonomy()
    >>> len(taxonomy.leaves) >= 60, taxonomy.leaves[0].key, taxonomy.leaves[taxonomy.leaves[0].companion].key
    (True, 'kettle', 'mug')
    """
    data = read_words("world")
    rows: dict[str, dict[str, Any]] = data["leaves"]
    keys = tuple(rows)
    departments = _unique([row["path"].split("/")[0] for row in rows.values()])
    colors = tuple(data["colors"].split())
    materials = _unique([word for row in rows.values() for word in row["materials"].split()])
    features = _unique([word for row in rows.values() for word in row["features"].split()])
    sizes = _unique([size for scale in data["scales"].values() for size in scale])
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
            host=keys.index(row["fits"]) if "fits" in row else -1,
            companion=keys.index(row["with"]) if "with" in row else -1,
            unrelated=_unrelated(key, rows, keys),
        )
        for key, row in rows.items()
    )
    return Taxonomy(leaves, departments, colors, materials, sizes, features)
