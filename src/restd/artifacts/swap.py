"""Putting a finished folder in the place of another without a moment at which neither is there."""

import ctypes
import errno
import os
import platform
import re
import shutil
import sys
from pathlib import Path

_AT_FDCWD = -100
_SWAP = 2  # RENAME_EXCHANGE of renameat2(2) on Linux, RENAME_SWAP of renamex_np(2) on macOS


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_file(path: Path) -> None:
    """Make the bytes of a file durable."""
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
    """Name of this machine: on a shared disk, process numbers of another one say nothing."""
    return re.sub(r"[^A-Za-z0-9]", "_", platform.node()) or "_"


def recover(target: Path) -> None:
    """Undo half a replacement: two renames were needed, and the process died between them."""
    if not target.exists() and _aside(target).exists():
        os.rename(_aside(target), target)


def remove_leftovers(target: Path) -> None:
    """Delete what killed writers of this target left behind; a running writer's folder is not touched."""
    pattern = re.compile(re.escape(f".{target.name}.tmp-{_host()}-") + r"(\d+)-[0-9a-f]+")
    if not target.parent.is_dir():
        return
    for entry in target.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match and not _is_running(int(match[1])):
            shutil.rmtree(entry, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def replace_folder(new: Path, target: Path) -> None:
    """Move `new` to `target`; a folder that was there is gone afterwards, and never before."""
    if not target.exists() or not any(target.iterdir()):
        os.rename(new, target)
    elif not exchange(new, target):
        shutil.rmtree(_aside(target), ignore_errors=True)
        os.rename(target, _aside(target))
        os.rename(new, target)
    fsync_folder(target.parent)
    shutil.rmtree(new, ignore_errors=True)  # after an exchange this is the old one
    shutil.rmtree(_aside(target), ignore_errors=True)
