"""The explorer's work does not grow with the catalogue: a million items, and how many of them are read."""

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("fastapi")

from restd.codes import Codebooks
from restd.index import SidIndex
from restd.index.table import SidTable
from restd.serve import catalog_items, catalog_tree, item_map
from restd.serve.catalog_items import ShownItem, find_row, items_containing, neighbours_of, prefix_counts
from restd.serve.catalog_tree import tree_node
from restd.serve.facets import measure_facets
from restd.serve.item_map import ItemMap, MapAxes, spread_rows
from restd.snapshot import Items, Snapshot

MILLION = 1_000_000


@pytest.fixture(scope="module")
def million():
    """A million items in three levels, with latents and columns, and no catalogue on disk."""
    rng = np.random.default_rng(0)
    sids = np.column_stack([rng.integers(size, size=MILLION) for size in (64, 256, 256)]).astype(np.int16)
    ids = pa.array(np.arange(MILLION).astype(str))
    codebooks = Codebooks.of([rng.normal(size=(size, 4)) for size in (64, 256, 256)])
    columns = {
        "title": pa.array(np.array(["red kettle", "blue kettle", "oak desk", "steel lamp"])[sids[:, 0] % 4]),
        "price": pa.array(rng.integers(1, 100, MILLION)),
        "brand": pa.array(rng.integers(0, 200, MILLION).astype(str)),
    }
    latents = rng.normal(size=(MILLION, 4)).astype(np.float16)
    index = SidIndex(SidTable(ids, sids, (64, 256, 256)), sids, latents, codebooks, None, "none")
    return Snapshot(index, Items(ids, None, _columns=columns))


@pytest.fixture
def counted(monkeypatch):
    """How many items became Python objects, call by call."""
    counts = []
    original = catalog_items.show_items

    def show_items(snapshot, rows):
        counts.append(len(rows))
        return original(snapshot, rows)

    for module in (catalog_items, catalog_tree):
        monkeypatch.setattr(module, "show_items", show_items)
    return counts


def test_a_node_of_a_million_items_reads_a_few_thousand_titles(million, counted):
    root = tree_node(million, limit=64)
    assert root.items == MILLION
    assert sum(child.items for child in root.children) == MILLION
    assert counted == [4096]
    assert all(child.words for child in root.children)
    counted.clear()
    below = tree_node(million, root.children[0].prefix, limit=256)
    assert below.items == root.children[0].items
    assert len(counted) == 1
    assert counted[0] <= 4096
    leaf = tree_node(million, million.sids[5].tolist())
    assert "5" in {member.item for member in leaf.members}


def test_one_of_a_million_items_has_its_neighbours(million, counted):
    assert find_row(million, "654321") == 654_321
    assert find_row(million, "-1") is None
    neighbours = neighbours_of(million, 654_321, limit=12)
    assert len(neighbours) == 12
    assert neighbours[0].shared_levels >= 2
    assert prefix_counts(million, 654_321)[0][1] == (million.sids[:, 0] == million.sids[654_321, 0]).sum()
    assert counted == [12]


def test_texts_are_sought_in_a_million_titles(million, counted):
    matches = items_containing(million, "KETTLE", limit=20)
    assert matches.total == np.isin(million.sids[:, 0] % 4, (0, 1)).sum()
    assert len(matches.items) == 20
    assert all(isinstance(item, ShownItem) for item in matches.items)
    assert counted == [20]


def test_facets_of_a_million_items_have_few_values(million):
    facets = {facet.column: facet for facet in measure_facets(million, ["title", "price", "brand"])}
    assert facets.keys() == {"price", "brand"}
    assert len(facets["brand"].values) == 50
    assert facets["brand"].more == 150
    assert (facets["price"].least, facets["price"].most) == (1, 99)


def test_the_map_of_a_million_items_reads_a_sample(million, monkeypatch):
    read = []
    original = spread_rows

    def spread(snapshot, count):
        rows = original(snapshot, count)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(item_map, "spread_rows", spread)
    axes = MapAxes.of(million)
    placed = ItemMap.of(million, axes, points=5_000)
    assert read == [50_000, 5_000]
    assert placed.sampled
    share = np.bincount(placed.first_codes, minlength=64) / 5_000
    assert np.abs(share - 1 / 64).max() < 0.005, "every code has its share"
