"""Baselines keep the contract of rankers."""

import numpy as np
import pytest

from restd.artifacts import read_manifest
from restd.data import Catalog
from restd.encode import Embeddings
from restd.errors import ArtifactError, ConfigError
from restd.experiments import Comparison
from restd.rankers import (
    RANKERS,
    Bm25,
    Dense,
    EmbeddingNeighbours,
    Hybrid,
    Popularity,
    Ranker,
    RankerContext,
    RankerEntry,
    RankerTask,
    decoding_of,
    find_ranker,
    make_ranker,
    ranker_names,
)
from restd.snapshot import Snapshot
from tests.training import make_index, write_world


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    home = make_index(data, folder / "index")
    quick = {name: {"epochs": 1} for name in ("dpr", "laser")}
    return RankerContext(Snapshot.load(home, data), data, home, trained=folder / "trained", settings=quick)


def test_bm25_finds_words_and_folds_accents(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("id,title\na,tetera eléctrica roja\nb,電気ケトル 白\nc,garden hose\n", encoding="utf-8")
    catalog = Catalog(path)
    rows, scores = Bm25.of(Snapshot.numbered(catalog.ids(), catalog)).rank(["electrica", "ケトル", "hose"], 3)
    assert rows[:, 0].tolist() == [0, 1, 2]
    assert np.isfinite(scores[:, 0]).all()


@pytest.mark.parametrize("name", ranker_names("search"))
def test_every_baseline_ranks_items_once_and_best_first(place, name):
    if name == "bm25-stemmed":
        pytest.importorskip("Stemmer", reason="needs PyStemmer, of the extra bm25")
    ranker = make_ranker(name, place)
    assert isinstance(ranker, Ranker)
    rows, scores = ranker.rank(["red steel kettle", "oak desk"], 10)
    assert rows.shape == (2, 10)
    assert (np.diff(np.where(rows >= 0, scores, -1e9), axis=1) <= 1e-9).all()
    for held in rows:
        found = held[held >= 0].tolist()  # a lexical ranker has nothing to say of items without a common word
        assert len(set(found)) == len(found)
        assert len(found) == 10 or name.startswith("bm25")
    ids = place.snapshot.ids.to_pylist()
    if name != "popularity":
        assert "steel" in ids[rows[0, 0]]
        assert "kettle" in ids[rows[0, 0]]


def test_bm25_does_not_rank_what_shares_no_word(place):
    rows, scores = make_ranker("bm25", place).rank(["unheard words", "oak"], 60)
    assert (rows[0] == -1).all()
    assert (rows[1] >= 0).sum() == 20
    assert np.isneginf(scores[rows < 0]).all()


def test_dense_refuses_an_index_that_changed(tmp_path):
    data = write_world(tmp_path / "data")
    home = make_index(data, tmp_path / "index")
    snapshot = Snapshot.load(home, data)
    same_size = snapshot.remove(["red-oak-desk"]).add(
        [{"id": "new", "title": "new oak desk"}], Dense.of(snapshot, embeddings_of(home)).encoder.encode(["new desk"])
    )
    assert len(same_size) == len(snapshot)
    for name in ("dense", "hybrid"):
        with pytest.raises(ArtifactError, match=r"are not those of the index.*added or removed"):
            make_ranker(name, RankerContext(same_size, data, home))
    with pytest.raises(ArtifactError, match="are not those of the index"):
        EmbeddingNeighbours.of(same_size, embeddings_of(home))
    manifest = read_manifest(home / "index")
    same_size.index.save(home / "index", parents={**manifest.parents, "index": manifest.content})  # as restd add does
    with pytest.raises(ArtifactError, match="are not those of the index"):
        make_ranker("dense", RankerContext(Snapshot.load(home), data, home))


def embeddings_of(home):
    return Embeddings.open(home / "embeddings")


def test_popularity_counts_training_pairs(place):
    held = Popularity.of(place.snapshot, place.data)
    ids = place.snapshot.ids.to_pylist()
    assert held.counts.sum() == 30  # the positive training pairs, not the irrelevant ones
    assert {ids[row].split("-")[0] for row in held.rank(["x"], 30)[0][0]} == {"red", "blue"}


def test_hybrid_is_the_fusion_of_its_rankers(place):
    parts = make_ranker("bm25", place), make_ranker("dense", place)
    both = make_ranker("hybrid", place)
    assert isinstance(both, Hybrid)
    query = ["blue oak chair"]
    first = [part.rank(query, 100)[0][0].tolist() for part in parts]
    score = {row: sum(1 / (61 + held.index(row)) for held in first if row in held) for row in first[0] + first[1]}
    wanted = sorted(score, key=lambda row: (-score[row], row))[:5]
    assert both.rank(query, 5)[0][0].tolist() == wanted


def test_an_unknown_baseline(place):
    with pytest.raises(ConfigError, match=r"Unknown ranker 'elastic'\. Known: bm25"):
        make_ranker("elastic", place)
    with pytest.raises(ConfigError, match=r"'sasrec' does not search; it is for recommend\. Rankers that search: bm25"):
        make_ranker("sasrec", place)


def test_a_ranker_is_one_registration(place):
    """Registered, it is listed, made by name for its task, and accepted as a baseline of a comparison."""

    class InOrder:
        def __init__(self, context):
            self.snapshot_hash = context.snapshot.hash

        def rank(self, queries, k):
            return np.tile(np.arange(k), (len(queries), 1)), np.zeros((len(queries), k))

    RANKERS.add(RankerEntry("in-order", "The catalogue's order.", {"search": RankerTask(InOrder, {"order": "rows"})}))
    try:
        assert RANKERS.describe()["in-order"] == "The catalogue's order."
        rows, _ = make_ranker("in-order", place).rank(["mug"], 3)
        assert rows.tolist() == [[0, 1, 2]]
        assert decoding_of("in-order", place) == {"ranker": "in-order", "order": "rows"}
        assert Comparison(place.home, place.data, place.data, baselines=("in-order",)).baselines == ("in-order",)
        with pytest.raises(ConfigError, match="'in-order' does not recommend"):
            find_ranker("in-order", "recommend")
    finally:
        RANKERS.remove("in-order")


def test_dense_without_embeddings(place, tmp_path):
    with pytest.raises(ConfigError, match="embeddings"):
        make_ranker("dense", RankerContext(place.snapshot, place.data, tmp_path))
