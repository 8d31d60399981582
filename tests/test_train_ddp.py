"""Two processes on gloo: the same losses as one, and every part trains."""

import os
import subprocess
import sys

import numpy as np
import pytest

from restd.train import read_log
from tests.ddp_runs import ALONE, CAUSAL, NO_DROPOUT, SOFT
from tests.training import add_walks, make_index, run, weights, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    make_index(write_world(folder / "data"), folder / "index")
    add_walks(folder / "data")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    found = subprocess.run(
        [*command, "-m", "tests.ddp_runs", str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    return folder


def losses(folder):
    return np.array([record["sid_loss"] for record in read_log(folder / "log.jsonl")])


@pytest.mark.parametrize("backbone", ["compact", "tiger"])
def test_two_processes_with_half_batches_match_one(world, backbone):
    place = (world / "index", world / "data", world / f"one-{backbone}")
    run(*place, *NO_DROPOUT, *CAUSAL, "train.batch=8", "train.micro=4", backbone=backbone)
    found, wanted = losses(world / f"two-{backbone}-base"), losses(world / f"one-{backbone}")
    assert len(found) == 20
    assert np.abs(found - wanted).max() < 1e-5
    assert wanted[0] - wanted[-1] > 0.1


def test_two_processes_compare_with_the_negatives_that_one_does(world):
    settings = (*NO_DROPOUT, *ALONE, "train.batch=8", "train.micro=4")
    run(world / "index", world / "data", world / "one-ddro", *settings, objective="ddro")
    found, wanted = (
        np.array([(record["sid_loss"], record["rank_loss"]) for record in read_log(world / name / "log.jsonl")])
        for name in ("two-ddro", "one-ddro")
    )
    assert np.abs(found - wanted).max() < 1e-4
    assert wanted[:, 1].min() > 0


def test_two_processes_save_the_average_that_one_does(world):
    settings = (*SOFT, "train.batch=8", "train.micro=4")
    run(world / "index", world / "data", world / "one-soft", *settings)
    run(world / "index", world / "data", world / "one-last", *settings, "train.ema=0")
    assert np.abs(losses(world / "two-soft") - losses(world / "one-soft")).max() < 1e-5
    # a bias of the codes: keys and queries have directions without a gradient, in which Adam follows rounding
    names = ("two-soft", "one-soft", "one-last")
    saved, expected, last = (weights(world / name / "model")["model.safetensors:decoder.bias"] for name in names)
    assert np.allclose(saved, expected, atol=1e-6)
    assert np.abs(last - expected).max() > 1e-4


@pytest.mark.parametrize("backbone", ["compact", "calir"])
def test_distillation_and_calir_train_on_two_processes(world, backbone):
    records = read_log(world / f"two-{backbone}-restd" / "log.jsonl")
    assert [record["update"] for record in records] == list(range(1, 21))
    assert all(np.isfinite(record["loss"]) and record["kl"] > 0 for record in records)
    assert records[-1]["sid_loss"] < records[0]["sid_loss"]
    assert records[-1]["weight"] > 0
    assert ("contrast" in records[-1]) == (backbone == "calir")


def test_the_first_process_decides_by_its_validation(world):
    """Processes that score differently would stop at different updates, and those left would wait for ever."""
    records = read_log(world / "two-validated" / "log.jsonl")
    assert [record["validation"] for record in records if "validation" in record] == [1.0, 2.0, 3.0]
