"""One writer at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from restd.errors import ArtifactError

LOCK = ".lock"


@contextmanager
def sole_writer(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder against other processes of ours; a second one is told to wait. A dead one's lock is gone.

    Args:
        folder: made where it is not there yet.
        wait: until another process has left it, instead of telling anyone.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArtifactError(f"Another restd process is writing to {folder}; wait until it is done.") from error
        yield
    finally:
        os.close(handle)
