"""Cold start: nothing of a held-out item is known before it is added, and every part finds it afterwards."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.analyses.cold_start import cold_start_result
from restd.artifacts import open_artifact
from restd.data import Catalog, read_judgments, write_dataset
from restd.data.hold_out import ALSO_KNOWN, ONLY_NEW, hold_out_items
from restd.data.pairs import read_examples
from restd.data.pseudo_pairs import describe_items, pseudo_query_pairs
from restd.encode import Embeddings
from restd.errors import ConfigError, DataError
from restd.evaluate import fit_fusion, fitting_queries
from restd.evaluate.cold_start import ON_NEW, add_catalog, measure_cold_start
from restd.evaluate.fitting import available_parts
from restd.evaluate.scoreboard import HYBRID, LEXICAL_AND_DENSE
from restd.index import SidIndex
from restd.index.sid_index import KIND, SCHEMA
from restd.models import index_generation
from restd.models.store import KIND as MODEL_KIND
from restd.models.store import SCHEMA as MODEL_SCHEMA
from restd.search import Fusion, Retriever, SearchOptions
from restd.search.hybrid import collect_candidates
from restd.snapshot import Snapshot
from tests.training import COLORS, MATERIALS, THINGS, make_index, run, write_world

PARTS = ["bm25", "dense", "latent", "popularity", "match"]


def write_cold_world(folder):
    """The tiny world with a brand that no other item has, with test queries, and with some that name one item alone."""
    write_world(folder)
    items = [json.loads(line) for line in (folder / "items.jsonl").read_text("utf-8").splitlines()]
    items = [{**item, "brand": f"brand{number}x"} for number, item in enumerate(items)]
    judgments = [json.loads(line) for line in (folder / "judgments.jsonl").read_text("utf-8").splitlines()]
    for thing in THINGS:
        for material in MATERIALS:
            for color in COLORS:
                answer = {"item": f"{color}-{material}-{thing}", "grade": 1}
                judgments.append({**answer, "query": f"the {thing} made of {material}", "split": "test"})
                judgments.append({**answer, "query": f"{color} {thing}, {material}", "split": "test"})
                judgments.append({**answer, "query": f"{material} {thing} in {color}", "split": "valid"})
                judgments.append({**answer, "query": f"{color} {material} {thing} please", "split": "train"})
    for name, rows in (("items", items), ("judgments", judgments)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


def ids_of(folder):
    return set(Catalog(folder).ids().to_pylist())


def all_text(folder):
    """Every value of every table of a folder, as one text."""
    tables = [Catalog(folder).items_with_texts()[0], read_judgments(folder).to_pylist()]
    return json.dumps(tables)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cold")
    parts = hold_out_items(write_cold_world(folder / "data"), share=0.2, seed=3)
    write_dataset(parts.known, folder / "known")
    write_dataset(parts.new, folder / "new")
    return folder


@pytest.fixture(scope="module")
def trained(world):
    index = make_index(world / "known", world / "index")
    folder = run(index, world / "known", world / "run", objective="restd", updates=60).folder.parent
    retriever = with_parts(folder)
    tests = fitting_queries(world / "known", retriever.snapshot)
    fit_fusion(retriever, tests, notify=lambda sentence: None).save(folder / "fusion")
    return folder


def with_parts(folder, *, hybrid=False):
    retriever = Retriever.load(folder, keep_heads=True, hybrid=hybrid)
    retriever.set_companions(PARTS)
    return retriever


def test_known_and_new_share_no_item_and_miss_none(world):
    known, new = ids_of(world / "known"), ids_of(world / "new")
    assert known | new == ids_of(world / "data")
    assert not known & new
    assert len(known) > len(new) > 4


def test_nothing_names_a_held_out_item(world):
    text = all_text(world / "known")
    for item in Catalog(world / "new").items_with_texts()[0]:
        assert item["id"] not in text
        assert item["brand"] not in text
        assert f'"{item["title"]}"' not in text
    named = set(read_judgments(world / "known")["item"].to_pylist())
    assert named <= ids_of(world / "known")


def test_queries_that_only_held_out_items_answer_are_gone(world):
    new = ids_of(world / "new")
    lost = {f"{color} {thing}, {material}" for color, material, thing in (item.split("-") for item in new)}
    queries = set(read_judgments(world / "known")["query"].to_pylist())
    assert lost
    assert not lost & queries
    assert {
        f"{color} {material} {thing} please" for color, material, thing in (i.split("-") for i in new)
    } & queries == set()


def test_new_judgments_are_of_new_items_and_never_of_training(world):
    judgments = read_judgments(world / "new")
    assert set(judgments["split"].to_pylist()) == {"valid", "test"}
    assert set(judgments["item"].to_pylist()) <= ids_of(world / "new")


def test_queries_that_known_items_answer_too_are_told_apart(world):
    known = read_judgments(world / "known")
    answered = {row["query"] for row in known.to_pylist() if row["grade"] > 0}
    kinds = set()
    for row in read_judgments(world / "new").to_pylist():
        assert (row["answers"] == ALSO_KNOWN) == (row["query"] in answered), row
        kinds.add(row["answers"])
    assert kinds == {ALSO_KNOWN, ONLY_NEW}


def test_what_training_reads_has_nothing_of_a_held_out_item(world):
    """Titles share words, so items are told by their brands: each has one of its own."""
    catalog = Catalog(world / "known")
    new = Catalog(world / "new").items_with_texts()[0]
    items = describe_items(catalog, catalog.ids())
    drawn = pseudo_query_pairs(items, per_item=20, kinds=("keywords", "sentence"), seed=0)
    words = " ".join(drawn.texts).split()
    assert any(word.startswith("brand") for word in words), "brands can be drawn at all"
    assert not {item["brand"] for item in new} & set(words)
    examples = read_examples(world / "known", catalog.ids(), task="search")
    assert not examples.remarks, "no judgment names an item that the index does not have"
    texts = set(map(str, (*examples.train.texts, *examples.valid.texts)))
    assert not texts & {row["query"] for row in read_judgments(world / "new").to_pylist() if row["answers"] == ONLY_NEW}


@given(st.integers(0, 1000), st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_draws_depend_on_ids_and_seed_alone(seed, random):
    from restd.data.hold_out import _drawn

    ids = [f"item {number}" for number in range(50)]
    shuffled = random.sample(ids, 30)
    drawn = set(np.array(ids)[_drawn(pa.array(ids), 0.3, seed)].tolist())
    again = set(np.array(shuffled)[_drawn(pa.array(shuffled), 0.3, seed)].tolist())
    assert again == drawn & set(shuffled)


def test_another_seed_draws_others_and_a_larger_share_more(world):
    def drawn(share, seed):
        source = hold_out_items(world / "data", share=share, seed=seed).new
        return {item for batch in source.items() for item in batch.column("id").to_pylist()}

    assert drawn(0.2, 3) == ids_of(world / "new")
    assert drawn(0.2, 4) != drawn(0.2, 3)
    assert drawn(0.2, 3) < drawn(0.4, 3)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_must_leave_both_parts_some(world, share):
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        hold_out_items(world / "data", share=share)


def test_data_without_a_use_for_held_out_items_are_refused(world, tmp_path):
    with pytest.raises(DataError, match="were drawn; expected some"):
        hold_out_items(world / "data", share=1e-9)
    with pytest.raises(DataError, match="answers a test query"):
        hold_out_items(write_world(tmp_path / "without"), share=0.3)
    (tmp_path / "without" / "judgments.jsonl").unlink()
    with pytest.raises(DataError, match="has no judgments"):
        hold_out_items(tmp_path / "without")
    known = [json.loads(line) for line in (world / "data" / "judgments.jsonl").read_text("utf-8").splitlines()]
    text = "".join(json.dumps(row) + "\n" for row in known if row["split"] == "test")
    (tmp_path / "without" / "judgments.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="no training query"):
        hold_out_items(tmp_path / "without", share=0.3)


def test_every_part_returns_added_items(world, trained):
    retriever = with_parts(trained)
    before, known = retriever.snapshot_hash, len(retriever.snapshot)
    added = add_catalog(retriever, world / "new")
    assert len(retriever.snapshot) == known + added
    assert retriever.snapshot_hash != before
    assert {companion.snapshot_hash for companion in retriever.snapshot.companions} == {retriever.snapshot_hash}
    new = Catalog(world / "new").items_with_texts()[0]
    parts = available_parts(retriever)
    assert set(parts) == {"generator", "heads", *PARTS}
    texts = [item["title"] for item in new]
    table = collect_candidates(
        retriever.generator,
        retriever.snapshot,
        texts,
        SearchOptions(k=40, mode="hybrid").settled("search"),
        parts=parts,
        heads=retriever.heads,
    )
    rows = retriever.snapshot.items.rows([item["id"] for item in new], what="test")
    for part in ("bm25", "dense", "latent", "generator", "heads"):
        proposed = np.where(table.proposed[part], table.rows, -1)
        assert any(row in own for row, own in zip(rows, proposed.tolist(), strict=True)), part
    for companion in retriever.snapshot.companions:
        assert companion.scores([texts[0]], rows[None, :1]).shape == (1, 1)
    best = np.array([row for row, _ in [companion.rank(texts, 1) for companion in retriever.snapshot.companions[:1]]])
    assert (best[0, :, 0] == rows).mean() > 0.9, "words find an item by its own title"


def test_added_items_are_read_as_the_others_were(world, trained):
    """The category is no text of the known items, so it must not become one of the new ones."""
    retriever = with_parts(trained)
    add_catalog(retriever, world / "new")
    new = Catalog(world / "new")
    ids = new.ids().to_pylist()
    rows = retriever.snapshot.items.rows(ids, what="test")
    texts = retriever.snapshot.items.texts()
    assert [texts[row] for row in rows] == new.texts_of(ids)
    assert not any("Home" in texts[row] for row in rows)
    retriever.remove([ids[0]])
    retriever.add([{"id": "plain", "title": "plain thing"}])
    texts = retriever.snapshot.items.texts()
    assert texts[-1] == "plain thing"
    assert texts[-2] == new.texts_of(ids)[-1]


def test_items_that_the_search_has_are_not_new(world, trained):
    with pytest.raises(DataError, match="are in the index already"):
        add_catalog(with_parts(trained), world / "data")


def new_to_the_model(retriever):
    new = retriever.generator.new_items(retriever.snapshot)
    return {item for item, is_new in zip(retriever.snapshot.ids.to_pylist(), new.tolist(), strict=True) if is_new}


def test_generations_count_what_was_added(world, tmp_path):
    built = SidIndex.load(make_index(world / "known", tmp_path / "index"))
    assert (built.generation, set(built.item_generations.tolist())) == (0, {0})
    built.save(tmp_path / "plain")
    assert "generation" not in open_artifact(tmp_path / "plain", kind=KIND, schema=SCHEMA).table("items").column_names
    rng = np.random.default_rng(0)
    width = Embeddings.open(tmp_path / "index" / "embeddings").dim
    grown = built
    for ids in (["a", "b"], ["c"]):
        grown, _ = grown.add(ids, rng.normal(size=(len(ids), width)).astype(np.float32))
    first = built.table.ids[0].as_py()
    grown = grown.remove([first, "a"])
    grown.save(tmp_path / "grown")
    again = SidIndex.load(tmp_path / "grown")
    for index in (grown, again):
        assert index.generation == 2
        assert index.item_generations.dtype == np.int32
        assert index.item_generations.tolist() == [0] * (len(built) - 1) + [1, 2]
    assert grown.layout() == built.layout()
    later, _ = again.remove(["c"]).add(["d"], rng.normal(size=(1, width)).astype(np.float32))
    assert later.item_generations.tolist()[-2:] == [1, 3], "a model may have been trained on what is gone"
    unmarked = replace(again, generation=0, came_in=None)
    assert Snapshot.of(unmarked).hash == Snapshot.of(again).hash, "rows, SIDs and latents are the same"


def test_items_added_after_training_are_new_to_the_model(world, trained, tmp_path):
    retriever = with_parts(trained)
    assert new_to_the_model(retriever) == set()
    add_catalog(retriever, world / "new")
    assert new_to_the_model(retriever) == ids_of(world / "new")
    retriever.save(tmp_path / "bundle")
    again = Retriever.load(tmp_path / "bundle")
    assert new_to_the_model(again) == ids_of(world / "new")
    again.remove(list(ids_of(world / "new")))
    assert new_to_the_model(again) == set()


def test_an_index_that_grew_before_training_is_not_new_to_its_model(world, trained, tmp_path):
    retriever = with_parts(trained)
    add_catalog(retriever, world / "new")
    shutil.copytree(world / "index", tmp_path / "index")
    retriever.index.save(tmp_path / "index" / "index")
    folder = run(tmp_path / "index", world / "data", tmp_path / "run", updates=2).folder.parent
    later = Retriever.load(folder)
    assert later.index.generation == later.generator.trained_on == 1
    assert new_to_the_model(later) == set()
    vectors = Embeddings.open(world / "index" / "embeddings").sample(1, seed=0)
    grown, _ = later.index.add(["later"], vectors)
    later.replace_snapshot(Snapshot.of(grown))
    assert new_to_the_model(later) == {"later"}
    older = open_artifact(folder / "model", kind=MODEL_KIND, schema=MODEL_SCHEMA)
    del older.manifest.settings["index_generation"]
    assert index_generation(older) == 0, "models were written before generations were"


def test_weight_on_parts_that_learned_from_pairs_alone_still_ranks_new_items(world, trained):
    retriever = with_parts(trained)
    add_catalog(retriever, world / "new")
    texts = [item["title"] for item in Catalog(world / "new").items_with_texts()[0]]
    retriever.fusion = Fusion({"generator": 1.0})
    fused, scores = retriever.rank(texts, 60, mode="hybrid")
    plain, _ = retriever.rank(texts, 60, beam=60)
    assert np.isfinite(scores[fused >= 0]).all()
    for own, expected in zip(fused.tolist(), plain.tolist(), strict=True):
        assert own[:10] == expected[:10]


def test_a_search_does_not_hold_new_items_back(world, trained):
    """The generator has nearly all weight: a new item then stands where words put it, a known one where it did."""
    retriever = with_parts(trained)
    add_catalog(retriever, world / "new")
    items = Catalog(world / "new").items_with_texts()[0]
    rows = retriever.snapshot.items.rows([item["id"] for item in items], what="test")
    retriever.fusion = Fusion({"generator": 9.0, "popularity": 9.0, "bm25": 1.0})
    ranked, _ = retriever.rank([item["title"] for item in items], 10, mode="hybrid")
    assert (ranked[:, 0] == rows).mean() > 0.9, "words find an item by its own title"
    knowing = Retriever(retriever.backbone, retriever.snapshot)  # takes all items of its snapshot for known
    knowing.fusion = retriever.fusion
    held_back, _ = knowing.rank([item["title"] for item in items], 10, mode="hybrid")
    assert (held_back[:, 0] == rows).mean() < 0.5


@pytest.fixture(scope="module")
def outcome(world, trained):
    retriever = with_parts(trained, hybrid=True)
    return measure_cold_start(retriever, world / "new", parts=available_parts(retriever), notify=lambda sentence: None)


def test_every_way_of_searching_is_measured_on_both_kinds_of_queries(world, outcome):
    names = {"bm25", "dense", "latent", "popularity", "heads", "generator"}
    names |= {LEXICAL_AND_DENSE, HYBRID, *ON_NEW.values()}
    assert not outcome.new.values["popularity"]["NDCG@10"].any(), "nobody asked for the new items yet"
    assert set(outcome.new.values) == set(outcome.known.values) == names
    tests = read_judgments(world / "new").to_pylist()
    queries = {row["query"]: row["answers"] for row in tests if row["split"] == "test"}
    assert len(outcome.new.values["bm25"]["NDCG@10"]) == len(queries)
    assert outcome.only_new.sum() == sum(answers == ONLY_NEW for answers in queries.values())
    assert outcome.items["new"] == len(ids_of(world / "new"))


def test_known_answers_do_not_push_new_ones_down(world, trained, outcome):
    """Worked out by hand from BM25's own lists: known answers are taken out, everything else stays."""
    retriever = with_parts(trained)
    add_catalog(retriever, world / "new")
    snapshot = retriever.snapshot
    both = [read_judgments(world / name).to_pylist() for name in ("known", "new")]
    right = [{(row["query"], row["item"]) for row in rows if row["grade"] > 0} for rows in both]
    queries = list(dict.fromkeys(row["query"] for row in both[1] if row["split"] == "test"))
    ids = snapshot.ids.to_pylist()
    recalls = []
    for query in queries:
        rows, _ = next(one for one in snapshot.companions if one.name == "bm25").rank([query], len(ids))
        listed = [ids[row] for row in rows[0].tolist() if row >= 0 and (query, ids[row]) not in right[0]][:10]
        answers = {item for text, item in right[1] if text == query}
        recalls.append(100 * len(answers & set(listed)) / len(answers))
    assert sorted(outcome.new.values["bm25"]["Recall@10"].tolist()) == pytest.approx(sorted(recalls))


def test_the_result_shows_what_the_boards_hold(outcome):
    result = cold_start_result(outcome)
    tables = {table.name: table for table in result.tables}
    assert list(tables) == ["new", "known", "weights"]
    labels = [row[0] for row in tables["new"].rows]
    assert labels[:5] == ["BM25", "dense", "latent", "heads", "generator"]
    assert labels[5:8] == ["popularity", "BM25 + dense, fitted", "hybrid"]
    assert tables["new"].rows[0][1] == f"{outcome.new.values['bm25']['NDCG@10'].mean():.2f}"
    assert tables["new"].rows[labels.index("hybrid")][-1] == ""
    assert len(tables["known"].columns) == len(tables["new"].columns) + 1
    assert result.data["queries"]["only_new"] == int(outcome.only_new.sum())
    assert "Adding the items changes the hybrid" in result.says
    json.dumps(result.to_dict(), allow_nan=False)


def test_the_commands(command, tmp_path):
    data = write_cold_world(tmp_path / "data")
    code, out, err = command("data", "hold-out", str(data), "--items", "0.2", "--seed", "3", "--out", str(tmp_path))
    assert code == 0, err
    assert "known" in out
    assert "items are held out" in err
    index = make_index(tmp_path / "known", tmp_path / "index")
    folder = run(index, tmp_path / "known", tmp_path / "run", objective="restd", updates=20).folder.parent
    code, _, err = command("analyze", "cold-start", str(folder), "--new", str(tmp_path / "new"))
    assert code == 2
    assert "restd fit" in err
    assert command("fit", "--model", str(folder))[0] == 0
    code, out, err = command("analyze", "cold-start", str(folder), "--new", str(tmp_path / "new"), "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["name"] == "cold-start"
    assert {"generator", "heads", "bm25", "dense", "hybrid"} <= set(result["data"]["new"]["rankers"])
    code, out, err = command("report", str(folder))
    assert code == 0, err
    page = (folder / "report" / "report.html").read_text("utf-8")
    assert "test queries for new items" in page
    code, _, err = command("analyze", "cold-start", str(folder))
    assert code == 2
    assert "--new is missing" in err
    code, _, err = command("analyze", "cold-start", str(folder), "--new", str(data))
    assert code == 2
    assert "in the index already" in err
