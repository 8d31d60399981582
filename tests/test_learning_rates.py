"""Learning rates by validation: which wins, what is kept of the probes, and what is refused."""

from dataclasses import replace

import pytest

from restd.errors import ConfigError, TrainingError
from restd.experiments import learning_rates
from restd.experiments.learning_rates import choose_rate, read_rates
from restd.train import train_retriever
from tests.walks import tiger


def test_the_learning_rate_is_chosen_by_validation(place, tmp_path):
    asked = tiger(place, tmp_path / "run", "train.epochs=1", updates=None)
    said = []
    best = choose_rate(asked, (1e-6, 0.01), tmp_path, epochs=2, notify=said.append)
    assert best == 0.01
    assert set(read_rates(tmp_path)["base"]["probes"]) == {"1e-06", "0.01"}
    before = len(said)
    assert choose_rate(asked, (1e-6, 0.01), tmp_path, epochs=2, notify=said.append) == best
    assert len(said) == before + 1  # nothing is trained twice
    assert choose_rate(asked, (1e-6,), tmp_path, epochs=2, notify=said.append) == 1e-6  # never another one
    other = replace(asked, config=replace(asked.config, objective="base", train=replace(asked.config.train, seed=9)))
    before = len(said)
    choose_rate(other, (1e-6,), tmp_path, epochs=2, notify=said.append)
    assert len(said) > before + 1  # other settings are probed again
    fine = 0.0012345678
    assert choose_rate(asked, (fine,), tmp_path, epochs=1, notify=said.append) == fine  # to its last digit
    for asked_for, epochs, wrong in (((), 2, "at least one"), ((0.0,), 2, "above 0"), ((0.1,), 6, "1 to 5")):
        with pytest.raises(ConfigError, match=wrong):
            choose_rate(asked, asked_for, tmp_path, epochs=epochs, notify=said.append)


def test_a_rate_that_breaks_down_is_out(place, tmp_path, monkeypatch):
    def trains(probe, **options):
        if probe.config.train.lr > 0.1:
            raise TrainingError("The loss is no number.")
        return train_retriever(probe, **options)

    monkeypatch.setattr(learning_rates, "train_retriever", trains)
    asked = tiger(place, tmp_path / "run", "train.epochs=1", updates=None)
    assert choose_rate(asked, (9.0, 0.001), tmp_path, epochs=1, notify=lambda sentence: None) == 0.001
    assert read_rates(tmp_path)["base"]["probes"]["9.0"] is None


def test_rankings_of_all_validation_users_decide_where_runs_are_selected_by_them(place, tmp_path, monkeypatch):
    asked = tiger(place, tmp_path / "run", "train.epochs=1", "train.select=ndcg", "train.judged=3", updates=None)
    answers = {0.01: {"loss": 1.0, "validation": 2.0}, 0.001: {"loss": 3.0, "validation": 5.0}}
    judged = set()

    def scores(probe, notify):
        judged.add(probe.config.train.judged)
        return answers[probe.config.train.lr]

    monkeypatch.setattr(learning_rates, "_probe_scores", scores)
    assert choose_rate(asked, (0.01, 0.001), tmp_path, epochs=1, notify=lambda sentence: None) == 0.001
    assert judged == {0}  # all of them: a few thousand differ by chance


def test_the_loss_decides_where_runs_are_selected_by_it(place, tmp_path):
    asked = tiger(place, tmp_path / "run", "train.epochs=1", updates=None)
    choose_rate(asked, (0.01, 0.001), tmp_path, epochs=1, notify=lambda sentence: None)
    for answer in read_rates(tmp_path)["base"]["probes"].values():
        assert answer["validation"] == -answer["loss"]
