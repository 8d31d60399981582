"""A disk that is soon full."""

import os
import resource
import shutil
import subprocess
from contextlib import contextmanager

BYTES = 1 << 20


@contextmanager
def small_disk(folder):
    """A disk of one megabyte, most of it taken, at a new folder; yields a function that makes room.

    Where a test may not mount one, the size of files is limited instead: the same errors come from the same calls.
    """
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={BYTES}", "tmpfs", str(folder)]
    if os.geteuid() == 0 and shutil.which("mount") and subprocess.run(command, capture_output=True).returncode == 0:
        filler = folder / "filler"
        filler.write_bytes(bytes(BYTES * 5 // 8))
        try:
            yield filler.unlink
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES * 3 // 8, before[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
