"""Single files that appear whole or not at all, and folders that are checked before anything is written to them."""

import os
import secrets
from collections.abc import Collection, Iterable
from pathlib import Path

from restd.artifacts.lock import LOCK
from restd.errors import ArtifactError, DataError


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Write `chunks` to `path` so that a reader sees the old file or the whole new one, never a part."""
    # Not tempfile: its files are private to the user, and the finished file should follow the umask.
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as stream:
            stream.writelines(chunks)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}); choose a file in a folder you can write to.") from error
    finally:
        part.unlink(missing_ok=True)


def refuse_foreign_files(folder: Path, *, ours: Collection[str], command: str) -> None:
    """Refuse to write into a folder that contains anything but our own files.

    Args:
        folder: may be absent.
        ours: names that `command` writes; its temporary files (`.NAME.…`) and the lock are accepted too.
        command: for the error, as in "restd train".

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "notes.txt").touch()
    >>> refuse_foreign_files(folder, ours=("model",), command="restd train")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    restd.errors.ArtifactError: /... already contains 'notes.txt', which restd train did not write. Choose another ...
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is a file. Choose a folder: a new one, or one written by {command}.")
    for entry in sorted(folder.iterdir()):
        if entry.name not in {LOCK, *ours} and not entry.name.startswith(tuple(f".{name}." for name in ours)):
            raise ArtifactError(
                f"{folder} already contains {entry.name!r}, which {command} did not write. Choose another --out."
            )
