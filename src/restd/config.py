"""Settings: frozen dataclasses, read from TOML sections and from `--set section.name=value`."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from restd.errors import ConfigError

Config = TypeVar("Config")

RECIPES = "recipes"
OPTIONAL = {"optional": True}
"""Metadata of a setting that was added later: records leave it out at its default, and so hash as they did before."""


def parse_settings(settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Turn `section.name=value` into sections; values are read as TOML, or as plain text if that fails.

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
    """Read a recipe: a TOML file, or the name of one inside the package."""
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
    """Merge sections; a later layer overrides an earlier one.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, values in layer.items():
            if not isinstance(values, Mapping):
                raise ConfigError(f"{section!r} is outside any section. Put it into a section, such as [index].")
            merged[section] = {**merged.get(section, {}), **values}
    return merged


def read_section(kind: type[Config], values: Mapping[str, Any], *, section: str) -> Config:
    """Build a frozen dataclass from a section; unknown names and values of the wrong type are errors."""
    assert is_dataclass(kind)
    with_config(ConfigDict(extra="forbid"))(kind)  # without it pydantic ignores names that the dataclass lacks
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        problems = error.errors()
        for problem in problems:
            if problem["type"] == "unexpected_keyword_argument":
                known = ", ".join(field.name for field in fields(kind))
                raise ConfigError(f"[{section}] has no setting {problem['loc'][0]!r}; it has: {known}.") from error
        first = problems[0]
        raise ConfigError(
            f"[{section}] {first['loc'][0] if first['loc'] else section} = {first['input']!r} cannot be used: "
            f"{first['msg']}."
        ) from error


def plain(config: Any) -> dict[str, Any]:
    """Return a configuration as JSON values, with tuples as lists, so that it equals what is read back.

    >>> from dataclasses import dataclass, field
    >>> @dataclass
    ... class Old:
    ...     depth: int = 3
    ...     extra: bool = field(default=False, metadata=OPTIONAL)
    >>> plain(Old()), plain(Old(extra=True))
    ({'depth': 3}, {'depth': 3, 'extra': True})
    """
    return json.loads(json.dumps(_recorded(config)))


def _recorded(value: Any) -> Any:
    """A value with dataclasses as dictionaries, at any depth."""
    if is_dataclass(value):
        kept = [part for part in fields(value) if not (part.metadata.get("optional") and _is_default(value, part))]
        return {part.name: _recorded(getattr(value, part.name)) for part in kept}
    if isinstance(value, dict):
        return {name: _recorded(part) for name, part in value.items()}
    return [_recorded(part) for part in value] if isinstance(value, (list, tuple)) else value


def _is_default(config: Any, part: Field[Any]) -> bool:
    return getattr(config, part.name) == part.default
