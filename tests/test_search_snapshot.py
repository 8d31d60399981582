"""The snapshot: its hash decides what belongs to it, whatever the number of rows."""

import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.data import Catalog
from restd.errors import ArtifactError, ConfigError, DataError
from restd.evaluate import evaluate, read_tests
from restd.index import SidIndex
from restd.rankers import Bm25, Hybrid, Popularity
from restd.search import HeadUse, Retriever
from restd.snapshot import Condition, Items, Snapshot
from tests.training import make_index, run, write_world

NEW = {"id": "new", "title": "purple oak desk"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    index = make_index(data, folder / "index")
    run(index, data, folder / "run", objective="restd", updates=5)
    return folder


@pytest.fixture
def snapshot(world):
    return Snapshot.load(world / "index", world / "data")


@pytest.fixture
def retriever(world):
    return Retriever.load(world / "run", keep_heads=True)


def swapped(retriever):
    """One item less and another one more."""
    retriever.remove(["red-oak-desk"])
    retriever.add([NEW])


def test_equal_contents_have_equal_hashes(world, snapshot, tmp_path):
    again = Snapshot.load(make_index(world / "data", tmp_path / "again"))
    assert again.hash == snapshot.hash
    assert len(snapshot.hash) == 64


def test_whatever_decides_answers_is_in_the_hash(snapshot):
    index = snapshot.index
    ids = index.table.ids.to_pylist()
    sids = index.sids.copy()
    sids[0, -1] = (sids[0, -1] + 1) % index.sizes[-1]
    latents = index.latents.copy()
    latents[0, 0] += 1
    changed = [
        replace(index, table=replace(index.table, ids=pa.array(["other", *ids[1:]]))),
        replace(index, table=replace(index.table, ids=pa.array([*ids[1:], ids[0]]))),
        replace(index, table=replace(index.table, ids=pa.array([ids[0] + ids[1][:1], ids[1][1:], *ids[2:]]))),
        replace(index, table=replace(index.table, sids=sids)),
        replace(index, latents=latents),
        replace(index, latents=None),
        index.remove([ids[0]]),
    ]
    hashes = {Snapshot.of(other).hash for other in changed}
    assert len(hashes) == len(changed)
    assert snapshot.hash not in hashes


@given(st.lists(st.text(max_size=4), min_size=2, max_size=8), st.integers(0, 3))
def test_a_slice_of_ids_hashes_as_the_same_ids_do(texts, start):
    sliced = pa.array([*["x"] * start, *texts], pa.string()).slice(start)
    assert Snapshot.numbered(sliced).hash == Snapshot.numbered(pa.array(texts, pa.string())).hash


def test_hashing_a_large_catalogue_is_quick():
    rows = 300_000
    snapshot = Snapshot.numbered(pa.array(np.arange(rows)).cast(pa.string()))
    snapshot = Snapshot.of(replace(snapshot.index, latents=np.zeros((rows, 32), np.float16)))
    begin = time.perf_counter()
    assert snapshot.hash
    assert time.perf_counter() - begin < 2.0  # a twentieth of it on a quiet machine


def test_companions_of_another_snapshot_are_refused_by_hash(retriever):
    companion = Bm25.of(retriever.snapshot)
    retriever.set_companions([companion])
    assert retriever.search("oak desk", k=3, mode="hybrid")
    swapped(retriever)
    assert len(retriever.snapshot) == companion.items
    with pytest.raises(ArtifactError, match=r"The companion 'bm25' was made for the snapshot .*Make it again"):
        retriever.set_companions([companion])
    hits = retriever.search("purple oak desk", k=59, mode="hybrid")
    assert "new" in {hit.item for hit in hits}
    assert "red-oak-desk" not in {hit.item for hit in hits}


def test_embeddings_of_an_index_that_changed_are_refused(retriever):
    retriever.set_companions(["bm25", "dense"])
    swapped(retriever)
    with pytest.raises(ArtifactError, match="are not those of the index, which names no embeddings"):
        retriever.set_companions(["dense"])


def test_rankers_of_two_snapshots_are_not_fused(snapshot):
    other = snapshot.remove(["red-oak-desk"])
    with pytest.raises(ArtifactError, match="Fuse rankers of one snapshot"):
        Hybrid((Bm25.of(snapshot), Bm25.of(other)))
    with pytest.raises(ConfigError, match="at least one"):
        Hybrid(())


def test_evaluations_refuse_what_was_made_for_another_snapshot(world, snapshot):
    ranker = Popularity.of(snapshot, world / "data")
    tests = read_tests(world / "data", snapshot, split="valid")
    other = Snapshot.load(world / "index").remove(["black-steel-mug"])
    theirs = read_tests(world / "data", other, split="valid")
    with pytest.raises(ArtifactError, match="The ranker popular was made for the snapshot"):
        evaluate(ranker, theirs, other, name="popular")
    with pytest.raises(ArtifactError, match="The test queries of popular was made for the snapshot"):
        evaluate(ranker, theirs, snapshot, name="popular")
    evaluation, _ = evaluate(ranker, tests, snapshot, name="popular")
    assert evaluation.card.snapshot == snapshot.hash


def test_heads_serve_items_that_come_and_go(retriever):
    swapped(retriever)
    for mode in ("rerank", "fuse", "look-ahead", "one-shot"):
        hits = retriever.search("purple oak desk", k=60, heads=HeadUse(mode))
        assert len(hits) == 60
        assert "new" in {hit.item for hit in hits}


def test_adding_and_removing_leave_the_old_snapshot_as_it_was(retriever):
    before = retriever.snapshot
    titles = before.items.titles().to_pylist()
    swapped(retriever)
    assert retriever.snapshot.hash != before.hash
    assert before.items.titles().to_pylist() == titles
    assert len(before.trie_of(None).rows) == 60
    retriever.replace_snapshot(before)
    assert retriever.snapshot_hash == before.hash


def test_a_snapshot_of_another_layout_is_not_searched(retriever, world, tmp_path):
    other = Snapshot.load(make_index(world / "data", tmp_path / "other", seed=3))
    with pytest.raises(ConfigError, match="other codebooks or level sizes"):
        retriever.replace_snapshot(other)


def test_a_companion_by_name_needs_the_folders(retriever):
    made = Retriever(retriever.backbone, retriever.snapshot)
    with pytest.raises(ConfigError, match="does not know"):
        made.set_companions(["bm25"])
    with pytest.raises(ConfigError, match="Unknown ranker 'magic'"):
        retriever.set_companions(["magic"])


def test_too_many_items_to_number(monkeypatch):
    monkeypatch.setattr("restd.snapshot.snapshot._CODES", 2)
    with pytest.raises(ConfigError, match="at most 4"):
        Snapshot.numbered(pa.array(list("abcde")))


PATHS = [["Home", "Kitchen"], ["Home", "Garden"], [], None, ["Kitchen aids"], ["Garden", "Home"]]
WORDS = ["Red mug", "red", None, "", "Blue mug", "mug"]


def brute_force(operator, value, column):
    """The rules of filters in plain Python."""

    def meets(entry):
        if column == "words":
            if entry is None:
                return False
            if operator == "~":
                return value.lower() in entry.lower()
            return {"=": entry == value, "!=": entry != value, "<": entry < value, ">=": entry >= value}[operator]
        names, path = [name.strip() for name in value.split(">")], list(entry or ())
        if operator == "~":
            return any(names[0].lower() in name.lower() for name in path)
        inside = path[: len(names)] == names or (len(names) == 1 and names[0] in path)
        return inside if operator == "=" else not inside

    return [meets(entry) for entry in (WORDS if column == "words" else PATHS)]


@pytest.mark.parametrize("value", ["Home", "Home > Garden", "Garden > Home", "kitchen", "mug", "red", "Red mug"])
@pytest.mark.parametrize(
    ("column", "operator"),
    [*(("words", operator) for operator in ("=", "!=", "<", ">=", "~")), ("path", "="), ("path", "!="), ("path", "~")],
)
def test_filters_are_what_plain_python_says(column, operator, value):
    ids = pa.array([str(row) for row in range(len(PATHS))])
    columns = {"path": pa.array(PATHS), "words": pa.array(WORDS)}
    items = Items(ids, None, pa.table({"id": ids, **columns}))
    assert items.matching([Condition(column, operator, value)]).tolist() == brute_force(operator, value, column)


def test_several_conditions_must_all_hold_and_dictionaries_are_read():
    ids = pa.array(["a", "b", "c", "d"])
    kinds = pa.array(["x", "y", "x", None]).dictionary_encode()
    items = Items(
        ids, None, pa.table({"id": ids, "kind": kinds, "price": [1, 2, 30, 4], "new": [True, False, True, True]})
    )
    conditions = [Condition.parse(text) for text in ("kind=x", "price<=9", "new=true")]
    assert items.matching(conditions).tolist() == [True, False, False, False]
    assert items.matching([]).all()
    with pytest.raises(DataError, match=r"Column 'price' has int64, so '2\.5x' cannot be compared"):
        items.matching([Condition("price", "<", "2.5x")])


def test_lists_of_names_have_no_order():
    ids = pa.array(["a"])
    items = Items(ids, None, pa.table({"id": ids, "path": pa.array([["Home"]])}))
    with pytest.raises(DataError, match=r"Column 'path' has lists of names.*use =, != or ~"):
        items.matching([Condition("path", "<", "Home")])


def test_texts_need_a_catalogue(world):
    index = SidIndex.load(world / "index")
    with pytest.raises(ConfigError, match="no catalogue was given"):
        Snapshot.of(index).items.texts()
    assert len(Snapshot.of(index, Catalog(world / "data")).items.texts()) == 60
