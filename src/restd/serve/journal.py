"""An append-only file of checksummed records: a record is on disk before `append` returns, whole or not at all.

The file is a row of frames: a head (mark, sequence, size and SHA-256 of the payload, CRC-32 of the head itself), the
payload, and an end mark. The payload of the first frame says what the records belong to. One record at a time is
written and flushed, so what a killed writer leaves is a frame that is cut short, at the end of the file: it was never
acknowledged, and the next writer cuts it off. Any other fault is damage, and an error.
"""

import errno
import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from restd.artifacts import sole_writer, write_atomically
from restd.artifacts.swap import fsync_folder
from restd.errors import ArtifactError, RestdError

logger = logging.getLogger(__name__)

FILE = "items.journal"
_KIND, _SCHEMA = "restd-item-updates", 1
_HEAD = struct.Struct("<4sQQ32s")
_CHECK = struct.Struct("<I")
_HEAD_SIZE = _HEAD.size + _CHECK.size
_MARK, _END = b"RSTD", b"end\n"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORDS = {"model": "model", "snapshot": "index"}


class JournalWriteError(RestdError):
    """A record that could not be written; the journal is as it was before."""

    def __init__(self, message: str, *, is_full: bool) -> None:
        super().__init__(message)
        self.is_full = is_full
        """Whether the disk is full, so that the same write succeeds once there is room."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the file, and where the next one begins."""

    sequence: int
    payload: bytes
    end: int


class Journal:
    """The journal of one folder, open for writing; the folder is locked against other writers until `close`.

    Not for many threads: the caller sees to it that one writes at a time.
    """

    def __init__(self, path: Path, binding: Mapping[str, str], *, sequence: int, end: int) -> None:
        self.path = path
        self.binding = dict(binding)
        self.sequence = sequence
        """Number of the last record; 0 before the first."""
        self._lock = ExitStack()
        self._end = end
        self._stream = path.open("rb+", buffering=0)
        self._is_settled = self._stream.seek(0, os.SEEK_END) == end
        self._is_folded = False

    @classmethod
    def open(cls, folder: Path, binding: Mapping[str, str]) -> "Journal":
        """Open the journal of a folder, or begin one.

        Args:
            folder: created if it does not exist.
            binding: hashes of what the records belong to, `model` and `snapshot`; a journal of others is refused.
        """
        with ExitStack() as lock:
            _lock_folder(lock, folder)
            path = folder / FILE
            for leftover in folder.glob(f".{FILE}.*.part"):  # of a writer that was killed while it folded
                leftover.unlink()
            if not path.exists():
                write_atomically(path, [_header(binding, sequence=0)])
                fsync_folder(folder)
                fsync_folder(folder.parent)
            sequence = end = 0
            for frame in frames(path, binding):
                sequence, end = frame.sequence, frame.end
            journal = cls(path, binding, sequence=sequence, end=end)
            journal._lock = lock.pop_all()
            return journal

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self._end

    def records(self) -> Iterator[bytes]:
        """Payloads of all records, oldest first."""
        return (frame.payload for frame in _records(self.path, self.binding) if frame.end <= self._end)

    def append(self, payload: bytes) -> int:
        """Write a record and flush it to disk; return its number.

        A write that fails, as on a full disk, is undone, and the next one begins where it began.
        """
        frame = _frame(self.sequence + 1, payload)
        try:
            self._settle()
            self._refuse_moved()
            self._is_settled = False
            self._write(frame)
            os.fsync(self._stream.fileno())
        except OSError as error:
            self._undo()
            raise _write_error(self.path, error) from error
        self._is_settled = True
        self.sequence += 1
        self._end += len(frame)
        return self.sequence

    def fold(self, payload: bytes) -> None:
        """Put one record in the place of all; a reader sees the old file or the new one."""
        header = _header(self.binding, sequence=self.sequence - 1)
        frame = _frame(self.sequence, payload)
        write_atomically(self.path, [header, frame])
        self._end = len(header) + len(frame)
        self._is_folded, self._is_settled = True, False  # until the new name is on disk, nothing is appended
        self._settle()

    def close(self) -> None:
        """Let other writers in."""
        self._stream.close()
        self._lock.close()

    def _write(self, frame: bytes) -> None:
        rest, position = memoryview(frame), self._end
        while rest:  # a disk that is nearly full takes a part
            written = os.pwrite(self._stream.fileno(), rest, position)
            rest, position = rest[written:], position + written

    def _settle(self) -> None:
        """Finish what a fold, a failed write or a killed one left undone; it is tried again before every record.

        A write leaves a beginning of a frame behind the last whole one; a fold leaves a new file that is not open yet.
        """
        if self._is_folded:
            previous, self._stream = self._stream, self.path.open("rb+", buffering=0)
            self._is_folded = False
            previous.close()
        if not self._is_settled:
            os.ftruncate(self._stream.fileno(), self._end)
            os.fsync(self._stream.fileno())
            fsync_folder(self.path.parent)
            self._is_settled = True

    def _undo(self) -> None:
        try:
            self._settle()
        except OSError as error:  # tried again before the next record is written
            logger.warning("%s: what a failed write left could not be cut off yet (%s).", self.path, error)

    def _refuse_moved(self) -> None:
        """Refuse to write to a file that nobody would find again."""
        own = os.fstat(self._stream.fileno())
        try:
            named = self.path.stat()
        except FileNotFoundError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (own.st_dev, own.st_ino):
            raise OSError(errno.ESTALE, "the file was removed or replaced while it was open")


def read_records(folder: Path, binding: Mapping[str, str]) -> Iterator[bytes]:
    """Payloads of the records of a folder, for a reader that never writes; none where there is no journal."""
    path = folder / FILE
    if path.exists():
        yield from (frame.payload for frame in _records(path, binding))


def _records(path: Path, binding: Mapping[str, str]) -> Iterator[Frame]:
    stream = frames(path, binding)
    next(stream)  # says what the records belong to
    return stream


def frames(path: Path, binding: Mapping[str, str]) -> Iterator[Frame]:
    """All whole frames of a file, each checked; the first says what the others belong to."""
    with path.open("rb") as stream:
        first = _read(stream, path, 0, None)
        if first is None:
            raise ArtifactError(f"{path} is damaged: its first record is not whole. {_remedy(path)}")
        _refuse_other(path, first.payload, binding)
        frame: Frame | None = first
        while frame is not None:
            yield frame
            frame = _read(stream, path, frame.end, frame.sequence + 1)


def _read(stream: BinaryIO, path: Path, start: int, sequence: int | None) -> Frame | None:
    """The frame that begins here; None where the file ends, or where its last frame was never written whole.

    A last frame that the system gave its length, but not all of its bytes, before the power failed ends in zeros. A
    frame that was written whole does not: it has its end mark.
    """
    head = stream.read(_HEAD_SIZE)
    if len(head) < _HEAD_SIZE:
        return None
    mark, number, size, digest = _HEAD.unpack_from(head)
    if _CHECK.unpack_from(head, _HEAD.size)[0] != zlib.crc32(head[: _HEAD.size]):
        if any(map(any, iter(lambda: stream.read(1 << 20), b""))):
            raise _damaged(path, start, "its head does not match its checksum")
        return None
    body = stream.read(size + len(_END))
    if len(body) < size + len(_END):
        return None
    payload, end = body[:size], body[size:]
    if end == bytes(len(_END)) and not stream.read(1):
        return None
    if mark != _MARK or end != _END or hashlib.sha256(payload).digest() != digest:
        raise _damaged(path, start, "its bytes do not match its checksum")
    if sequence is not None and number != sequence:
        raise _damaged(path, start, f"it has the number {number}, expected {sequence}")
    return Frame(number, payload, start + _HEAD_SIZE + len(body))


def _frame(sequence: int, payload: bytes) -> bytes:
    head = _HEAD.pack(_MARK, sequence, len(payload), hashlib.sha256(payload).digest())
    return b"".join((head, _CHECK.pack(zlib.crc32(head)), payload, _END))


def _header(binding: Mapping[str, str], *, sequence: int) -> bytes:
    body = {"kind": _KIND, "schema": _SCHEMA, "binding": dict(binding)}
    return _frame(sequence, json.dumps(body, sort_keys=True).encode())


def _refuse_other(path: Path, payload: bytes, binding: Mapping[str, str]) -> None:
    body = json.loads(payload)
    if (body["kind"], body["schema"]) != (_KIND, _SCHEMA):
        raise ArtifactError(
            f"{path} is of kind {body['kind']!r}, schema {body['schema']}; expected {_KIND!r}, schema {_SCHEMA}. "
            "Use the restd that wrote it, or choose another --state DIR."
        )
    for name, expected in binding.items():
        if body["binding"][name] != expected:
            raise ArtifactError(
                f"{path} has item updates for another {_WORDS[name]} ({body['binding'][name][:8]}) than the one that "
                f"is served ({expected[:8]}). Serve the one they were made for, choose another --state DIR, or move "
                "the file away to begin without them."
            )


def _lock_folder(lock: ExitStack, folder: Path) -> None:
    try:
        lock.enter_context(sole_writer(folder))
    except ArtifactError as error:
        raise ArtifactError(
            f"Another restd process takes item updates in {folder}. Stop it, or choose another --state DIR."
        ) from error
    except OSError as error:
        raise ArtifactError(
            f"{folder} cannot be written ({error}), so item updates cannot be kept. Choose another --state DIR."
        ) from error


def _damaged(path: Path, start: int, fault: str) -> ArtifactError:
    return ArtifactError(f"{path} is damaged: the record at byte {start:,}: {fault}. {_remedy(path)}")


def _remedy(path: Path) -> str:
    return f"Restore {path.name} from a copy, or move it away to begin without the updates."


def _write_error(path: Path, error: OSError) -> JournalWriteError:
    if error.errno in _FULL:
        return JournalWriteError(
            f"The disk is full: {path} could not be written, so nothing was changed. Free some space and send the same "
            "request again; searches go on meanwhile.",
            is_full=True,
        )
    return JournalWriteError(
        f"{path} could not be written ({error.strerror or error}), so nothing was changed. Check the disk, and restart "
        "the service if it goes on.",
        is_full=False,
    )
