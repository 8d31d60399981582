"""Categories in which every item has a place at each depth."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.artifacts import create, open_artifact
from restd.data.categories import OTHER
from restd.errors import ConfigError
from restd.models import Categories, induce
from tests.models import PATHS

names = st.sampled_from(["a", "b", "a > b", "b > a", OTHER])


@given(st.lists(st.lists(names, max_size=4), min_size=1, max_size=20), st.integers(1, 4))
def test_every_item_can_be_reached_and_categories_nest(paths, depth):
    held = Categories.of_paths(paths, depth=depth)
    deepest = np.arange(held.counts[-1])
    owned = np.stack([held.members(deepest[[number]]) for number in deepest])
    assert (owned.sum(axis=0) == 1).all(), "every item is in exactly one deepest category"
    assert owned.any(axis=1).all(), "no category is empty"
    assert held.members(deepest).all()
    assert not held.members(deepest[:0]).any()
    for level in range(1, depth):
        pairs = set(map(tuple, held.of_item[:, level - 1 : level + 1].tolist()))
        assert len(pairs) == held.counts[level], "a category has one parent"


def test_short_paths_have_their_parents_bucket():
    held = Categories.of_paths(PATHS, depth=3)
    assert [held.names[2][number] for number in held.of_item[:, 2]] == [
        "home > lamp > desk",
        f"home > lamp > {OTHER}",
        f"home > {OTHER} > {OTHER}",
        f"{OTHER} > {OTHER} > {OTHER}",
        "office > cable > long",
        f"office > {OTHER} > {OTHER}",
    ]
    assert held.counts == (3, 5, 6)


def test_categories_are_kept(tmp_path):
    held = Categories.of_paths(PATHS, depth=3)
    ids = pa.array([f"i{number}" for number in range(6)])
    with create(tmp_path / "c", kind="categories", schema=1, settings={}) as writer:
        held.write(writer, ids)
    again, whose = Categories.read(open_artifact(tmp_path / "c", kind="categories", schema=1), induced=True)
    assert np.array_equal(again.of_item, held.of_item)
    assert (again.names, again.induced, whose.to_pylist()) == (held.names, True, ids.to_pylist())


def test_induced_categories_nest_and_are_the_same_at_each_run(rng):
    vectors = rng.normal(size=(120, 6)).astype(np.float32)
    held, again = (induce(vectors, branching=(4, 3, 2), seed=5) for _ in range(2))
    assert held.induced
    assert held.counts == (4, 12, 24)
    assert np.array_equal(held.of_item, again.of_item)
    assert not np.array_equal(held.of_item, induce(vectors, branching=(4, 3, 2), seed=6).of_item)
    for level in (1, 2):
        pairs = set(map(tuple, held.of_item[:, level - 1 : level + 1].tolist()))
        assert len(pairs) == held.counts[level]
    assert held.members(np.arange(24)).all()


def test_alike_items_share_an_induced_category(rng):
    blobs = np.repeat(10 * np.eye(3, 5, dtype=np.float32), 20, axis=0)
    held = induce(blobs + 0.1 * rng.normal(size=blobs.shape).astype(np.float32), branching=(3, 2))
    assert [len(set(held.of_item[start : start + 20, 0])) for start in (0, 20, 40)] == [1, 1, 1]
    assert held.counts == (3, 6)


def test_more_clusters_than_items(rng):
    assert induce(rng.normal(size=(3, 4)).astype(np.float32), branching=(16, 8)).counts == (3, 3)
    assert induce(np.ones((5, 4), np.float32), branching=(2, 2)).of_item.shape == (5, 2)
    for branching in ((), (4, 0)):
        with pytest.raises(ConfigError, match="must have numbers of at least 1"):
            induce(np.ones((5, 4), np.float32), branching=branching)
