"""The journal: a record is there whole or not at all, whatever was killed, cut, flipped or full."""

import errno
import os
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.artifacts import swap
from restd.errors import ArtifactError, DataError
from restd.serve import journal as module
from restd.serve.journal import FILE, Journal, JournalWriteError, read_records
from tests.disks import small_disk

BINDING = {"model": "a" * 64, "snapshot": "b" * 64}
PAYLOADS = [b"first", b"", b"the third record", bytes(40), b"RSTDend\n"]


@contextmanager
def opened(folder, binding=BINDING):
    journal = Journal.open(folder, binding)
    try:
        yield journal
    finally:
        journal.close()


def written(folder, payloads=PAYLOADS):
    """A journal of these records; returns where each of them ends."""
    with opened(folder) as journal:
        ends = [journal.size]
        for payload in payloads:
            journal.append(payload)
            ends.append(journal.size)
    return ends


def records(folder):
    with opened(folder) as journal:
        return list(journal.records())


def test_records_come_back_in_order_with_their_numbers(tmp_path):
    written(tmp_path, PAYLOADS[:2])
    with opened(tmp_path) as journal:
        assert journal.sequence == 2
        assert [journal.append(payload) for payload in PAYLOADS[2:]] == [3, 4, 5]
        assert list(journal.records()) == PAYLOADS
    assert records(tmp_path) == list(read_records(tmp_path, BINDING)) == PAYLOADS
    assert list(read_records(tmp_path / "none", BINDING)) == []


def test_a_record_is_flushed_to_disk_before_append_returns(tmp_path, monkeypatch):
    flushed = []
    fsync = os.fsync

    def watched(handle):
        flushed.append(os.fstat(handle).st_size)
        fsync(handle)

    with opened(tmp_path) as journal:
        monkeypatch.setattr(module.os, "fsync", watched)
        journal.append(b"record")
        assert flushed == [journal.size]


def test_every_flipped_bit_is_an_error(tmp_path):
    written(tmp_path)
    path = tmp_path / FILE
    original = path.read_bytes()
    for position in range(len(original)):
        damaged = bytearray(original)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"items\.journal is damaged: .*Restore items\.journal from a copy"):
            list(read_records(tmp_path, BINDING))
    path.write_bytes(original)
    assert records(tmp_path) == PAYLOADS


def test_every_cut_leaves_the_records_before_it(tmp_path):
    ends = written(tmp_path)
    path = tmp_path / FILE
    original = path.read_bytes()
    for size in range(len(original)):
        path.write_bytes(original[:size])
        if size < ends[0]:
            with pytest.raises(ArtifactError, match="its first record is not whole"):
                list(read_records(tmp_path, BINDING))
            continue
        whole = sum(end <= size for end in ends[1:])
        assert list(read_records(tmp_path, BINDING)) == PAYLOADS[:whole]
    assert size == len(original) - 1


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.data())
def test_a_torn_tail_is_cut_and_written_over(tmp_path_factory, payloads, data):
    folder = tmp_path_factory.mktemp("journal")
    ends = written(folder, payloads)
    path = folder / FILE
    original = path.read_bytes()
    size = data.draw(st.integers(ends[-2], ends[-1] - 1))
    # a file system may have given the file its length, and not yet the last bytes
    unwritten = ends[-1] - size if size <= ends[-1] - 4 and data.draw(st.booleans()) else 0
    path.write_bytes(original[:size] + bytes(unwritten))
    with opened(folder) as journal:
        assert list(journal.records()) == payloads[:-1]
        assert journal.append(b"next") == len(payloads)
    assert records(folder) == [*payloads[:-1], b"next"]


@pytest.mark.parametrize("unwritten", [4, 30, 100, 1_000])
def test_a_last_record_that_ends_in_zeros_was_never_written(tmp_path, unwritten):
    ends = written(tmp_path, [b"one", b"x" * 900])
    path = tmp_path / FILE
    original = path.read_bytes()
    start = max(ends[-2], len(original) - unwritten)
    path.write_bytes(original[:start] + bytes(len(original) - start))
    assert records(tmp_path) == [b"one"]


def test_a_record_of_zeros_is_a_record(tmp_path):
    written(tmp_path, [bytes(1_000)])
    assert records(tmp_path) == [bytes(1_000)]


def test_records_out_of_order_are_damage(tmp_path):
    ends = written(tmp_path)
    path = tmp_path / FILE
    original = path.read_bytes()
    path.write_bytes(original[: ends[1]] + original[ends[2] :])
    with pytest.raises(ArtifactError, match="it has the number 3, expected 2"):
        records(tmp_path)


@pytest.mark.parametrize(("name", "word"), [("model", "model"), ("snapshot", "index")])
def test_another_model_or_index_is_refused_with_a_way_out(tmp_path, name, word):
    written(tmp_path)
    other = {**BINDING, name: "c" * 64}
    expected = rf"for another {word} \({BINDING[name][:8]}\).*served \(cccccccc\).*--state DIR, or move the file away"
    with pytest.raises(ArtifactError, match=expected):
        Journal.open(tmp_path, other)
    with pytest.raises(ArtifactError, match=expected):
        list(read_records(tmp_path, other))
    assert records(tmp_path) == PAYLOADS, "the lock was let go, and nothing was changed"


def test_one_writer_at_a_time_in_any_thread(tmp_path):
    journal = Journal.open(tmp_path, BINDING)
    with pytest.raises(ArtifactError, match="Another restd process takes item updates"):
        Journal.open(tmp_path, BINDING)
    assert list(read_records(tmp_path, BINDING)) == []
    closing = threading.Thread(target=journal.close)
    closing.start()
    closing.join()
    assert records(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"cannot be written .*Choose another --state DIR"):
        Journal.open(tmp_path / "file" / "served", BINDING)


def test_a_journal_that_was_moved_away_takes_nothing(tmp_path):
    written(tmp_path)
    with opened(tmp_path) as journal:
        (tmp_path / FILE).rename(tmp_path / "copy")
        with pytest.raises(JournalWriteError, match="was removed or replaced while it was open"):
            journal.append(b"nobody would find this")
        (tmp_path / "copy").rename(tmp_path / FILE)
        journal.append(b"last")
    assert records(tmp_path) == [*PAYLOADS, b"last"]


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_failed_write_is_undone(tmp_path, monkeypatch, call):
    written(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    system = getattr(os, call)
    failures = [errno.EIO]

    def failing(handle, *arguments):
        if failures:
            raise OSError(failures.pop(), "Input/output error")
        return system(handle, *arguments)

    with opened(tmp_path) as journal:
        monkeypatch.setattr(module.os, call, failing)
        with pytest.raises(JournalWriteError, match=r"Input/output error.*nothing was changed") as caught:
            journal.append(b"lost")
        assert not caught.value.is_full
        assert (tmp_path / FILE).read_bytes() == before
        assert journal.append(b"kept") == 6
    assert records(tmp_path) == [*PAYLOADS, b"kept"]


def test_what_could_not_be_undone_is_undone_before_the_next_record(tmp_path, monkeypatch):
    written(tmp_path)
    before = (tmp_path / FILE).read_bytes()

    def failing(handle, *arguments):
        raise OSError(errno.EIO, "Input/output error")

    with opened(tmp_path) as journal:
        monkeypatch.setattr(module.os, "fsync", failing)
        monkeypatch.setattr(module.os, "ftruncate", failing)
        for _ in range(2):
            with pytest.raises(JournalWriteError):
                journal.append(b"a record that is longer than the next one")
        monkeypatch.undo()
        assert len((tmp_path / FILE).read_bytes()) > len(before)
        assert list(journal.records()) == PAYLOADS
        journal.append(b"short")
    assert records(tmp_path) == [*PAYLOADS, b"short"]


def test_a_full_disk_leaves_the_journal_as_it_was_until_there_is_room(tmp_path):
    folder, record = tmp_path / "disk", bytes(range(256)) * 400
    with small_disk(folder) as make_room, opened(folder) as journal:

        def fill():
            while journal.sequence < 100:
                journal.append(record)

        with pytest.raises(JournalWriteError, match=r"The disk is full.*nothing was changed. Free some space") as full:
            fill()
        count = journal.sequence
        assert full.value.is_full
        assert 0 < count < 10
        assert (folder / FILE).stat().st_size == journal.size
        assert list(journal.records()) == [record] * count
        with pytest.raises(JournalWriteError, match="The disk is full"):
            journal.append(record)
        with pytest.raises(DataError, match="cannot be written"):
            journal.fold(record * 10)
        make_room()
        assert journal.append(record) == count + 1
        journal.close()
        assert records(folder) == [record] * (count + 1)


def test_folding_puts_one_record_in_the_place_of_all(tmp_path):
    written(tmp_path)
    with opened(tmp_path) as journal:
        before = journal.size
        journal.fold(b"all of them")
        assert journal.size < before
        assert journal.sequence == 5
        assert list(journal.records()) == [b"all of them"]
        assert journal.append(b"sixth") == 6
    assert records(tmp_path) == [b"all of them", b"sixth"]
    with opened(tmp_path) as journal:
        assert journal.sequence == 6


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_fold_that_fails_or_is_killed_loses_nothing(tmp_path, monkeypatch, call):
    written(tmp_path)

    def dying(*arguments, **options):
        raise KeyboardInterrupt

    with opened(tmp_path) as journal:
        monkeypatch.setattr(f"restd.artifacts.files.os.{call}", dying)
        monkeypatch.setattr(Path, "unlink", dying)  # a killed process tidies nothing up
        with pytest.raises(KeyboardInterrupt):
            journal.fold(b"all of them")
        monkeypatch.undo()
    assert len(list(tmp_path.glob(".*.part"))) == 1
    assert records(tmp_path) == PAYLOADS
    assert list(tmp_path.glob(".*.part")) == []


def test_nothing_is_appended_behind_a_fold_whose_name_is_not_on_disk(tmp_path, monkeypatch):
    written(tmp_path)

    def failing(folder):
        raise OSError(errno.EIO, "Input/output error")

    with opened(tmp_path) as journal:
        monkeypatch.setattr(module, "fsync_folder", failing)
        with pytest.raises(OSError, match="Input/output error"):
            journal.fold(b"all of them")
        with pytest.raises(JournalWriteError):
            journal.append(b"sixth")
        monkeypatch.setattr(module, "fsync_folder", swap.fsync_folder)
        assert journal.append(b"sixth") == 6
    assert records(tmp_path) == [b"all of them", b"sixth"]


def test_a_folded_file_that_cannot_be_opened_yet_takes_records_as_soon_as_it_can(tmp_path, monkeypatch):
    """As where too many files are open: a fold that fails costs no update."""
    written(tmp_path)
    open_file = Path.open

    def failing(path, mode="r", *arguments, **options):
        if mode == "rb+":
            raise OSError(errno.EMFILE, "Too many open files")
        return open_file(path, mode, *arguments, **options)

    with opened(tmp_path) as journal:
        monkeypatch.setattr(Path, "open", failing)
        with pytest.raises(OSError, match="Too many open files"):
            journal.fold(b"all of them")
        with pytest.raises(JournalWriteError, match="Too many open files"):
            journal.append(b"lost")
        monkeypatch.undo()
        assert list(journal.records()) == [b"all of them"]
        assert journal.append(b"sixth") == 6
    assert records(tmp_path) == [b"all of them", b"sixth"]
