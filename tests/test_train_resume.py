"""A run that was killed, stopped or cut short ends with the weights it would have had."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from restd.errors import ArtifactError
from restd.train import checkpoint as checkpoints
from restd.train import read_log
from tests.killed_runs import SETTINGS, UPDATES
from tests.training import make_index, run, same_weights, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Data and index, and the model of a run nobody disturbed, in a process like those that will be killed."""
    folder = tmp_path_factory.mktemp("world")
    make_index(write_world(folder / "data"), folder / "index")
    assert killed(folder, []) == [0]
    return folder, folder / "run" / "model"


def killed(folder, words):
    command = [sys.executable, "-m", "tests.killed_runs", str(folder), ",".join(words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert found.returncode == 0, found.stderr
    return [int(code) for code in found.stdout.strip().splitlines()[-1].split(",")]


def copy_of(world, tmp_path):
    for name in ("data", "index"):
        (tmp_path / name).symlink_to(world / name)
    return tmp_path


def test_ten_kills_and_the_weights_are_the_same(world, tmp_path):
    folder, whole = world
    moments = np.sort(np.random.default_rng(11).integers(1, UPDATES, 10))
    ends = killed(copy_of(folder, tmp_path), [f"SIGKILL@{moment}" for moment in moments])
    assert ends.count(-9) >= 5  # a kill may come too late for the update it was meant for
    assert ends[-1] == 0
    assert same_weights(tmp_path / "run" / "model", whole)
    updates = [record["update"] for record in read_log(tmp_path / "run" / "log.jsonl")]
    assert updates == list(range(1, UPDATES + 1))


def test_signals_save_and_exit_with_their_code(world, tmp_path):
    folder, whole = world
    ends = killed(copy_of(folder, tmp_path), ["SIGTERM@7", "SIGINT@15"])
    assert ends == [143, 130, 0]
    assert same_weights(tmp_path / "run" / "model", whole)


def test_a_full_disk_leaves_the_previous_checkpoint(world, tmp_path, monkeypatch):
    folder, _ = world
    settings = {"objective": "restd", "updates": UPDATES}
    whole = run(folder / "index", folder / "data", tmp_path / "whole", *SETTINGS, **settings).folder
    original, calls = checkpoints.create, []

    def full(target, **options):
        calls.append(target)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(target, **options)

    monkeypatch.setattr(checkpoints, "create", full)
    place = (folder / "index", folder / "data", tmp_path / "run")
    with pytest.raises(OSError, match="No space"):
        run(*place, *SETTINGS, **settings)
    manifest = json.loads((tmp_path / "run" / "checkpoint" / "manifest.json").read_text("utf-8"))
    assert manifest["settings"]["update"] == 6
    assert same_weights(run(*place, *SETTINGS, **settings).folder, whole)


def test_a_checkpoint_of_another_run_is_refused(world, tmp_path, monkeypatch):
    folder, _ = world
    place = (folder / "index", folder / "data", tmp_path / "run")
    monkeypatch.setattr("restd.train.loop.Loop._done", lambda self, state: state.update >= 3)
    monkeypatch.setattr("restd.train.model_writer.ModelWriter.finish", lambda self, *given: {})
    run(*place, *SETTINGS, objective="restd", updates=UPDATES)
    assert (tmp_path / "run" / "checkpoint").is_dir()
    with pytest.raises(ArtifactError, match="belongs to a run with other settings"):
        run(*place, *SETTINGS, "train.lr=0.5", objective="restd", updates=UPDATES)
