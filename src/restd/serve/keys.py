"""API keys: who may read, and who may write."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from restd.errors import ConfigError
from restd.serve.problems import ForbiddenError, UnauthorizedError

_FEWEST = 16
_RIGHTS = ("read", "write")


@dataclass(frozen=True, slots=True)
class Keys:
    """Hashes of the keys. A write key also reads.

    Without a read key everybody reads; without a write key nobody writes.

    >>> keys = Keys.parse(["read: " + "r" * 16, "write: " + "w" * 16])
    >>> keys.check("Bearer " + "w" * 16, writing=True)
    >>> keys.check("Bearer " + "r" * 16, writing=True)
    Traceback (most recent call last):
    restd.serve.problems.ForbiddenError: This is a read key, and the request changes what is served; send a write key.
    """

    read: tuple[bytes, ...] = ()
    write: tuple[bytes, ...] = ()

    @classmethod
    def parse(cls, lines: Sequence[str], *, where: str = "The keys") -> "Keys":
        """Read lines `read: KEY` and `write: KEY`; empty lines and those that begin with # are comments."""
        keys: dict[str, list[bytes]] = {right: [] for right in _RIGHTS}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            right, _, key = (part.strip() for part in line.partition(":"))
            if right not in keys or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigError(f"{where}, line {number}: expected 'read: KEY' or 'write: KEY', KEY without spaces.")
            if len(key) < _FEWEST:
                raise ConfigError(
                    f"{where}, line {number}: the key has {len(key)} characters, expected at least {_FEWEST}. Make one "
                    "with: openssl rand -hex 32"
                )
            keys[right].append(_digest(key))
        return cls(*(tuple(keys[right]) for right in _RIGHTS))

    @classmethod
    def load(cls, path: Path) -> "Keys":
        """Read a file of keys; one without any is an error."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not a text file; expected lines 'read: KEY' and 'write: KEY'.") from error
        keys = cls.parse(lines, where=str(path))
        if not keys.read and not keys.write:
            raise ConfigError(f"{path} has no key; expected lines 'read: KEY' and 'write: KEY'.")
        return keys

    @property
    def can_write(self) -> bool:
        """Whether anybody may write."""
        return bool(self.write)

    def check(self, authorization: str | None, *, writing: bool) -> None:
        """Refuse a request whose `Authorization` header does not give it the right.

        Args:
            authorization: the header, `Bearer KEY`; None where there is none.
            writing: whether the request changes what is served.
        """
        if writing and not self.write:
            raise ForbiddenError(
                "Writing and reloading are switched off. To switch them on, start restd serve with --api-key-file and "
                "a line 'write: KEY' in that file."
            )
        if not writing and not self.read:
            return
        if authorization is None:
            raise UnauthorizedError("A key is needed: send the header 'Authorization: Bearer KEY'.", headers=_CHALLENGE)
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        # every key is compared, so that the time says nothing about which ones there are
        may_read, may_write = (
            sum(hmac.compare_digest(digest, known) for known in own) for own in (self.read, self.write)
        )
        if scheme.lower() != "bearer" or not (may_read or may_write):
            raise UnauthorizedError("The key is not known to this service; check it.", headers=_CHALLENGE)
        if writing and not may_write:
            raise ForbiddenError("This is a read key, and the request changes what is served; send a write key.")


_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
