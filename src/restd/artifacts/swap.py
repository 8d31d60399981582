"""Replacing a folder by a finished one, so that at every moment one of the two is there."""

import ctypes
import errno
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import psutil

_AT_FDCWD = -100
_SWAP = 2  # RENAME_EXCHANGE of renameat2(2) on Linux, RENAME_SWAP of renamex_np(2) on macOS


def fsync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_file(path: Path) -> None:
    """Flush the bytes of a file to disk."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step; False where system or file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    name = "renamex_np" if sys.platform == "darwin" else "renameat2"
    call = getattr(libc, name, None)
    if call is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    if name == "renamex_np":
        status = call(*names, ctypes.c_uint(_SWAP))
    else:
        status = call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_SWAP))
    if status == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def temporary_folder(target: Path) -> Path:
    """Name of this process's folder under construction, beside the target so that a rename stays on one disk."""
    return target.with_name(f".{target.name}.tmp-{_host()}-{os.getpid()}-{os.urandom(4).hex()}")


def _host() -> str:
    """Name of this machine, because process numbers of another machine on a shared disk mean nothing here."""
    return re.sub(r"[^A-Za-z0-9]", "_", platform.node()) or "_"


def recover(target: Path) -> None:
    """Undo half a replacement, after a process died between the two renames."""
    if not target.exists() and _aside(target).exists():
        os.rename(_aside(target), target)


def remove_leftovers(target: Path) -> None:
    """Delete what killed writers of this target left behind, but not the folder of a running writer."""
    pattern = re.compile(re.escape(f".{target.name}.tmp-{_host()}-") + r"(\d+)-[0-9a-f]+")
    if not target.parent.is_dir():
        return
    for entry in target.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(entry, ignore_errors=True)


def replace_folder(new: Path, target: Path) -> None:
    """Move `new` to `target`; a folder that was there is deleted only once the new one is in place."""
    if not target.exists() or not any(target.iterdir()):
        os.rename(new, target)
    elif not exchange(new, target):
        shutil.rmtree(_aside(target), ignore_errors=True)
        os.rename(target, _aside(target))
        os.rename(new, target)
    fsync_folder(target.parent)
    shutil.rmtree(new, ignore_errors=True)  # after an exchange this is the old one
    shutil.rmtree(_aside(target), ignore_errors=True)
