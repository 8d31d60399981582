"""Hi-Gen's identifiers: categories first, clusters inside them, a number last; from the catalogue to a search."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.data import Catalog
from restd.data.categories import Categories
from restd.errors import ConfigError
from restd.index import IndexConfig, SidIndex, build_index
from restd.quantize import QUANTIZERS, HiGenConfig
from restd.quantize.hi_gen_identify import identify_by_categories
from restd.quantize.signals import Signals
from restd.search import Retriever
from tests.training import run, write_world


def drawn(seed, items=90):
    """Vectors, some of them alike, and paths of up to three depths."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(items, 6)).astype(np.float32)
    vectors[rng.integers(items, size=20)] = vectors[0]
    names = [["a", "b", "c"], ["x", "y"], ["1", "2"]]
    paths = [[str(rng.choice(part)) for part in names[: rng.integers(1, 4)]] for _ in range(items)]
    return vectors, Categories.of_paths(paths, depth=3)


def prefixes(sids, length):
    return [tuple(sid[:length]) for sid in sids.tolist()]


@settings(max_examples=20)
@given(st.integers(0, 1_000))
def test_the_first_codes_are_the_category_path_and_the_whole_is_unique(seed):
    vectors, categories = drawn(seed)
    made = identify_by_categories(vectors, HiGenConfig(levels=5, depth=3, codes=(4, 3), dim=4), Signals(categories))
    assert np.array_equal(made.sids[:, :3], categories.of_item)
    assert made.sids.shape == (90, 6)
    assert len(set(prefixes(made.sids, 6))) == 90
    assert (made.sids.max(axis=0) < made.sizes).all()
    assert made.sizes[:3] == categories.counts
    assert made.sizes[3] <= 4
    assert made.sizes[4] <= 3
    assert not made.ends
    for prefix in set(prefixes(made.sids, 5)):
        numbers = [sid[5] for sid in made.sids.tolist() if tuple(sid[:5]) == prefix]
        assert numbers == list(range(len(numbers)))


def test_clusters_are_inside_their_category_and_near_items_share_them():
    """Two well parted groups in each of two categories are found, whatever the other category has."""
    rng = np.random.default_rng(0)
    centres = np.eye(8, dtype=np.float32)[:4]
    vectors = np.repeat(centres, 30, axis=0) + rng.normal(0, 0.01, (120, 8)).astype(np.float32)
    categories = Categories.of_paths([["a"]] * 60 + [["b"]] * 60, depth=1)
    made = identify_by_categories(vectors, HiGenConfig(levels=2, codes=2, dim=8), Signals(categories))
    assert made.sizes == (2, 2, 30)
    for start in (0, 30, 60, 90):
        assert len(set(prefixes(made.sids[start : start + 30], 2))) == 1
    assert len(set(prefixes(made.sids, 2))) == 4


def test_small_categories_have_as_many_clusters_as_different_items():
    vectors = np.array([[1, 0], [1, 0], [0, 1], [0.5, 1], [1, 1]], np.float32)
    categories = Categories.of_paths([["a"]] * 3 + [["b"]] * 2, depth=1)
    made = identify_by_categories(vectors, HiGenConfig(levels=2, codes=5, dim=2), Signals(categories))
    assert made.sizes == (2, 2, 2)
    assert made.sids[0, 1] == made.sids[1, 1] != made.sids[2, 1]
    assert made.sids[:, 2].tolist() == [0, 1, 0, 0, 0]


def test_the_seed_decides_and_a_sample_is_enough():
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(400, 8)).astype(np.float32)
    categories = Categories.of_paths([["a"], ["b"]] * 200, depth=1)
    one, again, other, sampled = (
        identify_by_categories(vectors, HiGenConfig(levels=2, codes=8, seed=seed, sample=sample), Signals(categories))
        for seed, sample in ((0, 400), (0, 400), (1, 400), (0, 50))
    )
    assert np.array_equal(one.sids, again.sids)
    assert not np.array_equal(one.sids, other.sids)
    assert not np.array_equal(one.sids, sampled.sids)
    assert sampled.sizes[1] == 8


def test_levels_may_end_with_the_categories():
    vectors, categories = drawn(0)
    made = identify_by_categories(vectors, HiGenConfig(levels=2), Signals(categories))
    assert np.array_equal(made.sids[:, :2], categories.of_item[:, :2])
    assert made.sids.shape == (90, 3)
    shallow = identify_by_categories(vectors, HiGenConfig(levels=2, depth=1, codes=4), Signals(categories))
    assert np.array_equal(shallow.sids[:, 0], categories.of_item[:, 0])
    assert shallow.sids.shape == (90, 3)


def test_what_cannot_be_stored_is_refused():
    items = 33_000
    vectors = np.tile(np.eye(2, dtype=np.float32), (items, 1))[:items]
    alike = Categories.of_paths([["a"]] * items, depth=1)
    with pytest.raises(ConfigError, match=r"Level 2 would need 33,000 codes, .* share .* Raise hi-gen\.codes"):
        identify_by_categories(vectors, HiGenConfig(levels=1), Signals(alike))
    own = Categories.of_paths([[str(number)] for number in range(items)], depth=1)
    with pytest.raises(ConfigError, match=r"Level 1 would need 33,000 codes, .* categories .* Lower hi-gen\.depth"):
        identify_by_categories(vectors, HiGenConfig(levels=1), Signals(own))
    with pytest.raises(ConfigError, match="depth must be at least 1, got 0"):
        HiGenConfig(depth=0)
    few, categories = drawn(0)
    with pytest.raises(ConfigError, match="one codebook size, or one for each of 1 levels; got 3 sizes"):
        identify_by_categories(few, HiGenConfig(levels=4, codes=(4, 4, 4)), Signals(categories))


def write_settings(**values):
    return IndexConfig("tfidf-svd", "hi-gen", sections={"hi-gen": HiGenConfig(**values)})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    build_index(Catalog(data), folder / "index", write_settings(levels=3, codes=4, dim=8))
    return folder / "index", data


def test_an_index_of_it_knows_where_the_items_are(world):
    index = SidIndex.load(world[0])
    paths = [json.loads(line)["category"] for line in (world[1] / "items.jsonl").read_text("utf-8").splitlines()]
    codes_of: dict[tuple[str, ...], set[tuple[int, ...]]] = {}
    for path, sid in zip(paths, index.sids.tolist(), strict=True):
        codes_of.setdefault(tuple(path), set()).add(tuple(sid[:2]))
    assert all(len(codes) == 1 for codes in codes_of.values())
    assert len(set.union(*codes_of.values())) == len(codes_of) == 5
    assert index.table.unique == 60
    assert index.latents.shape == (60, 8)
    assert index.codebooks is None
    with pytest.raises(ConfigError, match="identifiers of hi-gen come without"):
        index.latents_and_codebooks()
    lines = []
    build_index(Catalog(world[1]), world[0], write_settings(levels=3, codes=4, dim=8), notify=lines.append)
    assert "Kept the identifiers" in lines
    assert QUANTIZERS["hi-gen"].source == "Wu et al. 2024"


def test_it_is_trained_and_searched(world, tmp_path):
    run(*world, tmp_path / "run", "train.lr=0.01", updates=60)
    hits = Retriever.load(tmp_path / "run").search("steel lamp", k=8)
    assert len(hits) == 8
    assert hits[0].item.endswith("steel-lamp")
    assert sum(hit.item.endswith("lamp") for hit in hits) >= 4


def test_distilling_it_is_refused(world, tmp_path):
    with pytest.raises(ConfigError, match="so there are no residuals"):
        run(*world, tmp_path / "run", objective="restd")


def test_a_catalogue_without_categories_is_refused(tmp_path, command):
    write_world(tmp_path / "data", categories=False)
    words = ["index", "build", "--catalog", tmp_path / "data", "--out", tmp_path / "index", "--quantizer", "hi-gen"]
    code, _, printed = command(*words, "--set", "index.encoder=tfidf-svd")
    assert code == 2
    assert "hi-gen needs categories of the items" in " ".join(printed.split())


def test_the_command_builds_and_inspects_it(tmp_path, command):
    write_world(tmp_path / "data")
    words = ["index", "build", "--catalog", tmp_path / "data", "--out", tmp_path / "index", "--quantizer", "hi-gen"]
    code, printed, problems = command(*words, "--levels", "3", "--set", "hi-gen.depth=1", "--encoder", "tfidf-svd")
    assert (code, SidIndex.load(tmp_path / "index").sizes[0]) == (0, 1), problems
    code, printed, _ = command("index", "inspect", tmp_path / "index")
    assert code == 0
    assert "60" in printed
