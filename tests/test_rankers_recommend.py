"""Baselines of recommendation: what they rank, what they learn from, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from restd.data import EventSpans, Histories, History, leave_one_out
from restd.errors import ArtifactError, ConfigError, DataError, TrainingError
from restd.rankers import HistoryPopularity, sasrec_losses, sasrec_training
from restd.rankers.dense import unit
from restd.rankers.neighbours import CooccurrenceNeighbours, EmbeddingNeighbours
from restd.rankers.sasrec import SasRec, SasRecConfig, make_network
from restd.rankers.sasrec_losses import full_softmax, sampled_binary
from restd.rankers.sasrec_training import Lessons, ndcg, train_sasrec
from restd.train.log import read_log
from tests.event_lists import ITEMS, histories_of, history, snapshot_of

TINY = SasRecConfig(width=16, blocks=1, length=8, lr=0.02, batch=64, epochs=12, dropout=0.1)


def silent(sentence):
    pass


def generated(users=240):
    """Whoever took an item mostly takes the one behind it on a fixed round, and always at the end.

    Without the leaps, users would take neighbours of the round only, and negatives could not tell those apart.
    """
    rng = np.random.default_rng(5)
    around = rng.permutation(ITEMS)
    following = dict(zip(around.tolist(), np.roll(around, -1).tolist(), strict=True))
    sequences = []
    for length in rng.integers(4, 11, users).tolist():
        held = [int(rng.integers(ITEMS))]
        for place in range(1, length):
            leaps = place < length - 2 and rng.random() < 0.4
            held.append(int(rng.integers(ITEMS)) if leaps else following[held[-1]])
        sequences.append(held)
    return histories_of(*sequences)


@pytest.fixture(scope="module")
def rule():
    return generated()


@pytest.fixture(scope="module")
def trained(rule, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sasrec") / "run"
    return train_sasrec(snapshot_of(rule), rule, TINY, folder, notify=silent), folder


def same_weights(one, other):
    pairs = zip(one.network.parameters(), other.network.parameters(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def hits(ranker, histories, split="test"):
    """Recall@1 over the whole catalogue."""
    held = leave_one_out(histories, split)
    return float((ranker.rank(held, 1)[0][:, 0] == held.targets).mean())


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_sasrec_learns_a_rule_that_popularity_cannot(rule, tmp_path, loss):
    config = replace(TINY, loss=loss, epochs=30, negatives=3)
    model = train_sasrec(snapshot_of(rule), rule, config, tmp_path / "run", notify=silent)
    assert hits(HistoryPopularity.of(snapshot_of(rule), rule), rule) < 0.2
    assert hits(model, rule) > 0.9
    records = read_log(tmp_path / "run" / "log.jsonl")
    assert records[-1]["loss"] < 0.8 * records[0]["loss"]
    assert model.summary["validation"] == max(record["validation"] for record in records)


def test_patience_ends_a_run_and_the_best_weights_are_kept(rule, tmp_path):
    said = []
    config = replace(TINY, epochs=60, patience=2, dropout=0.0)
    model = train_sasrec(snapshot_of(rule), rule, config, tmp_path / "run", notify=said.append)
    epochs, best = model.summary["epochs"], model.summary["best_epoch"]
    records = read_log(tmp_path / "run" / "log.jsonl")
    assert len(records) == best + 2 < 60
    assert epochs == best  # of the weights, not of the run
    assert f"Trained for {best + 2} epochs" in said[-1]
    held = leave_one_out(rule, "valid")
    score = ndcg(model.network, EventSpans.of_queries(held, rule.items), held.targets, seen=True)
    assert score == model.summary["validation"]


@pytest.mark.parametrize("seen", [True, False])
def test_validation_is_ndcg_over_the_whole_catalogue(rule, trained, seen):
    model = replace(trained[0], config=replace(TINY, seen=seen))
    held = leave_one_out(rule, "valid")
    rows, _ = model.rank(held, 10)
    place = np.argwhere(rows == held.targets[:, None])[:, 1]
    wanted = 100 * (1 / np.log2(place + 2)).sum() / len(held)
    found = ndcg(model.network, EventSpans.of_queries(held, rule.items), held.targets, seen=seen, rows=7)
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(("loss", "patience"), [("ce", 10), ("bce", 0)])
def test_a_run_that_is_cut_short_ends_with_the_same_weights(rule, tmp_path, monkeypatch, loss, patience):
    config = replace(TINY, loss=loss, patience=patience, epochs=4, weight_decay=0.01)
    whole = train_sasrec(snapshot_of(rule), rule, config, tmp_path / "whole", notify=silent)
    original, moments = sasrec_training._Run.update, [(0, 1), (1, 2), (3, 3)]

    def cut(self, chosen, epoch, number):
        if moments and (epoch, number) == moments[0]:
            moments.pop(0)
            raise KeyboardInterrupt
        return original(self, chosen, epoch, number)

    monkeypatch.setattr(sasrec_training._Run, "update", cut)
    said = []
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train_sasrec(snapshot_of(rule), rule, config, tmp_path / "cut", notify=said.append)
        torch.rand(3)  # the caller's randomness has no say
    again = train_sasrec(snapshot_of(rule), rule, config, tmp_path / "cut", notify=said.append)
    assert [sentence for sentence in said if "Resuming" in sentence][-1] == "Resuming after epoch 3"
    assert same_weights(again, whole)
    assert again.summary == whole.summary
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("cut", "whole")]
    assert [record["validation"] for record in logs[0]] == [record["validation"] for record in logs[1]]
    assert sorted(entry.name for entry in (tmp_path / "cut").iterdir()) == [".lock", "log.jsonl", "model"]


def test_other_held_out_events_make_another_model(rule):
    shorter = replace(rule, original_from_end=rule.from_end + 1, original_lengths=rule.lengths + 1)
    one, other = (sasrec_training._identity(held, TINY) for held in (rule, shorter))
    assert one != other


def test_a_cut_between_best_and_checkpoint_changes_nothing(rule, tmp_path, monkeypatch):
    config = replace(TINY, epochs=3)
    whole = train_sasrec(snapshot_of(rule), rule, config, tmp_path / "whole", notify=silent)
    with monkeypatch.context() as patch:
        patch.setattr(sasrec_training, "write_checkpoint", lambda *given, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_sasrec(snapshot_of(rule), rule, config, tmp_path / "cut", notify=silent)
    assert (tmp_path / "cut" / "best").is_dir()
    assert same_weights(train_sasrec(snapshot_of(rule), rule, config, tmp_path / "cut", notify=silent), whole)


def test_a_finished_run_is_reused_and_another_is_refused(rule, trained, tmp_path):
    model, folder = trained
    said = []
    assert same_weights(train_sasrec(snapshot_of(rule), rule, TINY, folder, notify=said.append), model)
    assert said == [f"Kept the model in {folder / 'model'}: nothing has changed since it was trained"]
    assert same_weights(SasRec.load(folder / "model", snapshot_of(rule)), model)
    with pytest.raises(ArtifactError, match="other settings, histories or items"):
        train_sasrec(snapshot_of(rule), rule, replace(TINY, seed=1), folder, notify=silent)
    with pytest.raises(ArtifactError, match="other settings, histories or items"):
        train_sasrec(snapshot_of(rule), generated(users=239), TINY, folder, notify=silent)
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"letter\.txt"):
        train_sasrec(snapshot_of(rule), rule, TINY, tmp_path, notify=silent)
    with pytest.raises(ArtifactError, match="is a file"):
        train_sasrec(snapshot_of(rule), rule, TINY, tmp_path / "letter.txt", notify=silent)


def test_a_checkpoint_of_another_run_is_refused(rule, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sasrec_training._Run, "_keep", lambda self, standing: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_sasrec(snapshot_of(rule), rule, replace(TINY, epochs=1), tmp_path, notify=silent)
    with pytest.raises(ArtifactError, match="belongs to a run with other settings"):
        train_sasrec(snapshot_of(rule), rule, replace(TINY, epochs=2), tmp_path, notify=silent)


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_held_out_items_are_never_trained_on(rule, tmp_path, loss):
    """Held-out items that are all other ones leave the weights as they were, where validation chooses nothing."""
    config = replace(TINY, loss=loss, patience=0, epochs=3)
    held_out = np.concatenate([leave_one_out(rule, split).end for split in ("valid", "test")])
    taken = rule.event_items.copy()
    taken[held_out] = (taken[held_out] + 7) % ITEMS
    poisoned = Histories(rule.users, rule.items, rule.first, taken)
    one = train_sasrec(snapshot_of(rule), rule, config, tmp_path / "one", notify=silent)
    other = train_sasrec(snapshot_of(poisoned), poisoned, config, tmp_path / "other", notify=silent)
    assert one.summary["validation"] != other.summary["validation"]
    assert same_weights(one, other)
    for ranker in (HistoryPopularity, CooccurrenceNeighbours):
        asked = [history(3, 4)]
        one, other = (ranker.of(snapshot_of(rule), events).rank(asked, 20)[1] for events in (rule, poisoned))
        assert one.tolist() == other.tolist()


def test_lessons_are_the_latest_training_events():
    lessons = Lessons.of(histories_of([0, 1, 2, 3, 4, 5, 6], [7, 8, 9], [10, 11, 12, 13]), length=3)
    assert lessons.user.tolist() == [0, 2]  # one has a single training event, and nothing to predict
    assert lessons.runs.flat.tolist() == [1, 2, 3, 10]
    assert lessons.runs.next_events.flat.tolist() == [2, 3, 4, 11]
    assert lessons.runs.rows[[5, 6, 8, 9]].tolist() == [-1] * 4
    with pytest.raises(DataError, match="at least four events"):
        Lessons.of(histories_of([1, 2, 3]), length=3)


def test_negatives_are_all_items_the_user_did_not_take_in_training():
    lessons = Lessons.of(histories_of([0, 1, 2, 3, 4], [5, 4, 3, 2, 1, 0], items=6), length=1)
    drawn = lessons.negatives(np.array([0, 1]), 400, (1, 2, 3)).numpy()
    assert set(drawn[0]) == {3, 4, 5}  # 3 and 4 are held out, and nobody knows of them
    assert set(drawn[1]) == {0, 1}
    assert np.bincount(drawn[0], minlength=6)[3:].min() > 90


def test_a_user_who_took_everything_has_no_negatives(tmp_path):
    whole = histories_of([0, 1, 2, 0, 1], [0, 1, 0, 1], items=3)
    with pytest.raises(DataError, match="'u0' took all 3 items"):
        train_sasrec(snapshot_of(whole), whole, replace(TINY, loss="bce"), tmp_path, notify=silent)


def test_the_chunked_softmax_is_cross_entropy(monkeypatch):
    monkeypatch.setattr(sasrec_losses, "_CELLS", 30)  # two places at a time
    draw = torch.Generator().manual_seed(0)
    states, items = (torch.randn(rows, 4, generator=draw, dtype=torch.float64) for rows in (7, 13))
    wanted = torch.randint(13, (7,), generator=draw)
    states.requires_grad_()
    items.requires_grad_()
    found = full_softmax(states, items, wanted)
    usual = torch.nn.functional.cross_entropy(states @ items.T, wanted)
    torch.testing.assert_close(found, usual)
    gradients = [torch.autograd.grad(3 * loss, (states, items)) for loss in (found, usual)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_sampled_loss_is_the_published_one():
    states, items = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = sampled_binary(states, items, torch.tensor([1]), torch.tensor([[0, 2]]))
    part = [torch.sigmoid(torch.tensor(value)).log() for value in (2.0, -0.5, 1.0)]
    torch.testing.assert_close(found, -sum(part))


def test_company_and_padding_do_not_change_scores(trained, rng):
    model, _ = trained
    asked = [history(*rng.integers(ITEMS, size=length)) for length in (1, 2, 3, 5, 8, 8, 12, 1)]
    rows, scores = model.rank(asked, ITEMS)
    for place, one in enumerate(asked):
        alone, values = model.rank([one], ITEMS)
        np.testing.assert_array_equal(alone[0], rows[place])
        np.testing.assert_allclose(values[0], scores[place], rtol=1e-4, atol=1e-5)
    latest = model.rank([History(asked[6].items[-8:])], ITEMS)  # the network reads eight
    np.testing.assert_array_equal(latest[0][0], rows[6])


def test_items_of_the_history_may_be_left_out(trained):
    assert SasRecConfig().ranks_seen
    assert not SasRecConfig(loss="bce").ranks_seen
    assert SasRecConfig(loss="bce", seen=True).ranks_seen
    asked = [history(*range(12))]  # all of them, also those before the eight that are read
    rows, _ = replace(trained[0], config=replace(TINY, seen=False)).rank(asked, ITEMS)
    assert sorted(rows[0].tolist()) == [-1] * 12 + list(range(12, ITEMS))
    kept = [row for row in trained[0].rank(asked, ITEMS)[0][0].tolist() if row >= 12]
    assert rows[0, : ITEMS - 12].tolist() == kept


def test_no_state_sees_what_comes_later(trained):
    network = trained[0].network.eval()
    taken = torch.arange(8).repeat(2, 1)
    taken[1, 5:] = torch.tensor([20, 21, 22])
    with torch.no_grad():
        one, other = network(taken)
        alone = network(taken[:1, :5])[0]
    torch.testing.assert_close(one[:5], other[:5], rtol=0, atol=0)
    torch.testing.assert_close(one[:5], alone)
    assert (one[5:] - other[5:]).abs().min(dim=1).values.max() > 0


def test_two_heads_and_a_seed_of_their_own():
    config = replace(TINY, heads=2, dropout=0.0)
    before = torch.get_rng_state()
    first, second, other = (make_network(5, replace(config, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.items, second.items)
    assert not torch.equal(first.items, other.items)
    assert first(torch.tensor([[1, 2, 3]])).shape == (1, 3, 16)


def test_a_loss_that_is_no_number_is_told(rule, tmp_path):
    with pytest.raises(TrainingError, match=r"NaN or infinite. Lower sasrec\.lr"):
        train_sasrec(snapshot_of(rule), rule, replace(TINY, lr=1e30), tmp_path, notify=silent)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"width": 0}, {"heads": 3}, {"dropout": 1.0}, {"length": 0}, {"negatives": 0}, {"lr": 0.0}),
        *({"batch": 0}, {"epochs": 0}, {"patience": -1}, {"weight_decay": -0.1}, {"seed": -1}, {"lr": float("nan")}),
    ],
)
def test_settings_that_cannot_be_used(wrong):
    name = "width" if "heads" in wrong else next(iter(wrong))
    with pytest.raises(ConfigError, match=rf"sasrec\.{name} = .* cannot be used; expected"):
        SasRecConfig(**wrong)


@pytest.fixture(params=["sasrec", "cooccurrence", "embedding", "popularity"])
def ranker(request, rule, trained):
    return {
        "sasrec": lambda: trained[0],
        "cooccurrence": lambda: CooccurrenceNeighbours.of(snapshot_of(rule), rule),
        "embedding": lambda: EmbeddingNeighbours(unit(np.eye(ITEMS)), rule.items, "hash"),
        "popularity": lambda: HistoryPopularity.of(snapshot_of(rule), rule),
    }[request.param]()


def test_every_ranker_ranks_items_once_and_best_first(ranker, rule):
    held = leave_one_out(rule, "test")
    rows, scores = ranker.rank(held[:6], ITEMS + 2)
    assert rows.shape == scores.shape == (6, ITEMS + 2)
    assert (rows[:, ITEMS:] == -1).all()
    assert (rows[:, 0] >= 0).all()
    assert np.isneginf(scores[rows < 0]).all()
    for found, values in zip(rows, scores, strict=True):
        real = found >= 0
        assert len(set(found[real].tolist())) == real.sum()
        assert (np.diff(values[real]) <= 0).all()
    by_name = ranker.rank([held[place] for place in range(6)], ITEMS + 2)
    np.testing.assert_array_equal(by_name[0], rows)
    assert ranker.rank([], 5)[0].shape == (0, 5)
    with pytest.raises(ConfigError, match="k = 0"):
        ranker.rank(held[:1], 0)


@pytest.mark.parametrize("ranker", ["sasrec", "cooccurrence", "embedding"], indirect=True)
def test_histories_that_cannot_be_read(ranker):
    with pytest.raises(DataError, match="of user 'ann' contains item 'sofa', which is not among the 30 items"):
        ranker.rank([history(1, 2), History(("i1", "sofa"), "ann")], 5)
    with pytest.raises(DataError, match=r"The history of user 'bob' is empty\. Expected at least one item"):
        ranker.rank([history(1), History((), "bob")], 5)
    with pytest.raises(ConfigError, match="cannot read a text query"):
        ranker.rank(["red kettle"], 5)
