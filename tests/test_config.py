"""Settings: unknown names and wrong values are errors that say what is possible."""

from dataclasses import dataclass

import pytest

from restd.config import merge, parse_settings, plain, read_recipe, read_section
from restd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Kettle:
    litres: float = 1.5
    colours: tuple[str, ...] = ("red",)


def test_a_section_becomes_the_dataclass_itself():
    kettle = read_section(Kettle, {"litres": 2, "colours": ["blue"]}, section="kettle")
    assert type(kettle) is Kettle
    assert kettle == Kettle(2.0, ("blue",))
    assert plain(kettle) == {"litres": 2.0, "colours": ["blue"]}


def test_an_unknown_name_is_refused_before_anything_else():
    with pytest.raises(ConfigError, match=r"\[kettle\] has no setting 'liters'; it has: litres, colours\."):
        read_section(Kettle, {"colours": 3, "liters": 2}, section="kettle")


def test_a_wrong_value_is_named():
    with pytest.raises(ConfigError, match=r"\[kettle\] litres = 'much' cannot be used: .*number"):
        read_section(Kettle, {"litres": "much"}, section="kettle")


def test_sections_are_read_and_merged():
    settings = parse_settings(["kettle.litres=2", "kettle.colours=['a', 'b']", "index.policy=suffix"])
    assert settings == {"kettle": {"litres": 2, "colours": ["a", "b"]}, "index": {"policy": "suffix"}}
    assert merge({"kettle": {"litres": 1, "colours": []}}, settings)["kettle"] == settings["kettle"]
    with pytest.raises(ConfigError, match=r"section\.name=value"):
        parse_settings(["litres=2"])
    with pytest.raises(ConfigError, match="'litres' is outside any section"):
        merge({"litres": 2})  # type: ignore[dict-item]


def test_a_recipe_is_a_file_or_a_name(tmp_path):
    (tmp_path / "own.toml").write_text("[kettle]\nlitres = 2\n")
    assert read_recipe(str(tmp_path / "own.toml")) == {"kettle": {"litres": 2}}
    (tmp_path / "bad.toml").write_text("[kettle\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_recipe(str(tmp_path / "bad.toml"))
    with pytest.raises(ConfigError, match=r"Recipe 'papr-index' is neither a \.toml file nor one of: .*paper-index"):
        read_recipe("papr-index")
