"""Answers of a trained model in a tiny world: valid, filtered, explained, changed without training."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from restd.data import Catalog
from restd.errors import ArtifactError, ConfigError, DataError
from restd.index import IndexConfig, SidIndex, build_index, with_shape
from restd.rankers import fuse
from restd.search import HEAD_MODES, HeadUse, Hit, Retriever, SearchOptions
from restd.snapshot import Condition, Items
from tests.models import tiny_sentence_model
from tests.training import make_index, plain_beam, run, write_world


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    index = make_index(data, folder / "index")
    runs = {
        name: run(index, data, folder / name, backbone=name, updates=60).folder.parent for name in ("compact", "calir")
    }
    runs["restd"] = run(index, data, folder / "restd", objective="restd", updates=20).folder.parent
    runs["t5"] = run(index, data, folder / "t5", backbone="t5", updates=60).folder.parent
    return runs


@pytest.fixture(params=["compact", "calir", "t5"])
def retriever(request, trained):
    return Retriever.load(trained[request.param])


@pytest.fixture
def compact(trained):
    return Retriever.load(trained["compact"])


def test_a_run_knows_its_index_and_its_items(retriever):
    hits = retriever.search("steel kettle", k=5)
    assert len(hits) == 5
    assert all(isinstance(hit, Hit) for hit in hits)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(hit.title.split() == hit.item.split("-") for hit in hits)
    known = set(map(tuple, retriever.index.sids.tolist()))
    assert all(hit.sid in known for hit in hits)


def test_what_was_taught_is_found(compact):
    assert {hit.item for hit in compact.search("oak desk", k=4)} >= {"red-oak-desk", "blue-oak-desk"}


def test_answers_are_those_of_a_plain_beam(trained):
    retriever = Retriever.load(trained["compact"])
    queries = ["oak desk", "glass lamp", "a chair of steel"]
    expected = plain_beam(retriever.backbone, retriever.index, queries, width=20, k=10)
    rows, _ = retriever.rank(queries, 10, beam=20)
    assert rows.tolist() == expected


def test_a_query_is_answered_alike_alone_and_in_a_batch(retriever):
    queries = ["oak desk", "a very long query about a small red glass lamp for the desk", "mug"]
    together = retriever.search(queries, k=6)
    for query, hits in zip(queries, together, strict=True):
        alone = retriever.search(query, k=6)
        assert [hit.item for hit in alone] == [hit.item for hit in hits]
        assert [hit.score for hit in alone] == pytest.approx([hit.score for hit in hits], abs=1e-4)


def test_filters_are_brute_force_and_fill_to_k(retriever):
    everything = retriever.search("oak desk", k=60, category_width=0)
    assert len(everything) == 60
    chosen = [hit.item for hit in everything if hit.item.startswith("green")]
    found = retriever.search("oak desk", k=60, category_width=0, where=["title~green"])
    assert [hit.item for hit in found] == chosen
    denied = [hit.item for hit in everything[:3]]
    found = retriever.search("oak desk", k=5, category_width=0, deny=denied)
    assert [hit.item for hit in found] == [hit.item for hit in everything[3:8]]
    allowed = [hit.item for hit in everything[50:55]]
    found = retriever.search("oak desk", k=10, category_width=0, allow=allowed)
    assert [hit.item for hit in found] == allowed
    kitchen = retriever.search("oak desk", k=12, category_width=0, where=["category=kettle"])
    assert len(kitchen) == 12
    assert all(hit.item.endswith("kettle") for hit in kitchen)
    narrow = retriever.search("oak desk", k=12, where=["category=Home > kettle", "title!=red oak kettle"], beam=1)
    assert len(narrow) == 11


def test_more_than_there_is_gives_all_there_is(retriever):
    hits = retriever.search("oak desk", k=500, category_width=0)
    assert len({hit.item for hit in hits}) == len(hits) == 60


def test_score_norms_differ_and_all_answer(retriever):
    found = {
        norm: retriever.search("oak desk", k=3, score_norm=norm, category_width=0)[0].score
        for norm in ("full_vocab", "level_codes", "trie_children")
    }
    assert found["full_vocab"] <= found["level_codes"] + 1e-5
    assert found["level_codes"] <= found["trie_children"] + 1e-5


def test_children_of_the_trie_share_one(retriever):
    hits = retriever.search("oak desk", k=60, score_norm="trie_children", category_width=0)
    assert sum(np.exp(hit.score) for hit in hits) == pytest.approx(1.0, abs=1e-3)


def test_adding_makes_findable_and_removing_unreachable(retriever):
    fresh = {"id": "new", "title": "purple oak desk", "category": ["Home", "desk"]}
    before = retriever.search("purple oak desk", k=60, category_width=0)
    assert "new" not in {hit.item for hit in before}
    retriever.add([fresh])
    for width in (0, 3):
        after = retriever.search("purple oak desk", k=61, category_width=width)
        assert "new" in {hit.item for hit in after}
    assert next(hit.title for hit in after if hit.item == "new") == "purple oak desk"
    assert [hit.item for hit in retriever.search("a", k=5, category_width=0, where=["title=purple oak desk"])] == [
        "new"
    ]
    retriever.remove(["new", "red-oak-desk"])
    left = {hit.item for hit in retriever.search("red oak desk", k=99, category_width=0)}
    assert len(left) == 59
    assert not {"new", "red-oak-desk"} & left


def test_what_is_saved_answers_the_same(retriever, tmp_path):
    retriever.add([{"id": "new", "title": "purple oak desk", "category": ["Home", "desk"]}])
    retriever.remove(["red-oak-desk"])
    retriever.save(tmp_path / "saved")
    again = Retriever.load(tmp_path / "saved")
    assert again.search("purple oak desk", k=61, category_width=0) == retriever.search(
        "purple oak desk", k=61, category_width=0
    )
    assert again.search("desk", k=3, where=["title~purple"], category_width=0)[0].item == "new"


def test_what_is_saved_takes_new_items_and_has_its_heads(trained, tmp_path):
    """Saved and loaded twice, far from the folders it came from."""
    Retriever.load(trained["restd"]).save(tmp_path / "one")
    Retriever.load(tmp_path / "one").save(tmp_path / "two")
    for name in ("one", "two"):
        again = Retriever.load(tmp_path / name, keep_heads=True)
        again.add([{"id": "new", "title": "purple oak desk"}])
        for mode in HEAD_MODES:
            hits = again.search("purple oak desk", k=61, heads=HeadUse(mode))
            assert "new" in {hit.item for hit in hits}
        original = Retriever.load(trained["restd"], keep_heads=True)
        original.add([{"id": "new", "title": "purple oak desk"}])
        assert original.snapshot_hash == again.snapshot_hash
        assert original.search("oak desk", heads=HeadUse("fuse")) == again.search("oak desk", heads=HeadUse("fuse"))


def test_columns_of_other_names_are_saved_as_they_are_read(tmp_path):
    data = write_world(tmp_path / "data")
    lines = [json.loads(line) for line in (data / "items.jsonl").read_text("utf-8").splitlines()]
    renamed = [{"sku": line["id"], "name": line["title"], "price": 5 * row} for row, line in enumerate(lines)]
    (data / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in renamed), "utf-8")
    config = with_shape(IndexConfig(encoder="tfidf-svd"), levels=3, codes=8, dim=8)
    build_index(Catalog(data, columns={"id": "sku", "title": "name"}), tmp_path / "index", config)
    folder = run(tmp_path / "index", data, tmp_path / "run", updates=5).folder.parent
    retriever = Retriever.load(folder)
    retriever.save(tmp_path / "saved")
    options = SearchOptions(k=4, where=["price<=50"])
    assert Retriever.load(tmp_path / "saved").search("oak desk", options=options) == retriever.search(
        "oak desk", options=options
    )


def test_an_explanation_says_where_an_item_was_lost(compact):
    ranked = compact.search("oak desk", k=60, beam=60)
    last = ranked[-1].item
    found = compact.explain("oak desk", last, beam=2, k=1)
    assert found.lost_at is not None
    assert found.rank is None
    lost = found.levels[found.lost_at - 1]
    assert lost.rank > lost.survivors
    assert lost.gap <= 0
    assert "was lost at level" in found.sentence()
    needed = found.beam_needed
    assert compact.explain("oak desk", last, beam=needed).rank is not None
    assert compact.explain("oak desk", last, beam=needed - 1).rank is None
    assert found.exact_rank == 60
    first = compact.explain("oak desk", ranked[0].item)
    assert (first.rank, first.lost_at, first.exact_rank) == (1, None, 1)
    assert json.loads(json.dumps(first.to_dict()))["levels"][0]["kept"] is True


def test_hybrid_fuses_lists(compact):
    class Backwards:
        snapshot_hash, name = compact.snapshot.hash, "backwards"

        def rank(self, queries, k):
            return np.tile(np.arange(60)[::-1][:k], (len(queries), 1)), np.zeros((len(queries), min(k, 60)))

        def scores(self, queries, rows):
            return rows.astype(float)

        def following(self, snapshot, kept, vectors):
            return self

    with pytest.raises(ConfigError, match="companions"):
        compact.search("oak desk", mode="hybrid")
    compact.set_companions([Backwards()])
    rows, scores = compact.rank(["oak desk"], 60)
    generator = (scores[0] - scores[0].min()) / (scores[0].max() - scores[0].min())
    total = dict(zip(rows[0].tolist(), generator + 0.5 * rows[0] / 59, strict=True))
    expected = sorted(total, key=lambda row: (-total[row], row))[:5]
    hybrid = compact.search("oak desk", k=5, mode="hybrid")
    assert [hit.item for hit in hybrid] == [compact.index.table.ids[row].as_py() for row in expected]
    assert [hit.item for hit in hybrid] != [hit.item for hit in compact.search("oak desk", k=5)]
    only = compact.search("oak desk", k=60, mode="hybrid", where=["title~green"])
    assert len(only) == 15
    assert all("green" in hit.item for hit in only)


def test_fusion_weighs_lists():
    lists = [np.array([[1, 2]]), np.array([[3, -1]])]
    assert fuse(lists, 3)[0].tolist() == [[1, 3, 2]]
    assert fuse(lists, 3, weights=[0.1, 1.0])[0].tolist() == [[3, 1, 2]]
    assert fuse(lists, 5)[0].tolist() == [[1, 3, 2, -1, -1]]


@pytest.fixture(scope="module", params=["tf-idf", "t5", "sentence model"])
def shared(request, trained, tmp_path_factory):
    """Retrievers whose queries are read by NumPy, or by a Rust tokenizer that all threads share."""
    if request.param != "sentence model":
        return Retriever.load(trained["t5" if request.param == "t5" else "compact"])
    folder, base = tmp_path_factory.mktemp("sentence"), trained["compact"].parent
    model = tiny_sentence_model(folder)
    settings = (f"compact.encoder={model}", "compact.max_tokens=6")
    return Retriever.load(run(base / "index", base / "data", folder / "run", *settings, updates=10).folder)


@pytest.mark.usefixtures("eager_switching")
def test_many_threads_get_the_same_answers(shared):
    """Queries of many lengths, some of which are cut: a thread that changes another's limit changes its answer."""
    words = ["oak desk", "a small glass lamp", "steel mug with a long blue cable and a lamp", "red kettle", "mug " * 40]
    many = [words[number % 5] + " red" * (number % 7) for number in range(60)]  # long enough for threads to meet in it
    alone = shared.rank(many, 5, beam=5)
    with ThreadPoolExecutor(8) as pool:
        for rows, scores in pool.map(lambda number: shared.rank(many, 5, beam=5), range(16)):
            assert np.array_equal(rows, alone[0])
            assert np.array_equal(scores, alone[1])


@pytest.fixture
def eager_switching():
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"query": "   "}, DataError, "has no text"),
        ({"query": "\x00\x07"}, DataError, "has no text"),
        ({"k": 0}, ConfigError, "k = 0"),
        ({"where": ["colour=red"]}, DataError, "no column 'colour'"),
        ({"where": ["title=nothing like it"]}, DataError, "No item meets the filter"),
        ({"where": ["nonsense"]}, ConfigError, "not of the form"),
        ({"deny": ["nobody"]}, DataError, "'nobody'"),
        ({"score_norm": "magic"}, ConfigError, "trie_children"),
        ({"mode": "magic"}, ConfigError, "expected one of generative, hybrid"),
        ({"beam": 0}, ConfigError, "beam = 0: expected at least 1"),
        ({"width": 9}, ConfigError, "Unknown search option 'width'.*Known: k, beam"),
        ({"where": "price<=3"}, ConfigError, "expected a list, got one text"),
        ({"beam": 2.5}, ConfigError, "expected a whole number"),
    ],
)
def test_mistakes_are_sentences(compact, options, error, said):
    query = options.pop("query", "oak desk")
    with pytest.raises(error, match=said):
        compact.search(query, **options)


def test_odd_queries_are_answered(retriever):
    assert len(retriever.search("kettle " * 15_000, k=3)) == 3
    assert len(retriever.search("oak\x00desk\x1b[31m\n\tred", k=3)) == 3
    assert len(retriever.search("電気ケトル 🫖", k=3)) == 3


def test_a_model_of_another_index_is_refused(trained, tmp_path):
    other = make_index(write_world(tmp_path / "data"), tmp_path / "index", seed=4)
    with pytest.raises(ArtifactError, match="was trained for"):
        Retriever.load(trained["compact"], other)


def test_numbers_and_dates_are_compared_as_what_they_are(trained):
    held = SidIndex.load(trained["compact"].parent / "index")
    rows = [{"id": item, "price": float(number)} for number, item in enumerate(held.table.ids.to_pylist())]
    items = Items(held.table.ids.slice(0, 0), None).with_added(rows)
    assert items.matching([Condition.parse("price<=9")]).sum() == 10
    assert items.matching([Condition.parse("price > 9"), Condition.parse("price!=20")]).sum() == 49
    with pytest.raises(DataError, match="has double"):
        items.matching([Condition.parse("price=cheap")])


def test_no_gradient_is_kept(retriever):
    retriever.search("oak desk", k=3)
    assert all(parameter.grad is None for parameter in retriever.backbone.parameters())
    assert torch.is_grad_enabled()
