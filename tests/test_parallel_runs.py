"""Runs in processes of their own: the same models as one after another, and everything saved when told to stop."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from restd.errors import ConfigError
from restd.experiments.parallel_runs import train_side_by_side
from restd.train import read_log
from tests.training import FAST, TINY, same_weights
from tests.walks import SETTINGS, tiger

SMALL = ("train.batch=64", "train.micro=64")
QUICK = [word for setting in (*TINY["tiger"], *FAST, *SETTINGS, *SMALL) for word in ("--set", setting)]


def words(place, out, *more):
    where = ("--index", place / "index", "--data", place / "data", "--out", out)
    return ("compare", *where, "--task", "recommend", "--objectives", "base,restd", "--seeds", 1, *QUICK, *more)


@pytest.fixture
def one_thread():
    """Sums are the same with as many threads as a worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_side_by_side_gives_the_models_of_one_after_another(place, command, tmp_path):
    rates = ("--epochs", 1, "--learning-rates", "0.01", "--probe-epochs", 1)
    for name, jobs in (("beside", 2), ("after", 1)):
        code, out, err = command(*words(place, tmp_path / name, *rates, "--jobs", jobs))
        assert code == 0, err
        assert "TIGER + ResTD" in out
        assert "Learning rates" in out
        if jobs == 2:
            assert err.count("nothing has changed since it was trained") == 4  # all that was left is to look
            assert "restd-0.01: " in err
    both = [json.loads((tmp_path / name / "rates.json").read_text("utf-8")) for name in ("beside", "after")]
    assert both[0].keys() == both[1].keys() == {"base", "restd"}
    for objective in both[0]:
        assert both[0][objective]["probes"] == both[1][objective]["probes"]
    assert not list((tmp_path / "beside" / "rates").iterdir())
    for cell in ("base-1", "restd-1"):
        assert same_weights(*(tmp_path / name / "runs" / cell / "model" for name in ("beside", "after")))


def test_told_to_stop_all_save_themselves(place, tmp_path):
    asked = words(place, tmp_path / "study", "--updates", 100_000, "--jobs", 2)
    runs = [tmp_path / "study" / "runs" / name for name in ("base-1", "restd-1")]
    program = [sys.executable, "-c", "from restd.cli import main; main()", *map(str, asked)]
    process = subprocess.Popen(program, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "2"})
    try:
        patience = time.monotonic() + 120
        while not all((run / "log.jsonl").is_file() and read_log(run / "log.jsonl") for run in runs):
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < patience
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1].decode()
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert "Run the same command again" in said
    for run in runs:
        last = read_log(run / "log.jsonl")[-1]["update"]
        assert f"{run.name}: stopped after update {last:,} of 100,000" in " ".join(said.split())
        assert (run / "checkpoint").is_dir()


@pytest.mark.parametrize(
    ("more", "wrong"), [(("--learning-rates", "0.01", "--probe-epochs", 6), "1 to 5"), (("--jobs", 0), "1 or more")]
)
def test_what_cannot_be_leaves_no_study_behind(place, command, tmp_path, more, wrong):
    code, _, err = command(*words(place, tmp_path / "study", *more))
    assert code == 2
    assert wrong in err
    assert not (tmp_path / "study" / "study.json").exists()


def test_what_is_finished_starts_no_process(place, tmp_path, monkeypatch):
    import restd.experiments.processes as room

    def start(*_):
        raise AssertionError("a process was started")

    monkeypatch.setattr(room, "_start", start)
    done, new = (tiger(place, folder) for folder in (place / "run", tmp_path / "new"))
    train_side_by_side([done, done, new], workers=4, notify=print)  # one alone gains nothing
    train_side_by_side([new, tiger(place, tmp_path / "newer")], workers=1, notify=print)
    with pytest.raises(ConfigError, match="1 or more"):
        train_side_by_side([new], workers=0, notify=print)


def test_a_run_that_fails_is_left_to_the_next(place, tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("mine")
    said = []
    wanted = [tiger(place, tmp_path / name, updates=2) for name in ("foreign", "good")]
    train_side_by_side(wanted, workers=2, notify=said.append)
    assert any(sentence.startswith("foreign: ") and "letter.txt" in sentence for sentence in said)
    assert (tmp_path / "good" / "model" / "manifest.json").is_file()
