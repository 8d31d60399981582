"""LTRGR, RIPOR and DDRO in a run: they do what they promise, and nothing where they should do nothing."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.data.pairs import read_pairs
from restd.errors import ConfigError, DataError
from restd.evaluate import beam_negatives
from restd.evaluate.beam_negatives import Positives, without_positives
from restd.evaluate.teacher_scores import EnsembleTeacher
from restd.index import SidIndex
from restd.models import open_model
from restd.snapshot import Snapshot
from restd.train import OBJECTIVES, Negatives, RankSettings, read_log, train_retriever
from restd.train.job import prepare_texts
from restd.train.loop import TrainingSet
from restd.train.module import Batch, Forward
from restd.train.negatives import NegativeTable
from restd.train.rank_objectives import RANK_LOSSES, CodeScores, RankObjective
from restd.train.reference import with_log_probabilities
from tests.training import job, make_index, run, same_weights, write_walks, write_world

RANKING = ("ltrgr", "ripor", "ddro")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Index, data and a checkpoint."""
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    index = make_index(data, folder / "index")
    run(index, data, folder / "base", updates=40)
    return index, data, folder / "base"


def training_set(made, backbone, split="train"):
    index = SidIndex.load(made.index)
    pairs = read_pairs(made.data, index.table.ids)
    pairs = pairs.train if split == "train" else pairs.valid
    texts = prepare_texts(made, backbone, pairs, index, lambda sentence: None)
    return TrainingSet(pairs, texts, torch.from_numpy(index.sids.astype(np.int64)))


def gaps(world, folder, negatives, train, best=False):
    """Mean lead in nats of the positives over the negatives of their query, by the model of a run."""
    backbone = open_model(folder)[0].eval()
    scored = with_log_probabilities(negatives, backbone, train, CodeScores(), device=CPU)
    place = np.searchsorted(scored.queries, scored.positive_query)
    known = negatives.items[place] >= 0
    return ((scored.positive_scores[:, None] - scored.scores[place]) * known).sum() / known.sum()


def held_out_negatives(world, tmp_path):
    """Negatives of the validation queries in the beam of the checkpoint, for measuring alone."""
    index, data, base = world
    made = job(index, data, tmp_path / "unused", objective="ltrgr", init=base)
    backbone = open_model(base)[0].eval()
    valid = training_set(made, backbone, "valid")
    search = beam_negatives(made)
    search = type(search)(search.snapshot, search.judgments.slice(0, 0), search.settings, search.options, None, seed=0)
    return search(backbone, valid, number=0), valid


@pytest.mark.parametrize("objective", ["ltrgr", "ddro"])
def test_positives_lead_further_over_the_beam_of_the_checkpoint_on_queries_held_out(world, tmp_path, objective):
    index, data, base = world
    settings = ("rank.weight=1", "train.lr=0.001")
    for name in ("base", objective):
        run(index, data, tmp_path / name, *settings, objective=name, init=base, updates=40)
    negatives, valid = held_out_negatives(world, tmp_path)
    assert (negatives.items >= 0).sum() > 50
    before, plain, ranked = (
        gaps(world, folder, negatives, valid) for folder in (base, tmp_path / "base", tmp_path / objective)
    )
    assert ranked > plain + 0.1
    assert ranked > before + 0.1


def test_preferences_over_the_reference_grow(world, tmp_path):
    index, data, base = world
    run(index, data, tmp_path / "ddro", "rank.weight=5", objective="ddro", init=base, updates=30)
    losses = [record["rank_loss"] for record in read_log(tmp_path / "ddro" / "log.jsonl")]
    # the model is its own reference at first, up to dropout
    assert losses[0] == pytest.approx(np.log(2), abs=0.05)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.02
    assert not (tmp_path / "ddro" / "reference").exists()


def test_prefix_scores_order_as_the_teachers(world, tmp_path):
    """Among pairs of a positive and a negative, the student's lead agrees with the teacher's more than before."""
    index, data, base = world
    settings = ("rank.weight=0.5", "rank.grades=0", "rank.curriculum=0", "train.lr=0.003")
    made = job(index, data, tmp_path / "ripor", *settings, objective="ripor", init=base, updates=60)
    train_retriever(made, notify=lambda sentence: None, refresh=beam_negatives(made))
    search, start = beam_negatives(made), open_model(base)[0].eval()
    train = training_set(made, start)
    teacher = search(start, train, number=0)
    place = np.searchsorted(teacher.queries, teacher.positive_query)
    known = teacher.items[place] >= 0
    wanted = (teacher.positive_scores[:, None] - teacher.scores[place])[known]
    agreement = []
    for folder in (base, tmp_path / "ripor"):
        backbone = open_model(folder)[0].eval()
        own = with_log_probabilities(teacher, backbone, train, CodeScores(), device=CPU)
        lead = (own.positive_scores[:, None] - own.scores[place])[known]
        agreement.append(np.corrcoef(lead, wanted)[0, 1])
    assert agreement[1] > agreement[0] + 0.1
    assert agreement[1] > 0.5


def updates(folder):
    """Records of updates, without those of validations."""
    return [record for record in read_log(folder / "log.jsonl") if "sid_loss" in record]


@pytest.mark.parametrize(
    ("backbone", "objective"),
    [("compact", "ltrgr"), ("compact", "ripor"), ("compact", "ddro"), ("t5", "ripor"), ("calir", "ddro")],
)
def test_without_weight_it_is_base_bit_by_bit(world, tmp_path, backbone, objective):
    index, data, _ = world
    one = run(index, data, tmp_path / "one", backbone=backbone, updates=8)
    settings = ("rank.weight=0", "rank.refresh=0.5", "rank.beam=4", "rank.negatives=3")
    other = run(index, data, tmp_path / "other", *settings, backbone=backbone, objective=objective, updates=8)
    assert same_weights(one.folder, other.folder)
    records = updates(tmp_path / "other")
    assert all(record["ranked"] > 0.5 for record in records)
    assert all(record["rank_loss"] > 0 for record in records)


@pytest.mark.parametrize("backbone", ["compact", "t5", "calir"])
def test_with_weight_every_backbone_learns_from_it(world, tmp_path, backbone):
    index, data, _ = world
    settings = ("rank.start=0.5", "rank.beam=4")
    one = run(index, data, tmp_path / "one", backbone=backbone, updates=6)
    other = run(index, data, tmp_path / "other", *settings, backbone=backbone, objective="ltrgr", updates=6)
    assert not same_weights(one.folder, other.folder)
    before, after = (updates(tmp_path / name) for name in ("one", "other"))
    assert [record["sid_loss"] for record in before][:4] == [record["sid_loss"] for record in after][:4]
    assert [record["ranked"] > 0 for record in after] == [False] * 3 + [True] * 3


class Killed(Exception):
    pass


@pytest.mark.parametrize("objective", RANKING)
def test_a_run_that_was_killed_between_two_searches_ends_with_the_same_bytes(world, tmp_path, monkeypatch, objective):
    index, data, base = world
    settings = ("train.checkpoint=3", "rank.refresh=1.5", "rank.queries=12", "rank.weight=1", "rank.start=0.1")
    options = {"objective": objective, "init": base, "updates": 17}
    whole = run(index, data, tmp_path / "whole", *settings, **options).folder
    from restd.train.loop import Loop

    original = Loop.update

    def update(self, rows, number):
        if number == 11:
            raise Killed
        return original(self, rows, number)

    monkeypatch.setattr(Loop, "update", update)
    with pytest.raises(Killed):
        run(index, data, tmp_path / "run", *settings, **options)
    monkeypatch.setattr(Loop, "update", original)
    sentences = []
    again = run(index, data, tmp_path / "run", *settings, notify=sentences.append, **options).folder
    assert any("Resuming after update 9" in sentence for sentence in sentences)
    searches = [sentence for sentence in sentences if "searched queries" in sentence]
    assert len(searches) == 1  # of two searches left at most: the negatives of the first were in the checkpoint
    assert same_weights(again, whole)


def test_a_run_without_a_search_is_refused(world, tmp_path):
    index, data, _ = world
    with pytest.raises(ConfigError, match=r"objective ltrgr needs negatives.*refresh=restd\.evaluate\.beam_negatives"):
        train_retriever(job(index, data, tmp_path / "run", objective="ltrgr"))
    assert beam_negatives(job(index, data, tmp_path / "run", objective="restd")) is None


def test_nothing_but_held_out_texts_is_refused(world, tmp_path):
    index, data, base = world
    made = job(index, data, tmp_path / "run", objective="ltrgr", init=base)
    backbone = open_model(base)[0].eval()
    valid = training_set(made, backbone, "valid")
    with pytest.raises(DataError, match=r"nothing to search negatives for: of 15 training queries 15 are judged"):
        beam_negatives(made)(backbone, valid, number=0)


def test_a_recommender_is_refused(tmp_path):
    data = write_walks(tmp_path / "data")
    index = make_index(data, tmp_path / "index")
    with pytest.raises(ConfigError, match="ddro searches negatives for texts, and this model recommends"):
        beam_negatives(job(index, data, tmp_path / "run", backbone="tiger", objective="ddro"))


def test_queries_of_other_splits_and_positives_are_never_among_what_is_searched(tmp_path):
    data = write_world(tmp_path / "data")
    extra = [
        {"query": "steel kettle", "item": "green-oak-mug", "grade": 1, "split": "test"},  # also a training query
        {"query": "oak desk", "item": "green-oak-desk", "grade": 0.01, "split": "train"},
        {"query": "oak desk", "item": "black-oak-desk", "grade": 0, "split": "train"},
    ]
    with (data / "judgments.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in extra)
    index = make_index(data, tmp_path / "index")
    settings = ("train.pairs_per_item=1", "train.indexing=title")
    made = job(index, data, tmp_path / "run", *settings, objective="ltrgr", updates=3)
    spied, search = [], beam_negatives(made)

    def refresh(backbone, train, *, number):
        negatives = search(backbone, train, number=number)
        spied.append((train.pairs, negatives))
        return negatives

    train_retriever(made, notify=lambda sentence: None, refresh=refresh)
    [(pairs, negatives)] = spied
    texts = [str(pairs.texts[query]) for query in negatives.queries]
    rows = [json.loads(line) for line in (data / "judgments.jsonl").read_text("utf-8").splitlines()]
    assert "steel kettle" in pairs.texts
    assert not {row["query"] for row in rows if row["split"] != "train"} & set(texts)
    assert len(texts) >= 10
    assert all(query < pairs.queries for query in negatives.queries)
    ids = SidIndex.load(index).table.ids.to_pylist()
    right = {(row["query"], row["item"]) for row in rows if row["grade"]}  # more than the pairs: one for each item
    kept = [(text, ids[row]) for text, items in zip(texts, negatives.items, strict=True) for row in items if row >= 0]
    assert len(kept) > 100
    assert not right & set(kept)


@st.composite
def searches(draw):
    items, queries = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    sids = np.array(draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=items, max_size=items)))
    pairs = draw(st.sets(st.tuples(st.integers(0, queries - 1), st.integers(0, items - 1))))
    lists = [draw(st.permutations(range(items))) for _ in range(queries)]
    return sids, sorted(pairs), [np.array(rows[: draw(st.integers(0, items))], np.int64) for rows in lists]


@given(searches(), st.integers(1, 5))
def test_no_positive_is_among_the_negatives_nor_anything_with_its_semantic_id(search, count):
    sids, pairs, lists = search
    query, item = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    positives = Positives(query, item, np.ones(len(pairs)), np.ones(len(pairs), bool), np.zeros(0, np.int64))
    found = without_positives(lists, np.arange(len(lists)), positives, sids, count=count)
    for number, rows in enumerate(lists):
        right = {tuple(sids[row]) for other, row in pairs if other == number}
        expected = [row for row in rows.tolist() if tuple(sids[row]) not in right][:count]
        assert found[number].tolist() == expected + [-1] * (count - len(expected))


def forward_of(world, texts):
    index, _, base = world
    backbone = open_model(base)[0].eval()
    sids = torch.from_numpy(SidIndex.load(index).sids.astype(np.int64))
    rows = torch.arange(len(texts))
    inputs = backbone.prepare(texts).batch(rows.numpy())
    memory = backbone.encode(inputs)
    output = backbone.states(memory, sids[rows])
    batch = Batch(inputs, sids[rows], rows, rows)
    return batch, Forward(output, backbone.sid_loss(output, batch.sids), backbone, memory), sids


@pytest.mark.parametrize("objective", RANKING)
def test_a_query_whose_beam_is_all_right_has_no_loss(world, objective):
    batch, forward, sids = forward_of(world, ["steel kettle", "oak desk"])
    negatives = Negatives(
        np.array([0, 1]), np.array([[-1, -1], [5, 7]]), np.array([0, 1]), np.array([0, 1]),
        np.zeros((2, 2), np.float32), np.zeros(2, np.float32),
    )  # fmt: skip
    settings = RankSettings(generation=0.5, weight=1.0)
    ranking = RankObjective(RANK_LOSSES[objective], settings, settings.phase(total=10, per_epoch=5), sids, CodeScores())
    assert float(ranking(batch, forward, step=0)[0]) == 0  # nothing was searched yet
    ranking.table = NegativeTable.of(negatives, texts=2, items=len(sids), device=CPU)
    torch.manual_seed(1)
    both, parts = ranking(batch, forward, step=9)
    assert float(parts["ranked"]) == 0.5
    torch.manual_seed(1)
    own = Forward(
        type(forward.output)(forward.output.states[1:]),
        forward.sid_loss,
        forward.backbone,
        forward.memory.take(torch.tensor([1])),
    )
    second = Batch(batch.inputs, batch.sids[1:], batch.rows[1:], batch.queries[1:])
    alone, _ = ranking(second, own, step=9)
    half = -0.5 * forward.sid_loss
    assert (both - half).item() == pytest.approx((alone - half).item() / 2, rel=1e-4)
    first = Batch(batch.inputs, batch.sids[:1], batch.rows[:1], batch.queries[:1])
    nothing, parts = ranking(first, forward, step=9)
    assert float(parts["rank_loss"]) == 0
    assert nothing.item() == pytest.approx(half.item())


def test_code_scores_are_those_a_search_adds_up(world):
    index, _, _ = world
    batch, forward, _ = forward_of(world, ["steel kettle", "oak desk"])
    from restd.search.candidate_scores import sid_scores

    snapshot = Snapshot.load(index)
    for trie in (None, snapshot.trie):
        own = CodeScores(trie=trie)(forward.backbone, forward.output.states, batch.sids).sum(dim=-1)
        exact = sid_scores(forward.backbone.stepper(), forward.memory, batch.sids[:, None], trie=trie)[:, 0]
        assert torch.allclose(own, exact, atol=1e-4)


def test_the_teacher_is_an_ensemble_and_grades(world):
    index, data, _ = world
    snapshot = Snapshot.load(index)
    ids = snapshot.ids.to_pylist()
    rows = np.array([[ids.index("red-oak-desk"), ids.index("red-steel-mug"), ids.index("blue-oak-mug"), -1]])
    negatives = Negatives(np.array([4]), rows[:, 1:], np.array([4]), rows[0, :1])
    for dense in (0.0, 0.5, 1.0):
        teacher = EnsembleTeacher.of(snapshot, data=data, home=index, dense=dense)
        assert [weight for weight, _ in teacher.parts] == [weight for weight in (1 - dense, dense) if weight]
        scored = teacher.scored(negatives, ["red oak desk"], grades=np.array([0.25]), share=0.5)
        assert scored.positive_scores.tolist() == [0.625]  # half of the best of all, and half of the grade
        assert 0 <= scored.scores[0, 0] < 0.5
        assert scored.scores[0, 2] == 0  # nothing stands there
    alone = teacher.scored(negatives, ["red oak desk"], grades=np.array([0.25]), share=1.0)
    assert alone.positive_scores.tolist() == [0.25]
    assert not alone.scores.any()


def test_settings_that_an_objective_does_not_read_are_no_part_of_a_run(world, tmp_path):
    index, data, _ = world

    def made(objective, *settings):
        return job(index, data, tmp_path, *settings, objective=objective)

    assert set(made("base").settings()) == {"model", "objective", "train", "distill", "category"}
    assert "codewords" not in made("base").settings()["model"]["compact"]
    for objective, same in (("base", True), ("restd", True), ("ltrgr", False)):
        hashes = {made(objective, *settings).identity(processes=1) for settings in ((), ("rank.margin=3",))}
        assert (len(hashes) == 1) == same
    assert made("ltrgr").settings()["rank"]["margin"] == 1.0


def test_a_finished_run_is_kept_whatever_rank_says(world):
    index, data, base = world
    sentences = []
    run(index, data, base, "rank.beam=7", updates=40, notify=sentences.append)
    assert any("nothing has changed" in sentence for sentence in sentences)


def test_entries_say_what_they_need_and_where_they_are_from():
    for name in RANKING:
        spec = OBJECTIVES[name]
        assert spec.refresh in ("negatives", "teacher", "reference")
        assert spec.source
        assert name in RANK_LOSSES
    assert {name for name in OBJECTIVES if OBJECTIVES[name].refresh is not None} == set(RANKING)
