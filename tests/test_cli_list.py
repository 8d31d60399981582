"""`restd list`, and names from registries in the help."""

import json
import re

import pytest

from restd.cli.command import LISTED
from restd.cli.listing import REGISTRIES, registry, rows_of
from restd.registry import Registry


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_registry_is_printed_as_it_is(command, name):
    assert isinstance(registry(name), Registry)
    assert registry(name).group == name
    code, out, _ = command("list", name, "--json")
    assert code == 0
    listed = json.loads(out)
    assert {entry["name"]: entry["sentence"] for entry in listed} == registry(name).describe()
    for entry in listed:
        assert list(entry) == ["name", "sentence", "task", "source"]
        assert entry["sentence"].endswith(".")
        assert entry["task"] in ("search", "recommend", "any")
        assert entry["source"] == registry(name)[entry["name"]].source
    assert any(entry["source"] for entry in listed)


def test_all_registries_at_once(command):
    code, out, _ = command("list", "--json")
    assert code == 0
    assert json.loads(out) == {name: rows_of(name) for name in REGISTRIES}
    code, out, _ = command("list")
    assert code == 0
    for name in REGISTRIES:
        assert name.capitalize() in out


def test_an_unknown_list_is_named_with_the_known_ones(command):
    code, _, err = command("list", "recipes")
    assert code == 2
    assert "Unknown list 'recipes'. Known: " in err
    assert "backbones" in err


@pytest.mark.parametrize("option", LISTED)
def test_help_lists_the_registered_names(command, option):
    pages = []
    for name in ("index build", "train", "evaluate", "compare"):
        _, out, _ = command(*name.split(), "--help")
        plain = re.sub(r"[│\s]+", " ", out)
        if f"{option} " in plain:
            pages.append(plain)
            assert f"Known: {', '.join(registry(LISTED[option]))}." in plain
    assert pages


def test_what_another_package_registers_is_listed(command):
    from dataclasses import replace

    backbones = registry("backbones")
    backbones.add(replace(backbones["compact"], name="my-own", summary="Mine."))
    try:
        _, out, _ = command("train", "--help")
        assert "my-own" in re.sub(r"[│\s]+", " ", out)
        _, out, _ = command("list", "backbones", "--json")
        expected = {"name": "my-own", "sentence": "Mine.", "task": "search", "source": backbones["compact"].source}
        assert expected in json.loads(out)
    finally:
        backbones.remove("my-own")


def test_a_data_set_of_another_package_is_made_by_name(command, tmp_path):
    from pathlib import Path

    from restd.data import DATASETS, DatasetEntry, Source
    from restd.shop import ShopSpec, shop_source

    def make(count: int, folder: Path) -> Source:
        assert isinstance(folder, Path)
        return shop_source(ShopSpec(items=count))

    DATASETS.add(DatasetEntry("my-shop", "Mine.", "search", make))
    try:
        words = ("data", "make", "my-shop", "--out", tmp_path / "set", "--json", "--set", "count=500")
        code, out, err = command(*words, "--set", "folder=somewhere")
        assert code == 0, err
        assert json.loads(out)["rows"]["items"] == 500
        for parameter, message in (
            ("count=many", "--set count=many does not fit the data set 'my-shop'"),
            ("count", "Expected --set NAME=VALUE"),
            ("size=3", "no parameter 'size'"),
        ):
            code, _, err = command("data", "make", "my-shop", "--out", tmp_path / "other", "--set", parameter)
            assert code == 2
            assert message in err
    finally:
        DATASETS.remove("my-shop")
    code, _, err = command("data", "make", "my-shop", "--out", tmp_path / "other")
    assert code == 2
    assert "Unknown data set 'my-shop'" in err
