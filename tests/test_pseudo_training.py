"""Training with pseudo-queries: new draws by epoch, tables of one's own, and items that are held out."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from restd.data import Catalog, write_dataset
from restd.data.own_tables import own_tables_source
from restd.data.pairs import read_pairs
from restd.data.pseudo_pairs import describe_items, held_out_items, pseudo_query_pairs
from restd.data.pseudo_table import read_pseudo_table, write_pseudo_table
from restd.errors import ConfigError, DataError
from restd.index import IndexConfig, SidIndex, align, build_index, with_shape
from restd.quantize.align_settings import AlignConfig
from restd.train.batches import BatchPlan
from restd.train.run import make_loop
from tests.training import job, make_index, run, same_weights, write_walks, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return data, make_index(data, folder / "index")


def prepared(world, out, *settings, notify=lambda sentence: None, **options):
    data, index = world
    return make_loop(job(index, data, out, *settings, **options), notify=notify)


def named(pairs, rows=None):
    rows = range(len(pairs)) if rows is None else rows
    return sorted((str(pairs.texts[pairs.text[row]]), int(pairs.item[row])) for row in rows)


def write_table(path, rows):
    path.write_text(
        "".join(json.dumps({"item": item, "query": query}) + "\n" for item, query in rows), encoding="utf-8"
    )
    return path


def test_training_draws_for_every_item_of_the_index(world, tmp_path):
    data, index = world
    drawn_for = prepared(world, tmp_path / "drawn", "train.pseudo_queries=3").train.pairs
    ids = SidIndex.load(index).table.ids
    drawn = pseudo_query_pairs(describe_items(Catalog(data), ids), per_item=3, seed=42)
    assert sorted(set(drawn.item.tolist())) == list(range(len(ids)))
    judged = read_pairs(data, ids).train
    assert named(drawn_for) == sorted(named(judged) + named(drawn))
    assert len(drawn) == 3 * len(ids)


def test_every_epoch_has_its_own_draw_and_the_same_number_of_updates(world, tmp_path):
    settings = ("train.pseudo_queries=2", "train.epochs=3")
    fresh = prepared(world, tmp_path / "fresh", *settings, "train.pseudo_draws=3", updates=None)
    once = prepared(world, tmp_path / "once", *settings, updates=None)
    assert fresh.plan.updates_per_epoch == once.plan.updates_per_epoch
    assert fresh.total == once.total == 3 * once.plan.updates_per_epoch
    pairs = fresh.train.pairs
    seen = [set(fresh.plan.epoch(epoch).ravel().tolist()) for epoch in range(3)]
    for epoch, rows in enumerate(seen):
        assert rows == set(np.flatnonzero(np.isin(pairs.draw, (-1, epoch))).tolist())
    assert named(pairs, seen[0]) == named(once.train.pairs), "the first draw is that of a run with one"
    assert named(pairs, seen[0]) != named(pairs, seen[1]) != named(pairs, seen[2])
    few = prepared(
        world, tmp_path / "few", "train.pseudo_queries=2", "train.pseudo_draws=9", "train.epochs=2", updates=None
    )
    assert few.train.pairs.draw.max() == 1, "no more draws than epochs"


def test_draws_are_the_same_for_all_objectives(world, tmp_path):
    settings = ("train.pseudo_queries=2", "train.pseudo_draws=2", "train.pseudo_positives=3")
    base = prepared(world, tmp_path / "base", *settings)
    other = prepared(world, tmp_path / "other", *settings, objective="restd-mean")
    assert base.train.pairs.texts == other.train.pairs.texts
    for name in ("text", "item", "draw"):
        assert np.array_equal(getattr(base.train.pairs, name), getattr(other.train.pairs, name))
    assert np.array_equal(base.plan.epoch(1), other.plan.epoch(1))
    seeded = prepared(world, tmp_path / "seeded", *settings, "train.seed=7")
    assert base.train.pairs.texts != seeded.train.pairs.texts


def test_a_run_with_draws_continues_bit_by_bit(world, tmp_path):
    data, index = world
    settings = (
        "train.pseudo_queries=1",
        "train.pseudo_draws=2",
        "train.checkpoint=7",
        "train.epochs=2",
        "train.batch=16",
    )
    whole = run(index, data, tmp_path / "whole", *settings, updates=None)
    part = job(index, data, tmp_path / "part", *settings, updates=None)
    loop = make_loop(part, notify=lambda sentence: None)
    real, stopped = loop.update, loop.plan.updates_per_epoch + 3

    def stop(rows, update):
        if update == stopped:
            raise KeyboardInterrupt
        return real(rows, update)

    loop.update = stop
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    messages = []
    again = run(index, data, tmp_path / "part", *settings, updates=None, notify=messages.append)
    assert any(message.startswith("Resuming after update") for message in messages)
    assert same_weights(whole.folder, again.folder)


def test_draws_of_unequal_size_have_full_updates():
    draw = np.array([-1, -1, 0, 0, 0, 1])
    plan = BatchPlan(np.arange(6), 2, 2, 1, 0, draw=draw)
    assert plan.updates_per_epoch == 3
    assert set(plan.epoch(0).ravel().tolist()) == {0, 1, 2, 3, 4}
    assert plan.epoch(1).shape == (3, 1, 2)
    assert set(plan.epoch(3).ravel().tolist()) == {0, 1, 5}


def test_several_positives_reach_training_and_fit(world, tmp_path):
    messages = []
    settings = ("train.pseudo_queries=2", "train.pseudo_kinds=['attributes']")
    once = prepared(world, tmp_path / "once", *settings).train.pairs
    loop = prepared(world, tmp_path / "more", *settings, "train.pseudo_positives=3", notify=messages.append)
    pairs, ids = loop.train.pairs, SidIndex.load(world[1]).table.ids
    data = describe_items(Catalog(world[0]), ids)
    judged = len(read_pairs(world[0], ids).train.texts)
    sizes = np.bincount(pairs.text)[judged:]
    assert sizes.max() == 3
    assert set(named(once)) < set(named(pairs))
    for text, item in zip(pairs.text, pairs.item, strict=True):
        if text >= judged:
            own = f"{data.titles[item]} {data.attributes[item].text}".lower().split()
            assert set(pairs.texts[text].lower().split()) <= set(own)
    assert f"Pseudo-queries fit {len(pairs) - len(once):,} further items" in messages


def test_a_table_is_learned_beside_or_instead_of_drawn_queries(world, tmp_path):
    ids = SidIndex.load(world[1]).table.ids.to_pylist()
    rows = [(ids[3], "something to sit on"), (ids[4], "something to sit on"), (ids[3], "seat"), ("nobody", "seat")]
    table = write_table(tmp_path / "queries.jsonl", [*rows, rows[0]])
    messages = []
    setting = f"train.pseudo_table={table}"
    alone = prepared(world, tmp_path / "alone", setting, notify=messages.append).train.pairs
    judged = named(read_pairs(world[0], SidIndex.load(world[1]).table.ids).train)
    added = [("seat", 3), ("something to sit on", 3), ("something to sit on", 4)]
    assert named(alone) == sorted(judged + added)
    assert len(set(alone.text.tolist())) == len(set(judged)) - len(judged) + alone.queries, (
        "rows of a query are one query"
    )
    assert any(message.startswith("1 rows of") for message in messages)
    both = prepared(world, tmp_path / "both", setting, "train.pseudo_queries=1").train.pairs
    assert len(both) == len(alone) + len(ids)


def test_the_identity_changes_with_the_tables_content_and_not_with_its_place(world, tmp_path):
    data, index = world
    (tmp_path / "moved").mkdir()
    ids = SidIndex.load(index).table.ids.to_pylist()
    first = write_table(tmp_path / "one.jsonl", [(ids[0], "a query")])
    moved = write_table(tmp_path / "moved" / "one.jsonl", [(ids[0], "a query")])
    other = write_table(tmp_path / "two.jsonl", [(ids[0], "another query")])
    identities = [
        job(index, data, tmp_path / "run", *(f"train.pseudo_table={path}" for path in paths)).identity(processes=1)
        for paths in ((), (first,), (moved,), (other,))
    ]
    assert identities[1] == identities[2]
    assert len(set(identities)) == 3


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("queries.csv", "item,query\n", "has no queries"),
        ("queries.csv", "item,text\na,b\n", "no column 'query'; it has: item, text"),
        ("queries.csv", "item,query\nnobody,b\n", "none of the 1 rows names an item"),
        ("queries.tsv", "item\tquery\nred-oak-desk\t \n", "row 2, column 'query' is empty"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(world, tmp_path, name, text, expected):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=expected):
        read_pseudo_table(tmp_path / name, SidIndex.load(world[1]).table.ids)


def test_a_missing_table_and_a_recommender_are_refused(world, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        prepared(world, tmp_path / "run", "train.pseudo_table=nowhere.csv")
    data = write_walks(tmp_path / "walks")
    table = write_table(tmp_path / "queries.jsonl", [("red-oak-desk", "desk")])
    with pytest.raises(ConfigError, match="A recommender does not read texts"):
        prepared((data, world[1]), tmp_path / "tiger", f"train.pseudo_table={table}", backbone="tiger")


@pytest.fixture(scope="module")
def own_items(tmp_path_factory):
    """A data set of items alone, whose queries are made up."""
    folder = tmp_path_factory.mktemp("own")
    write_world(folder / "world")
    data = write_dataset(own_tables_source(folder / "world" / "items.jsonl"), folder / "data").folder
    return data, make_index(data, folder / "index")


def test_pseudo_queries_of_held_out_items_never_reach_training(own_items, tmp_path):
    data, index = own_items
    ids = SidIndex.load(index).table.ids
    held_out = held_out_items(data, ids)
    assert 0 < held_out.sum() < len(ids)
    names = ids.to_pylist()
    table = write_table(tmp_path / "queries.jsonl", [(name, f"a query for {name}") for name in names])
    messages = []
    loop = prepared(
        own_items,
        tmp_path / "run",
        "train.pseudo_queries=3",
        "train.pseudo_kinds=['keywords','attributes','title']",
        "train.pseudo_positives=4",
        "train.pseudo_draws=2",
        f"train.pseudo_table={table}",
        notify=messages.append,
    )
    pairs = loop.train.pairs
    assert not held_out[pairs.item].any()
    assert set(pairs.item.tolist()) == set(np.flatnonzero(~held_out).tolist())
    assert sum(str(text).startswith("a query for") for text in pairs.texts) == (~held_out).sum()
    assert any(f"its {held_out.sum()} held-out items" in message for message in messages)


def test_pseudo_queries_of_held_out_items_never_reach_alignment(own_items, tmp_path, monkeypatch):
    data, _ = own_items
    held_out = held_out_items(data, Catalog(data).ids())
    pairs = []

    def record(vectors, train, valid, settings, *, dim):
        pairs.append(train.item)
        raise InterruptedError

    monkeypatch.setattr(align, "fit_alignment", record)
    config = IndexConfig(encoder="tfidf-svd", align=AlignConfig(enabled="on", pseudo_queries=2))
    with pytest.raises(InterruptedError):
        build_index(Catalog(data), tmp_path / "index", with_shape(config, levels=3, codes=8, dim=8), judgments=data)
    assert not held_out[pairs[0]].any()
    assert len(pairs[0]) >= 2 * (~held_out).sum()


def test_items_are_not_held_out_where_queries_are_given(world, tmp_path):
    data, index = world
    assert held_out_items(data, SidIndex.load(index).table.ids) is None
    lines = (data / "judgments.jsonl").read_text("utf-8").splitlines()
    queries = "".join(f"{row['query']}\t{row['item']}\n" for row in map(json.loads, lines))
    (tmp_path / "queries.tsv").write_text("query\titem\n" + queries, encoding="utf-8")
    source = own_tables_source(data / "items.jsonl", tmp_path / "queries.tsv")
    written = write_dataset(source, tmp_path / "data").folder
    assert held_out_items(written, SidIndex.load(index).table.ids) is None


def test_a_generator_writes_a_table_in_batches_and_continues(world, tmp_path):
    catalog = Catalog(world[0])
    sizes: list[int] = []

    def interrupted(texts):
        sizes.append(len(texts))
        if len(sizes) == 3:
            raise KeyboardInterrupt
        return [[f"{text}?", " ", f"  {text}\n?"] for text in texts]

    out = tmp_path / "queries.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write_pseudo_table(catalog, out, interrupted, batch=25)
    assert not out.exists()
    with pytest.raises(DataError, match="was begun with other items"):
        write_pseudo_table(catalog, out, interrupted, batch=24)
    assert write_pseudo_table(catalog, out, interrupted, batch=25) == 120
    assert sizes == [25, 25, 10, 10], "batches that are done are not generated again"
    pairs, unknown = read_pseudo_table(out, SidIndex.load(world[1]).table.ids)
    assert (len(pairs), unknown) == (120, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["queries.jsonl"]
    with pytest.raises(DataError, match="exists already"):
        write_pseudo_table(catalog, out, interrupted)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda texts: [["one"]], "gave 1 results for 60 texts"),
        (lambda texts: list(texts), "Expected a list of texts"),
        (lambda texts: [[None] for _ in texts], "Expected a list of texts"),
        (lambda texts: [[] for _ in texts], "no query for any item"),
    ],
)
def test_a_generator_must_give_a_list_per_text(world, tmp_path, made, expected):
    with pytest.raises(DataError, match=expected):
        write_pseudo_table(Catalog(world[0]), tmp_path / "queries.jsonl", made)
    assert not (tmp_path / "queries.jsonl").exists()


@pytest.mark.parametrize("name", ["pseudo_draws", "pseudo_positives"])
def test_impossible_settings_are_refused(world, tmp_path, name):
    config = job(world[1], world[0], tmp_path / "run").config
    with pytest.raises(ConfigError, match=f"train.{name} must be at least 1"):
        replace(config.train, **{name: 0})


def test_validation_queries_and_pseudo_queries_are_enough(world, tmp_path):
    data, index = world
    judged = [json.loads(line) for line in (data / "judgments.jsonl").read_text("utf-8").splitlines()]
    unjudged = tmp_path / "unjudged"
    shutil.copytree(data, unjudged)
    lines = [json.dumps({**row, "split": "valid"}) + "\n" for row in judged[:40]]
    (unjudged / "judgments.jsonl").write_text("".join(lines), "utf-8")
    ids = SidIndex.load(index).table.ids
    with pytest.raises(DataError, match="has no training pairs"):
        read_pairs(unjudged, ids)
    loop = prepared((unjudged, index), tmp_path / "run", "train.pseudo_queries=2", objective="restd")
    drawn = pseudo_query_pairs(describe_items(Catalog(data), ids), per_item=2, seed=42)
    assert named(loop.train.pairs) == named(drawn)
    assert len(loop.valid.pairs) == len(read_pairs(unjudged, ids, need_training=False).valid) > 0
    aligned, _ = align.query_pairs(Catalog(unjudged), unjudged, AlignConfig(pseudo_queries=1))
    assert len(aligned) == len(ids)
    with pytest.raises(DataError, match="has no training pairs"):
        align.query_pairs(Catalog(unjudged), unjudged, AlignConfig(pseudo_queries=0))
