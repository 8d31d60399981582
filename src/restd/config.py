"""Settings are values: frozen dataclasses, TOML sections, and `--set section.name=value`."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from restd.errors import ConfigError

Config = TypeVar("Config")

RECIPES = "recipes"


def parse_settings(settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Turn `section.name=value` into sections; values are read as TOML, and as plain text where that fails.

    >>> parse_settings(["kmeans.iterations=10", "index.policy=suffix"])
    {'kmeans': {'iterations': 10}, 'index': {'policy': 'suffix'}}
    """
    sections: dict[str, dict[str, Any]] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, dot, name = path.strip().partition(".")
        if not (equals and dot and section and name):
            raise ConfigError(f"--set {setting!r} is not of the form section.name=value, as in kmeans.iterations=10.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        sections.setdefault(section, {})[name] = value
    return sections


def read_recipe(name: str) -> dict[str, dict[str, Any]]:
    """Read a recipe: a TOML file of your own, or the name of one inside the package."""
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"Recipe {name} is not UTF-8; save it as UTF-8.") from error
    else:
        folder = resources.files("restd") / RECIPES
        known = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
        if name not in known:
            raise ConfigError(f"Recipe {name!r} is neither a .toml file nor one of: {', '.join(known)}.")
        text = (folder / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Recipe {name} is not valid TOML: {error}.") from error


def merge(*layers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Lay sections over one another, the last winning.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, values in layer.items():
            if not isinstance(values, Mapping):
                raise ConfigError(f"{section!r} stands outside any section; settings live in sections such as [index].")
            merged[section] = {**merged.get(section, {}), **values}
    return merged


def read_section(kind: type[Config], values: Mapping[str, Any], *, section: str) -> Config:
    """Build a frozen dataclass from a section, refusing unknown names and values of the wrong type."""
    assert is_dataclass(kind)
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise ConfigError(f"[{section}] has no setting {name!r}; it has: {', '.join(known)}.")
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][:1])
        raise ConfigError(f"[{section}] {where} = {first['input']!r} cannot be used: {first['msg']}.") from error


def plain(config: Any) -> dict[str, Any]:
    """Return a configuration as JSON-able values, tuples as lists, so that what is read back compares equal."""
    return json.loads(json.dumps(asdict(config)))
