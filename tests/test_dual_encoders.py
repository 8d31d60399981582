"""Trained dual encoders: DPR, and LaSER on the same trainer."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from restd.data import write_dataset
from restd.encode import load_encoder
from restd.errors import ArtifactError, ConfigError, DataError
from restd.evaluate import Measure, evaluate, read_tests
from restd.quantize.known_pairs import KnownPairs
from restd.rankers import RankerContext, decoding_of, dual_runs, dual_training, make_companion, make_ranker
from restd.rankers.dual_data import Examples, ExplicitView, TextReader, draw_negatives, hard_negatives
from restd.rankers.dual_losses import contrast, divergence, score
from restd.rankers.dual_settings import DprConfig, LaserConfig
from restd.rankers.dual_training import dual_loss
from restd.shop import ShopSpec, shop_source
from restd.snapshot import Companion, Snapshot
from tests.sentence_models import save_sentence_model
from tests.training import make_index, write_world

QUERIES = ["red steel kettle", "oak desk", "a mug of glass"]
FAST = {"epochs": 4, "batch": 8, "learning_rate": 0.01, "hard_negatives": 1, "temperature": 0.05}
PLAIN = {"steps": 0, "view_weight": 0.0, "explicit_weight": 0.0, "step_weight": 0.0}
NDCG = Measure("NDCG", 10)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return data, make_index(data, folder / "index")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_sentence_model(tmp_path_factory.mktemp("mpnet"), "mpnet")


@pytest.fixture
def context(world, tmp_path):
    data, home = world
    return RankerContext(Snapshot.load(home, data), data, home, trained=tmp_path / "baselines")


def with_settings(context, name="dpr", **settings):
    return replace(context, settings={name: FAST | settings})


def weights(ranker):
    return {name: value.numpy().copy() for name, value in ranker.network.state_dict().items()}


def test_dpr_beats_its_frozen_encoder_on_the_test_queries_of_the_shop(tmp_path):
    data = tmp_path / "shop"
    write_dataset(shop_source(ShopSpec(items=500)), data)
    home = make_index(data, tmp_path / "index")
    snapshot = Snapshot.load(home, data)
    context = RankerContext(snapshot, data, home, trained=tmp_path / "kept", settings={"dpr": {"epochs": 6}})
    tests = read_tests(data, snapshot)
    frozen, trained = (
        evaluate(make_ranker(name, context), tests, snapshot, name=name, measures=(NDCG,))[0].mean(str(NDCG))
        for name in ("dense", "dpr")
    )
    assert trained > frozen + 1


@pytest.mark.parametrize("name", ["dpr", "laser"])
@pytest.mark.parametrize("pooling", ["none", "both"])
@pytest.mark.parametrize("encoder", ["index", "model"])
def test_without_training_it_ranks_as_the_frozen_encoder(context, model, name, pooling, encoder):
    suffix = "" if encoder == "index" else f":{model}"
    place = with_settings(context, name, epochs=0, pooling=pooling)
    rows, scores = make_ranker(f"{name}{suffix}", place).rank(QUERIES, 10)
    frozen_rows, frozen_scores = make_ranker(f"dense{suffix}", place).rank(QUERIES, 10)
    assert np.allclose(scores, frozen_scores, atol=1e-5)
    clear = np.abs(np.diff(frozen_scores, axis=1)) > 1e-5  # ties may stand in another order
    clear = np.pad(clear, ((0, 0), (1, 0)), constant_values=True) & np.pad(
        clear, ((0, 0), (0, 1)), constant_values=False
    )
    assert (rows == frozen_rows)[clear].all()


@pytest.mark.parametrize("name", ["dpr", "laser"])
def test_a_finished_run_is_opened_again(context, name):
    messages = []
    place = replace(with_settings(context, name, epochs=2), notify=messages.append)
    first, again = make_ranker(name, place), make_ranker(name, place)
    assert messages[-1].startswith(f"Kept {name} in")
    assert np.array_equal(first.rank(QUERIES, 60)[0], again.rank(QUERIES, 60)[0])
    assert np.array_equal(first.rank(QUERIES, 60)[1], again.rank(QUERIES, 60)[1])
    other = make_ranker(name, replace(with_settings(context, name, epochs=2, seed=7), trained=context.trained))
    assert any(not np.array_equal(weights(first)[part], weights(other)[part]) for part in weights(first))


@pytest.mark.parametrize("name", ["dpr", "laser"])
def test_a_run_that_was_killed_ends_with_the_same_weights(context, tmp_path, monkeypatch, name):
    settings = {"epochs": 4, "patience": 0, "pooling": "queries"}
    whole = make_ranker(name, with_settings(replace(context, trained=tmp_path / "whole"), name, **settings))
    original, calls = dual_training.write_checkpoint, []

    def killed(*args, **options):
        original(*args, **options)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(dual_training, "write_checkpoint", killed)
    messages = []
    place = replace(with_settings(replace(context, trained=tmp_path / "cut"), name, **settings), notify=messages.append)
    with pytest.raises(KeyboardInterrupt):
        make_ranker(name, place)
    resumed = make_ranker(name, place)
    assert "Resuming after epoch 2" in messages
    assert len(calls) == 4, "two epochs before the kill and two after it"
    for part, value in weights(whole).items():
        assert np.array_equal(value, weights(resumed)[part]), part
    (run,) = (tmp_path / "cut").glob(f"{name}-*")
    assert sorted(path.name for path in run.iterdir() if not path.name.startswith(".")) == ["log.jsonl", "model"]
    updates = [json.loads(line)["update"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert updates == sorted(set(updates))


def test_the_number_of_epochs_is_chosen_on_validation_queries(context):
    ranker = make_ranker("dpr", with_settings(context, epochs=6, patience=0, learning_rate=0.05))
    (run,) = context.trained.glob("dpr-*")
    values = [json.loads(line)["validation"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert len(values) == 7, "the frozen encoder competes too"
    assert ranker.summary == {"epochs": int(np.argmax(values)), "validation": max(values)}
    tests = read_tests(context.data, context.snapshot, split="valid")
    evaluation, _ = evaluate(ranker, tests, context.snapshot, name="dpr", measures=(NDCG,))
    assert evaluation.mean(str(NDCG)) == pytest.approx(max(values))


def test_training_stops_when_nothing_gets_better(context, monkeypatch):
    monkeypatch.setattr(dual_training, "ndcg", lambda network, lessons: 50.0)
    make_ranker("dpr", with_settings(context, epochs=9, patience=2))
    (run,) = context.trained.glob("dpr-*")
    assert len((run / "log.jsonl").read_text().splitlines()) == 3


def test_it_is_refused_for_other_items(context):
    ranker = make_ranker("dpr", with_settings(context, epochs=1))
    (run,) = context.trained.glob("dpr-*")
    identity = json.loads((run / "model" / "manifest.json").read_text())["settings"]["identity"]
    artifact = dual_runs.finished_run(run, identity)
    with pytest.raises(ArtifactError, match=r"ranks 60 items that are not the snapshot's 59.*train it again"):
        ranker.restored(artifact, context.snapshot.remove(["red-oak-desk"]))
    with pytest.raises(ArtifactError, match=r"trained with other settings, judgments or items"):
        dual_runs.finished_run(run, "another")


@pytest.mark.parametrize("name", ["dpr", "laser"])
def test_it_can_be_a_part_of_a_hybrid_search(context, name):
    ranker = make_companion(name, with_settings(context, name, epochs=1, pooling="both"))
    assert isinstance(ranker, Companion)
    assert ranker.name == name
    rows, scores = ranker.rank(QUERIES, 60)
    assert np.allclose(ranker.scores(QUERIES, rows), scores, atol=1e-6)
    snapshot = context.snapshot.with_companions([ranker])
    after = snapshot.add(
        [{"id": "new", "title": "red oak desk"}], context.encoder().encode(["red oak desk"]), ["red oak desk"]
    ).remove(["red-steel-kettle"])
    (following,) = after.companions
    assert following.snapshot_hash == after.hash
    scored = dict(zip(after.ids.to_pylist(), following.scores(["oak desk"], np.arange(60)[None])[0], strict=True))
    before = dict(zip(snapshot.ids.to_pylist(), ranker.scores(["oak desk"], np.arange(60)[None])[0], strict=True))
    assert all(scored[item] == pytest.approx(before[item], abs=1e-6) for item in before if item in scored)
    assert scored["new"] == pytest.approx(0.5, abs=0.5)
    assert scored["new"] > np.median(list(scored.values()))


@pytest.mark.parametrize("name", ["dpr", "laser"])
def test_the_card_has_every_setting(context, name):
    card = decoding_of(name, with_settings(context, name, epochs=3))
    assert card["settings"]["epochs"] == 3
    assert "temperature" in card["settings"]
    assert decoding_of(name, with_settings(context, name, epochs=2)) != card


def test_what_is_missing_is_a_sentence(context, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"'dpr' is trained before it ranks\. Pass --out"):
        make_ranker("dpr", replace(with_settings(context), trained=None))
    with pytest.raises(ConfigError, match=r"\[laser\] has no setting 'tune_encoder'"):
        make_ranker("laser", with_settings(context, "laser", tune_encoder=True))
    with pytest.raises(ConfigError, match=r"dpr\.temperature must be a number above 0, got 0"):
        make_ranker("dpr", with_settings(context, temperature=0))
    with pytest.raises(ConfigError, match=r"laser\.prototypes must be at least 2, got 1"):
        LaserConfig(prototypes=1)
    with pytest.raises(ConfigError, match=r"'tfidf-svd' cannot be trained.*dpr:minilm"):
        make_ranker("dpr", with_settings(context, tune_encoder=True))
    with pytest.raises(ConfigError, match=r"but dpr\.tune_encoder changes them"):
        DprConfig(tune_encoder=True, pooling="both")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "bm25s", None)
        with pytest.raises(ConfigError, match=r"pip install.*\[bm25\].*--set dpr\.hard_negatives=0"):
            make_ranker("dpr", with_settings(context))
        make_ranker("dpr", with_settings(context, epochs=1, hard_negatives=0))


def test_judgments_without_training_queries_are_a_sentence(tmp_path):
    data = write_world(tmp_path / "data")
    lines = (data / "judgments.jsonl").read_text().splitlines()
    (data / "judgments.jsonl").write_text("\n".join(line for line in lines if '"split": "train"' not in line) + "\n")
    home = make_index(data, tmp_path / "index")
    context = RankerContext(Snapshot.load(home, data), data, home, trained=tmp_path / "kept")
    with pytest.raises(DataError, match=r"has no training pairs: of 30 judgments"):
        make_ranker("dpr", with_settings(context))
    ranker = make_ranker("dpr", with_settings(context, epochs=1, pseudo_queries=1))
    assert ranker.rank(["oak desk"], 3)[0].shape == (1, 3)


def test_laser_without_categories_is_a_sentence(tmp_path):
    data = write_world(tmp_path / "data", categories=False)
    home = make_index(data, tmp_path / "index")
    context = RankerContext(Snapshot.load(home, data), data, home, trained=tmp_path / "kept")
    with pytest.raises(DataError, match=r"has no categories.*--set laser\.view_weight=0"):
        make_ranker("laser", with_settings(context, "laser"))
    make_ranker("laser", with_settings(context, "laser", epochs=1, **PLAIN))


def test_the_whole_encoder_can_be_trained(context, model):
    place = with_settings(context, tune_encoder=True, epochs=2, patience=0, encoder_rate=1.0)
    first, again = make_ranker(f"dpr:{model}", place), make_ranker(f"dpr:{model}", place)
    frozen = load_encoder(model).network.state_dict()
    tuned = first.network.query_encoder.state_dict()
    assert first.summary["epochs"] > 0
    assert any(not torch.equal(frozen[name], tuned[name]) for name in frozen)
    assert np.allclose(first.rank(QUERIES, 60)[1], again.rank(QUERIES, 60)[1], atol=1e-5)
    untrained = make_ranker(f"dpr:{model}", with_settings(context, tune_encoder=True, epochs=0))
    frozen_scores = make_ranker(f"dense:{model}", context).rank(QUERIES, 10)[1]
    assert np.allclose(untrained.rank(QUERIES, 10)[1], frozen_scores, atol=1e-4)
    assert np.array_equal(frozen["0.model.embeddings.word_embeddings.weight"], load_encoder(model).network.state_dict()[
        "0.model.embeddings.word_embeddings.weight"]), "the encoder that others share stays as it was"  # fmt: skip


def test_laser_with_nothing_of_its_own_is_dpr(context):
    settings = {"epochs": 3, "patience": 0, "shared": True}
    dpr = make_ranker("dpr", with_settings(context, **settings))
    laser = make_ranker("laser", with_settings(context, "laser", **settings, **PLAIN))
    assert weights(dpr).keys() == weights(laser).keys()
    for name, value in weights(dpr).items():
        assert np.array_equal(value, weights(laser)[name])
    assert np.array_equal(dpr.rank(QUERIES, 60)[1], laser.rank(QUERIES, 60)[1])


def lessons_of(context, config, model):
    """What `make_ranker` trains on, and an untrained network moved a little from where it begins."""
    made = []
    original = dual_runs.DualRun

    class Caught(Exception):
        pass

    def catch(*args):
        made.extend(args)
        raise Caught

    try:
        dual_runs.DualRun = catch
        with pytest.raises(Caught):
            dual_runs.make_dual_encoder(replace(context, argument=model), config)
    finally:
        dual_runs.DualRun = original
    network = made[0].network
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network, made[1]


def softmax(scores):
    shifted = np.exp(scores - scores.max())
    return shifted / shifted.sum()


def test_dprs_loss_is_the_likelihood_among_negatives_that_are_none_of_the_answers(context, model):
    config = DprConfig(batch=8, hard_negatives=2, temperature=0.1)
    network, lessons = lessons_of(context, config, model)
    chosen = np.array([0, 1, 5, 9])
    loss = float(dual_loss(network, lessons, chosen, config, seed=(1, 2, 3)).detach())
    query, item = lessons.pairs.text[chosen], lessons.pairs.item[chosen]
    drawn = draw_negatives(lessons.negatives, query, per_row=2, items=60, seed=(1, 2, 3))
    answers = {(q, i) for q, i in zip(lessons.pairs.text.tolist(), lessons.pairs.item.tolist(), strict=True)}
    assert not {(q, i) for q, row in zip(query.tolist(), drawn.tolist(), strict=True) for i in row} & answers
    queries = network.queries(lessons.queries.batch(query)).vectors.detach().numpy()
    items = network.items(lessons.items.batch(np.arange(60))).detach().numpy()
    expected, left_out = [], 0
    for place, (q, own) in enumerate(zip(query.tolist(), item.tolist(), strict=True)):
        others = [i for i in [*np.delete(item, place).tolist(), *drawn.ravel().tolist()] if (q, i) not in answers]
        left_out += 3 + 8 - len(others)
        scores = queries[place] @ items[[own, *others]].T / 0.1
        expected.append(-np.log(softmax(scores)[0]))
    assert loss == pytest.approx(np.mean(expected), rel=1e-4)
    assert left_out >= 2, "the first two pairs are of one query"


def test_lasers_loss_has_the_four_terms_of_the_paper(context, model):
    config = LaserConfig(batch=8, hard_negatives=0, prototypes=4, width=8, steps=2, view_weight=10.0)
    network, lessons = lessons_of(context, config, model)
    chosen = np.array([0, 3, 8, 13])
    total = float(dual_loss(network, lessons, chosen, config, seed=(0,)).detach())
    query, item = lessons.pairs.text[chosen], lessons.pairs.item[chosen]
    view = network.queries(lessons.queries.batch(query))
    items = network.items(lessons.items.batch(item)).detach().numpy()
    rows = lessons.explicit.row[chosen]
    batch = lessons.explicit.texts.batch(rows)
    explicit = network.explicit(batch).detach().numpy()
    reasoning = network.reasoning(batch, lessons.explicit.shares(rows, 2)).detach().numpy()
    steps, latent = view.steps.detach().numpy(), view.vectors.detach().numpy()
    mask = lessons.known.others(torch.from_numpy(query), torch.from_numpy(item)).numpy()

    def likelihoods(vectors, place, temperature):
        return np.where(mask[place], 0, softmax(np.where(mask[place], -1e9, vectors @ items.T / temperature)))

    def kl(teacher, student):
        return sum(p * np.log(p / q) for p, q in zip(teacher, student, strict=True) if p > 0)

    expected = 0.0
    for place in range(len(chosen)):
        of_latent, of_explicit = (likelihoods(view[place], place, 0.02) for view in (latent, explicit))
        expected += -np.log(of_latent[place]) - np.log(of_explicit[place]) + 10 * kl(of_explicit, of_latent)
        for step in range(2):
            pair = (likelihoods(part[place, step], place, 0.05) for part in (reasoning, steps))
            expected += 0.1 / 2 * kl(*pair)
    assert total == pytest.approx(expected / len(chosen), rel=1e-3)


def test_the_explicit_view_teaches_and_is_not_taught_by_divergences():
    teacher, student = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    divergence(teacher, student).backward()
    assert teacher.grad is None
    assert student.grad is not None


def test_masked_candidates_have_no_part_in_any_loss():
    queries, items = torch.randn(2, 4), torch.randn(3, 4)
    mask = torch.tensor([[False, True, False], [False, False, True]])
    scores = score(queries, items, mask, temperature=0.5)
    changed = score(queries, items + torch.tensor([[0.0], [0.0], [9.0]]), mask, temperature=0.5)
    assert contrast(scores[1:].roll(1, 1)[:, [2, 1, 0]]).isfinite()
    assert torch.equal(scores[1], changed[1])
    assert float(divergence(scores, scores)) == 0.0


def test_shares_of_the_reasoning_cover_it_in_order(context, model):
    encoder = load_encoder(model)
    reader = TextReader(encoder, LaserConfig(), tokens=True)
    texts = ("oak desk. category: Home > desk", "", "mug. category: Home")
    view = ExplicitView.of(reader, texts, None)
    assert view.row[1] == -1
    for pair, query in ((0, "oak desk"), (2, "mug")):
        row = view.row[pair]
        begin = len(encoder.tokens([query], limit=64)[0][0]) - 1
        end = view.texts.states.lengths[row] - 1
        shares = view.shares(np.array([row]), 3)[0]
        assert torch.allclose(shares.sum(dim=1), torch.ones(3))
        covered = np.flatnonzero((shares > 0).any(dim=0).numpy())
        assert covered.tolist() == list(range(begin, end))
        centres = (shares * torch.arange(shares.shape[1])).sum(dim=1)
        assert (centres.diff() >= 0).all()


def test_every_pair_with_a_category_has_its_path_written_out(context):
    examples = Examples.read(context, LaserConfig())
    ids, paths = context.snapshot.ids.to_pylist(), set()
    for text, item, explicit in zip(examples.train.text, examples.train.item, examples.explicit, strict=True):
        thing = ids[item].split("-")[-1]
        path = "Home" if thing == "mug" else f"Home > {thing}"
        assert explicit == f"{examples.train.texts[text]}. category: {path}"
        paths.add(path)
    assert len(paths) == 5


def test_hard_negatives_share_words_and_answer_nothing(context):
    examples = Examples.read(context, DprConfig())
    train = examples.train
    known = KnownPairs.of(train.text, train.item, items=60)
    ranked = hard_negatives(context.snapshot, train, known, DprConfig(depth=6))
    ids = context.snapshot.ids.to_pylist()
    answers = set(zip(train.text.tolist(), train.item.tolist(), strict=True))
    for query, rows in enumerate(ranked.tolist()):
        kept = [row for row in rows if row >= 0]
        assert rows[: len(kept)] == kept, "what is missing stands last"
        assert all((query, row) not in answers for row in kept)
        assert all(set(ids[row].split("-")) & set(str(train.texts[query]).split()) for row in kept)


def test_settings_reach_it_by_command(world, command, tmp_path):
    data, home = world
    words = ("evaluate", "--index", home, "--data", data, "--split", "valid", "--json", "--baseline")
    code, out, err = command(*words, "dpr", "--out", tmp_path / "a", "--set", "dpr.epochs=1", "--set", "dpr.batch=8")
    assert code == 0, err
    assert json.loads(out)["card"]["decoding"]["settings"]["epochs"] == 1
    assert [path.name[:4] for path in (tmp_path / "a" / "baselines").iterdir()] == ["dpr-"]
    code, _, err = command(*words, "dpr", "--out", tmp_path / "b", "--set", "dpr.epoch=1")
    assert code == 2
    assert "[dpr] has no setting 'epoch'" in err
