"""Artefacts are whole or absent, and say so when someone touched them."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from restd.artifacts import (
    create,
    open_artifact,
    read_manifest,
    refuse_foreign_files,
    sole_writer,
    store,
    swap,
    write_atomically,
)
from restd.errors import ArtifactError, DataError

KIND = "numbers"


def write(folder, value, *, size=64, kind=KIND, schema=1, parents=None):
    with create(folder, kind=kind, schema=schema, settings={"value": value}, parents=parents) as writer:
        writer.tensors("values", {"x": np.full(size, value, np.int64)})
        writer.table("items", pa.table({"id": ["a", "b"]}).to_batches())


def read(folder):
    artifact = open_artifact(folder, kind=KIND, schema=1)
    values = artifact.tensors("values")["x"]
    assert (values == artifact.manifest.settings["value"]).all()
    return int(values[0])


def test_round_trip_and_replacement(tmp_path):
    write(tmp_path / "a", 1)
    assert read(tmp_path / "a") == 1
    write(tmp_path / "a", 2)
    assert read(tmp_path / "a") == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_content_hash_is_of_the_content(tmp_path):
    write(tmp_path / "a", 1)
    write(tmp_path / "b", 1)
    write(tmp_path / "c", 2)
    hashes = [read_manifest(tmp_path / name).content for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]


def test_every_single_byte_corruption_is_caught(tmp_path):
    folder = tmp_path / "a"
    write(folder, 3, size=4)
    checked = 0
    for path in sorted(folder.iterdir()):
        original = path.read_bytes()
        for position in range(len(original)):
            damaged = bytearray(original)
            damaged[position] ^= 1 << random.Random(position).randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(ArtifactError):
                open_artifact(folder, kind=KIND, schema=1)
            checked += 1
        path.write_bytes(original)
    assert checked > 1_000
    assert read(folder) == 3


def test_whitespace_and_truncation_are_caught(tmp_path):
    folder = tmp_path / "a"
    write(folder, 3)
    manifest = folder / "manifest.json"
    original = manifest.read_bytes()
    manifest.write_bytes(original.replace(b"\n", b" \n", 1))
    with pytest.raises(ArtifactError, match="seal"):
        read(folder)
    manifest.write_bytes(original)
    values = folder / "values.safetensors"
    values.write_bytes(values.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="bytes, but the manifest says"):
        read(folder)
    values.unlink()
    with pytest.raises(ArtifactError, match="missing"):
        read(folder)


def test_kind_schema_and_parents_are_checked(tmp_path):
    write(tmp_path / "parent", 1)
    parent = open_artifact(tmp_path / "parent", kind=KIND, schema=1)
    write(tmp_path / "child", 2, parents={"source": parent.content})
    child = open_artifact(tmp_path / "child", kind=KIND, schema=1)
    child.require_parent("source", parent)
    write(tmp_path / "other", 5)
    with pytest.raises(ArtifactError, match="was made from source"):
        child.require_parent("source", open_artifact(tmp_path / "other", kind=KIND, schema=1))
    with pytest.raises(ArtifactError, match="no teacher at all"):
        child.require_parent("teacher", parent)
    with pytest.raises(ArtifactError, match="kind 'numbers'"):
        open_artifact(tmp_path / "child", kind="letters", schema=1)
    with pytest.raises(ArtifactError, match="schema 1"):
        open_artifact(tmp_path / "child", kind=KIND, schema=2)


def test_a_foreign_folder_is_left_alone(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"sea")
    with pytest.raises(ArtifactError, match="did not write"):
        write(folder, 1)
    assert (folder / "holiday.jpg").read_bytes() == b"sea"
    write(tmp_path / "letters", 1, kind="letters")
    with pytest.raises(ArtifactError, match="kind 'letters'"):
        write(tmp_path / "letters", 1)


def test_a_failed_write_leaves_the_old_one(tmp_path):
    write(tmp_path / "a", 1)

    def failing_caller():
        with create(tmp_path / "a", kind=KIND, schema=1, settings={"value": 2}) as writer:
            writer.tensors("values", {"x": np.full(4, 2)})
            raise RuntimeError("the caller failed")

    with pytest.raises(RuntimeError):
        failing_caller()
    assert read(tmp_path / "a") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_told_and_changes_nothing(tmp_path, monkeypatch):
    write(tmp_path / "a", 1)

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "fsync_file", full)
    with pytest.raises(ArtifactError, match="disk is full"):
        write(tmp_path / "a", 2)
    monkeypatch.undo()
    assert read(tmp_path / "a") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("stop_after", [1, 2])
def test_without_exchange_a_half_done_replacement_is_undone(tmp_path, monkeypatch, stop_after):
    write(tmp_path / "a", 1)
    monkeypatch.setattr(swap, "exchange", lambda first, second: False)
    renamed = []
    rename = os.rename

    def dying(source, target):
        if len(renamed) == stop_after:
            raise KeyboardInterrupt
        renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(swap.os, "rename", dying)
    if stop_after == 1:
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "a", 2)
    else:
        write(tmp_path / "a", 2)
    monkeypatch.undo()
    assert read(tmp_path / "a") == stop_after


WRITER = """
import sys
from pathlib import Path
import numpy as np
from restd.artifacts import create
target, exchange = Path(sys.argv[1]), sys.argv[2] == "exchange"
if not exchange:
    from restd.artifacts import swap
    swap.exchange = lambda first, second: False
print("ready", flush=True)
value = 0
while True:
    value += 1
    with create(target, kind="numbers", schema=1, settings={"value": value}) as writer:
        for part in ("values", "more", "most"):
            writer.tensors(part, {"x": np.full(200_000, value, np.int64)})
"""


@pytest.mark.parametrize("way", ["exchange", "two renames"])
def test_a_killed_writer_loses_nothing(tmp_path, way):
    target = tmp_path / "a"
    write(target, 0)
    draws = random.Random(11)
    last, reach = 0, 0.08
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(target), way], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(draws.uniform(0, reach))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        last = max(last, read(target))
        if not last:  # a slow machine: give the next writer longer
            reach = min(1.5 * reach, 5.0)
    assert last > 0, "no writer ever finished: the kills tested nothing"
    write(target, 99)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"], "leftovers of killed writers were not removed"


def test_a_file_of_the_users_inside_an_artefact_is_never_deleted(tmp_path):
    write(tmp_path / "a", 1)
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"contains 'notes\.txt'"):
        write(tmp_path / "a", 2)
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    assert read(tmp_path / "a") == 1


def test_adopted_files_survive_a_failed_write(tmp_path):
    made = tmp_path / "made.bin"
    made.write_bytes(b"hours of work")

    def failing():
        with create(tmp_path / "a", kind=KIND, schema=1, settings={}) as writer:
            writer.adopt(made)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert made.read_bytes() == b"hours of work"


def test_safetensors_on_a_full_disk_is_told_too(tmp_path):
    from safetensors import SafetensorError

    def failing():
        with create(tmp_path / "a", kind=KIND, schema=1, settings={}):
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(ArtifactError, match="disk is full"):
        failing()


HOLDER = """
import sys, time
from pathlib import Path
from restd.artifacts import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_writer_at_a_time_and_a_dead_one_leaves_no_lock(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()

    def enter():
        with sole_writer(tmp_path):
            return True

    with pytest.raises(ArtifactError, match="Another restd process is writing"):
        enter()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert enter()


def test_a_writer_can_wait_for_another(tmp_path):
    order = []

    def write_second():
        with sole_writer(tmp_path, wait=True):
            order.append("second")

    with sole_writer(tmp_path):
        second = threading.Thread(target=write_second)
        second.start()
        time.sleep(0.2)
        order.append("first")
    second.join()
    assert order == ["first", "second"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    (tmp_path / "q").write_bytes(b"old")

    def breaks():
        yield b"new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomically(tmp_path / "q", breaks())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("q", b"old")]
    with pytest.raises(DataError, match="cannot be written"):
        write_atomically(tmp_path / "no" / "q", [b"new"])


def test_a_reader_of_the_old_file_keeps_all_of_it(tmp_path):
    (tmp_path / "q").write_bytes(b"old")
    with (tmp_path / "q").open("rb") as reader:
        write_atomically(tmp_path / "q", [b"n", b"ew"])
        assert reader.read() == b"old"
    assert (tmp_path / "q").read_bytes() == b"new"


def test_a_folder_with_other_files_is_refused(tmp_path):
    folder = tmp_path / "run"
    refuse_foreign_files(folder, ours=("model",), command="restd train")
    folder.mkdir()
    for name in ("model", ".model.partial", ".lock"):
        (folder / name).touch()
    refuse_foreign_files(folder, ours=("model",), command="restd train")
    (folder / ".modelling").touch()
    with pytest.raises(ArtifactError, match=r"run already contains '\.modelling', which restd train did not write"):
        refuse_foreign_files(folder, ours=("model",), command="restd train")
    with pytest.raises(ArtifactError, match=r"is a file\. Choose a folder: a new one, or one written by restd train"):
        refuse_foreign_files(folder / "model", ours=("model",), command="restd train")
