"""Recommending in a tiny world: trained, resumed, asked, judged, compared; through the same rooms as search."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from restd.cli.train import configure
from restd.data import Catalog, History, write_dataset
from restd.data.pairs import read_next_items
from restd.distill.equations import horizon_mass
from restd.errors import ArtifactError, ConfigError, DataError
from restd.evaluate import NEXT, evaluate, ranked_validation, read_tests, some_queries
from restd.index import IndexConfig, SidIndex, build_index, with_shape
from restd.rankers import RankerContext, make_ranker
from restd.search import Retriever
from restd.shop import ShopperSpec, shoppers_source
from restd.snapshot import Snapshot
from restd.train import Job, make_loop, read_log, train_retriever
from restd.train.loop import Loop
from tests.steppers import TableStepper
from tests.training import job, make_index, plain_beam, same_weights, write_walks, write_world
from tests.walks import SETTINGS, tiger, walk

RANKED = ("train.select=ndcg", "train.keep=best")


@pytest.fixture
def retriever(place):
    return Retriever.load(place / "run")


def test_what_comes_next_is_recommended(place, retriever):
    starts = range(0, 60, 4)
    found = [retriever.recommend(walk(place, 4, start), k=3) for start in starts]
    assert all(len(hits) == 3 for hits in found)
    right = [walk(place, 5, start)[-1] in {hit.item for hit in hits} for start, hits in zip(starts, found, strict=True)]
    assert np.mean(right) > 0.5  # one in twenty by chance


def test_what_was_taken_is_left_out_unless_asked_for(place, retriever):
    history = walk(place, 3)
    everything = len(retriever.index)
    left = {hit.item for hit in retriever.recommend(history, k=everything)}
    assert len(left) == everything - 3
    assert not left & set(history)
    assert len(retriever.recommend(history, k=everything, seen=True)) == everything
    best = retriever.recommend(history, k=10, seen=True)
    fewer = retriever.recommend(history, k=10 - sum(hit.item in history for hit in best))
    assert [hit.item for hit in best if hit.item not in history] == [hit.item for hit in fewer]


def test_answers_are_those_of_a_plain_beam(place, retriever):
    class Plain:
        """The network as the plain beam wants it: histories of ids in, log-probabilities over the vocabulary out."""

        def eval(self):
            return self

        def prepare(self, queries):
            return retriever.backbone.prepare_queries(queries, retriever.index)

        def encode(self, inputs):
            return retriever.backbone.encode(inputs)

        def states(self, memory, sids):
            return retriever.backbone.states(memory, sids)

        def logits(self, states):
            return Whole(retriever.backbone, states)

    class Whole:
        """Scores of every level's codes that are log-probabilities already."""

        def __init__(self, backbone, states):
            whole = backbone.vocabulary_logits(states).log_softmax(-1)
            self.scores = whole.gather(2, backbone.tokens[: states.shape[1]].expand(len(states), -1, -1))

        def __getitem__(self, place):
            return Whole.Level(self.scores[place])

        class Level:
            """One level."""

            def __init__(self, scores):
                self.scores = scores

            def log_softmax(self, dim):
                return self.scores

    histories = [History(tuple(walk(place, count, start))) for count, start in ((1, 5), (4, 20), (6, 33))]
    rows, _ = retriever.rank(histories, 10, beam=20)
    assert rows.tolist() == plain_beam(Plain(), retriever.index, histories, width=20, k=10)


def test_alone_and_in_a_batch_are_alike(place, retriever):
    histories = [History(tuple(walk(place, count, 3 * count))) for count in (6, 1, 4, 2)]
    rows, scores = retriever.rank(histories, 8, beam=20)
    for number, history in enumerate(histories):
        alone, own = retriever.rank([history], 8, beam=20)
        assert alone[0].tolist() == rows[number].tolist()
        np.testing.assert_allclose(own[0], scores[number], atol=1e-4)


def test_filters_and_explanations_work_as_in_search(place, retriever):
    history = walk(place, 3)
    lamps = retriever.recommend(history, k=4, where=["category=lamp"])
    assert all("lamp" in hit.item for hit in lamps)
    best = retriever.recommend(history, k=1, seen=True, beam=20)[0]
    found = retriever.explain(History(tuple(history)), best.item, beam=20, seen=True)
    assert found.rank == 1
    assert found.query == ", ".join(history)
    assert len(found.levels) == 4


def test_the_rank_of_an_item_is_the_rank_of_its_semantic_id(place, retriever):
    tests = read_tests(place / "data", retriever.snapshot)
    found, _ = evaluate(retriever, tests, retriever.snapshot, name="tiger", measures=NEXT)
    for name, values in found.values["sid"].items():
        assert values.tolist() == found.values["item"][name].tolist()
    assert found.mean("Recall@10") > 60
    assert found.card.queries["judged"] == 200
    rank = {1: 100.0, 2: 100 / np.log2(3)}
    one = found.values["sid"]["NDCG@5"]
    assert set(np.round(one[one >= rank[2] - 1e-9], 6)) <= {round(value, 6) for value in rank.values()}


def test_histories_of_held_out_items_hold_everything_before_them(place, retriever):
    ids = retriever.index.table.ids
    test, valid = (read_tests(place / "data", retriever.snapshot, split=split) for split in ("test", "valid"))
    for number in range(len(test)):
        assert test.texts[number].items[:-1] == valid.texts[number].items
        assert test.texts[number].items[-1] == ids[int(valid.rows[number])].as_py()
        assert ids[int(test.rows[number])].as_py() not in test.texts[number].items


def test_the_disambiguation_code_has_no_part_in_the_trajectory_loss(place, tmp_path):
    loop = make_loop(tiger(place, tmp_path / "run", objective="restd"), notify=lambda sentence: None)
    batch = loop.train.batch(np.arange(6))
    module, trajectory = loop.training_module.eval(), loop.training_module.objectives["trajectory"]
    from restd.train.module import Forward

    output = module.backbone.states(module.backbone.encode(batch.inputs), batch.sids)
    states = output.states.detach().requires_grad_()
    loss = module.backbone.sid_loss(output, batch.sids).detach()
    added, _ = trajectory(batch, Forward(type(output)(states), loss, module.backbone), step=1000)
    added.backward()
    assert trajectory.distiller.teacher.geometry.levels == 3
    assert states.grad[:, 3].abs().max() == 0  # the fourth code
    assert all(states.grad[:, level].abs().max() > 0 for level in range(3))
    # but the generation loss does see it
    whole = output.states.detach().requires_grad_()
    module.backbone.sid_loss(type(output)(whole), batch.sids).backward()
    assert whole.grad[:, 3].abs().max() > 0


def test_three_levels_weigh_as_the_paper_says():
    found = horizon_mass(torch.ones(1, 3, dtype=torch.bool), horizon=3, discount=0.7)
    assert found.numpy().round(4).tolist() == pytest.approx([0.6135, 0.2863, 0.1002])


@pytest.mark.parametrize(("objective", "causal"), [("base", "false"), ("restd", "false"), ("restd", "true")])
def test_a_run_that_was_interrupted_ends_with_the_same_weights(place, tmp_path, monkeypatch, objective, causal):
    options = {"objective": objective, "updates": 12}
    settings = ("train.checkpoint=3", f"tiger.causal={causal}")
    whole = train_retriever(tiger(place, tmp_path / "whole", *settings, **options)).folder
    update = Loop.update

    def dies(self, rows, number):
        if number == 7:
            raise KeyboardInterrupt
        return update(self, rows, number)

    cut = tiger(place, tmp_path / "cut", *settings, **options)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "update", dies)
        with pytest.raises(KeyboardInterrupt):
            train_retriever(cut)
    assert (tmp_path / "cut" / "checkpoint").is_dir()
    assert same_weights(train_retriever(cut).folder, whole)


def test_a_causal_run_reads_a_users_prefixes_together_and_each_pair_once(place, tmp_path):
    loop = make_loop(
        tiger(place, tmp_path / "run", "tiger.causal=true", "train.batch=16", "train.micro=16"),
        notify=lambda sentence: None,
    )
    texts = pairs = 0
    for rows in loop.plan.epoch(0):
        for micro in loop.plan.update(rows, rank=0):
            batch = loop.train.batch(micro)
            texts, pairs = texts + len(batch.inputs.values), pairs + len(batch.sids)
    users = len(np.unique(loop.train.pairs.texts.user))  # none has more pairs than are read together
    assert pairs >= len(loop.train.pairs) > 3 * users
    assert texts <= users + 2 * loop.plan.updates_per_epoch  # a user is read again only where a micro-batch ends


def test_objectives_are_paired(place, tmp_path):
    """With the same seed both see the same batches from the same first weights: the first loss is the same number."""
    logs = []
    for objective in ("base", "restd"):
        train_retriever(tiger(place, tmp_path / objective, objective=objective, updates=2))
        logs.append(read_log(tmp_path / objective / "log.jsonl"))
    assert logs[0][0]["sid_loss"] == logs[1][0]["sid_loss"]
    assert logs[1][1]["weight"] > 0  # and then ResTD goes its own way
    assert not same_weights(tmp_path / "base" / "model", tmp_path / "restd" / "model")


def test_early_stopping_looks_at_the_ranking_of_validation_users(place, tmp_path):
    asked = tiger(place, tmp_path / "run", *RANKED, "train.epochs=2", "train.judged=30", updates=None)
    done = train_retriever(asked, validate=ranked_validation(asked))
    said = [record["validation"] for record in read_log(tmp_path / "run" / "log.jsonl") if "validation" in record]
    assert len(said) == 2
    assert done.summary["validation"] == max(said)
    model = Retriever.load(done.folder, place / "index", place / "data")
    assert ranked_validation(asked)(model.backbone) == pytest.approx(max(said))
    with pytest.raises(ConfigError, match="ranked_validation"):
        train_retriever(tiger(place, tmp_path / "other", *RANKED, updates=4))


def test_held_out_items_stay_held_out_when_the_index_loses_items(place, tmp_path):
    index = SidIndex.load(place / "index")
    whole = read_tests(place / "data", Snapshot.of(index))
    targets = {user: index.table.ids[int(row)].as_py() for user, row in zip(whole.ids, whole.rows, strict=True)}
    fewer = index.remove([index.table.ids[row].as_py() for row in range(0, len(index), 4)])
    found = read_tests(place / "data", Snapshot.of(fewer))
    assert 0 < len(found) < len(whole)
    assert found.unknown == sum(target not in set(fewer.table.ids.to_pylist()) for target in targets.values())
    assert len(found) + found.unknown + found.without_history == len(whole)
    for user, row in zip(found.ids, found.rows, strict=True):
        assert fewer.table.ids[int(row)].as_py() == targets[user]
    train = read_next_items(place / "data", fewer.table.ids).train
    taken = {(train.texts[n].user, fewer.table.ids[int(row)].as_py()) for n, row in enumerate(train.item)}
    assert not taken & set(targets.items())


def taken_by_user(data):
    found = {}
    for line in (data / "histories.jsonl").read_text("utf-8").splitlines():
        event = json.loads(line)
        found.setdefault(event["user"], []).append(event["item"])
    return found


def test_users_the_index_knows_too_little_of_are_counted_apart(tmp_path):
    data = write_walks(tmp_path / "data", users=3)
    own = taken_by_user(data)
    known = {own["user0"][0], *(items[-1] for items in own.values())}
    ids = pa.array(sorted(known))
    found = read_tests(data, Snapshot.numbered(ids))
    asked = {user for user, items in own.items() if set(items[:-1]) & known}
    assert set(found.ids) == asked
    assert found.unknown == 0
    assert found.without_history == len(own) - len(asked) > 0
    assert any("took nothing before" in sentence for sentence in found.notes())


def test_an_index_without_any_validation_item_is_refused(tmp_path):
    data = write_walks(tmp_path / "data", users=2)
    own = taken_by_user(data)
    index = SidIndex.load(make_index(data, tmp_path / "index", policy="suffix"))
    fewer = index.remove(sorted({items[-2] for items in own.values()}))
    with pytest.raises(DataError, match="has a validation item that the index knows"):
        read_next_items(data, fewer.table.ids)


def test_unseen_lists_are_as_long(place, retriever):
    tests = read_tests(place / "data", retriever.snapshot)
    rows, _ = retriever.rank(tests.texts[:40], 20, beam=20, widen=False, seen=False)
    assert (rows >= 0).all()
    for history, ranked in zip(tests.texts[:40], rows, strict=True):
        assert not set(history.items) & set(retriever.index.table.ids.take(ranked).to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_many_are_recommended_at_once(place, retriever, monkeypatch, seed):
    """A long history beside a short one does not widen the search of the short one.

    Scores are random numbers, so that narrow beams lose items and their widths matter.
    """
    stepper = TableStepper(retriever.index.sizes, seed=seed)
    monkeypatch.setattr(retriever._generator, "_stepper", lambda normalizer: stepper)
    histories = [History(tuple(walk(place, count, 3 * count))) for count in (5, 1, 20, 3)]
    together = retriever.recommend(histories, k=5, beam=1)
    alone = [retriever.recommend(history, k=5, beam=1) for history in histories]
    assert together == alone
    wider = [retriever.recommend(history, k=5, beam=40) for history in histories]
    assert wider != alone
    with pytest.raises(ConfigError, match="is one text"):
        retriever.recommend(walk(place, 1)[0])


def test_a_searcher_does_not_recommend_and_a_recommender_does_not_search(place, retriever, tmp_path):
    with pytest.raises(ConfigError, match="cannot read a text query"):
        retriever.search("red kettle")
    with pytest.raises(ConfigError, match="does not read items' texts"):
        train_retriever(tiger(place, tmp_path / "run", "train.indexing=title", updates=2))
    data = write_world(tmp_path / "words")
    index = make_index(data, tmp_path / "index")
    searcher = Retriever.load(train_retriever(job(index, data, tmp_path / "base", updates=2)).folder.parent)
    with pytest.raises(ConfigError, match="cannot read histories"):
        searcher.recommend(["red-oak-desk"])
    with pytest.raises(ConfigError, match="a text has none"):
        searcher.rank(["desk"], 3, seen=False)
    with pytest.raises(DataError, match=r"no file named histories"):
        train_retriever(job(index, data, tmp_path / "none", *SETTINGS, backbone="tiger", updates=2))


def test_bad_histories_are_a_sentence(place, retriever, tmp_path):
    with pytest.raises(DataError, match="is empty"):
        retriever.recommend([])
    with pytest.raises(DataError, match="'nonsense'"):
        retriever.recommend([*walk(place, 1), "nonsense"])
    data = write_walks(tmp_path / "data")
    rows = [{"user": "a", "item": item, "time": time} for time, item in enumerate(walk(place, 2))]
    (data / "histories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match="No user has the 3 events"):
        train_retriever(job(place / "index", data, tmp_path / "short", *SETTINGS, backbone="tiger", updates=2))
    rows = [{"user": "a", "item": item, "time": "soon"} for item in walk(place, 4)]
    (data / "histories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match="'soon' is neither a number nor a date"):
        train_retriever(job(place / "index", data, tmp_path / "times", *SETTINGS, backbone="tiger", updates=2))


def test_short_and_unknown_and_repeated_events_are_told(place, tmp_path):
    data = write_walks(tmp_path / "data", users=10)
    more = [("few", item, 0) for item in walk(place, 2)] + [("user0", "nowhere", 99)]
    more += [("again", item, time) for time, item in enumerate([*walk(place, 4), walk(place, 1)[0]])]
    with (data / "histories.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(dict(zip(("user", "item", "time"), row, strict=True))) + "\n" for row in more)
    said = []
    asked = job(place / "index", data, tmp_path / "run", *SETTINGS, backbone="tiger", updates=1)
    train_retriever(asked, notify=said.append)
    text = " ".join(said)
    assert "1 events repeat an item" in text
    assert "1 events name items that the index does not have" in text
    assert "1 users have fewer than 3 events" in text
    assert "no held-out item is in its own history or in training (checked)" in text


def test_a_model_of_another_index_is_refused(place, tmp_path):
    other = make_index(place / "data", tmp_path / "index", policy="suffix", seed=5)
    with pytest.raises(ArtifactError, match="was trained for"):
        Retriever.load(place / "run", other)


def test_items_may_come_without_training(place, retriever):
    retriever.add([{"id": "new-oak-desk", "title": "new oak desk"}])
    found = retriever.recommend([*walk(place, 2), "new-oak-desk"], k=5)
    assert len(found) == 5


@pytest.mark.slow
def test_generated_shoppers_are_recommended_better_than_by_popularity_and_neighbours(tmp_path):
    data, index = tmp_path / "shoppers", tmp_path / "index"
    write_dataset(shoppers_source(ShopperSpec(items=1_000, users=3_000)), data)
    shape = IndexConfig(encoder="tfidf-svd", policy="suffix")
    build_index(Catalog(data), index, with_shape(shape, levels=3, codes=32, dim=32))
    snapshot = Snapshot.load(index)
    settings = ["tiger.history=2", "tiger.width=64", "tiger.layers=1", "tiger.feed=128", "tiger.heads=2"]
    settings += ["tiger.head_width=32", "tiger.dropout=0.0", "train.lr=0.005", "train.batch=256", "train.micro=256"]
    settings += ["train.select=loss", "train.keep=last", "train.patience=0", "tiger.causal=true"]
    model, config = configure(None, settings, task="recommend", options={"epochs": 9})
    train_retriever(Job(index, data, tmp_path / "run", model, config), notify=lambda sentence: None)
    tests = some_queries(read_tests(data, snapshot), 600)
    place = RankerContext(snapshot, data, index, "recommend")
    rivals = {name: make_ranker(name, place) for name in ("popularity", "co-occurrence", "neighbours")}
    found = {
        name: evaluate(ranker, tests, snapshot, name=name, measures=NEXT)[0].mean("Recall@10")
        for name, ranker in {**rivals, "tiger": Retriever.load(tmp_path / "run")}.items()
    }
    # seeds 42, 1 and 2 were 3.8, 2.2 and 2.2 points ahead: what another machine's rounding may take is left to it
    assert found["tiger"] > max(found[name] for name in rivals) + 1, found
