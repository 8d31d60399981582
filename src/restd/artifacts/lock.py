"""One writer at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from restd.errors import ArtifactError

LOCK = ".lock"


@contextmanager
def sole_writer(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder against other restd processes. The lock of a process that died is released by the system.

    Args:
        folder: created if it does not exist.
        wait: wait until the other process is done, instead of raising an error at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    path.touch()  # with the user's umask, so that a group can share the folder; filelock's own files are private
    try:
        # a service may close in another thread what it opened in the first
        lock = FileLock(path, timeout=-1 if wait else 0, thread_local=False).acquire()
    except Timeout as error:
        raise ArtifactError(f"Another restd process is writing to {folder}; wait until it is done.") from error
    with lock:
        yield
