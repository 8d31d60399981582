"""Data sets join by registration, and the command line has them all."""

import re
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

from restd.data import DATASETS, DatasetEntry, Source, make_source, open_dataset, write_dataset
from restd.data.schema import ITEM_COLUMNS
from restd.errors import ConfigError
from restd.shop import ShopperSpec, ShopSpec


def test_the_command_line_has_every_data_set():
    from typer.main import get_command

    from restd.cli.data import app

    commands = get_command(app).commands
    assert set(commands) - {"check", "make", "hold-out"} == set(DATASETS)


def test_every_data_set_says_what_it_is_and_what_it_takes():
    for entry in DATASETS.entries():
        assert entry.summary.endswith("."), entry.name
        assert entry.task in ("search", "recommend")
        assert entry.parameters, entry.name
    assert DATASETS["esci"].parameters["examples"].default is DATASETS["esci"].parameters["examples"].empty
    assert DATASETS["shop"].parameters["items"].default == 20_000


def test_a_data_set_is_one_registration(tmp_path):
    def two_mugs(colour: str = "red") -> Source:
        rows = [{"id": str(number), "title": f"{colour} mug {number}", "category": []} for number in range(2)]
        return Source("mugs", {"colour": colour}, lambda: iter([pa.RecordBatch.from_pylist(rows, ITEM_COLUMNS)]))

    DATASETS.add(DatasetEntry("mugs", "Two mugs.", task="search", make=two_mugs))
    try:
        write_dataset(make_source("mugs", colour="blue"), tmp_path / "mugs")
    finally:
        DATASETS.remove("mugs")
    table = open_dataset(tmp_path / "mugs").table("items")
    assert table["title"].to_pylist() == ["blue mug 0", "blue mug 1"]


def test_parameters_are_checked():
    with pytest.raises(ConfigError, match=r"Unknown data set 'shops'\. Did you mean 'shop'\?"):
        make_source("shops")
    with pytest.raises(ConfigError, match=r"The data set 'nq320k' needs: documents, test\."):
        make_source("nq320k", train="t")
    with pytest.raises(ConfigError, match=r"has no parameter 'size'; it has: locale, items, users, seed"):
        make_source("shoppers", size=3)


@pytest.mark.parametrize(("name", "spec"), [("shop", ShopSpec), ("shoppers", ShopperSpec)])
def test_generated_sets_have_the_parameters_of_their_spec(name, spec):
    parameters = {key: parameter.default for key, parameter in DATASETS[name].parameters.items()}
    assert parameters == {field.name: field.default for field in fields(spec)}
    assert make_source(name, items=500, **({"users": 100} if name == "shoppers" else {})).name == name


def test_the_documents_list_every_data_set():
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (search|recommend) \| (.*) \|$", page, re.MULTILINE)
    assert sorted(rows) == sorted((entry.name, entry.task, entry.summary) for entry in DATASETS.entries())
