"""Short-lived tokens that let a git client into one repository.

Invariant: only the SHA-256 of a token is stored, so the store's file lets nobody in.
"""

import asyncio
import hashlib
import hmac
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from services.artifact.errors import TokenRefused
from services.artifact.names import check_repository_name

Scope = Literal["read", "write"]
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PREFIX = "act_"
_SECRET_LETTERS, _CHECK_LETTERS = 43, 6
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    digest TEXT PRIMARY KEY, repository TEXT NOT NULL, scope TEXT NOT NULL CHECK (scope IN ('read', 'write')), expires_at REAL NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class IssuedToken:
    """A new token; its text is told once and cannot be read back."""

    token: str = field(repr=False)
    repository: str
    scope: Scope
    expires_at: datetime


class TokenStore:
    """Tokens in one SQLite file, for several processes. `now` is the clock, in UTC."""

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = path
        self._now = now

    async def issue(self, repository: str, scope: Scope, expires_in: timedelta) -> IssuedToken:
        """A new token for one repository; write includes read. Raises InvalidName."""
        check_repository_name(repository)
        issued = IssuedToken(make_token(secrets.token_bytes(32)), repository, scope, self._now() + expires_in)
        row = (_digest(issued.token), repository, scope, issued.expires_at.timestamp())
        await asyncio.to_thread(self._write, "INSERT INTO tokens VALUES (?, ?, ?, ?)", row)
        return issued

    async def check(self, token: str, repository: str) -> Scope:
        """What the token allows in the repository. Raises TokenRefused with the reason."""
        row = await asyncio.to_thread(self._find, _digest(token)) if well_formed(token) else None
        if row is None or not hmac.compare_digest(row[0], _digest(token)) or row[1] != repository:
            raise TokenRefused("The token is not known for this repository. Ask for a new one.")
        if row[3] <= self._now().timestamp():
            raise TokenRefused("The token has expired. Ask for a new one.")
        return "write" if row[2] == "write" else "read"

    async def revoke(self, token: str) -> bool:
        """Ends a token at once; False when there was none."""
        return await asyncio.to_thread(self._write, "DELETE FROM tokens WHERE digest = ?", (_digest(token),)) > 0

    async def revoke_repository(self, repository: str) -> int:
        """Ends all tokens of a repository and returns how many there were."""
        return await asyncio.to_thread(self._write, "DELETE FROM tokens WHERE repository = ?", (repository,))

    async def sweep(self) -> int:
        """Forgets expired tokens and returns how many there were."""
        return await asyncio.to_thread(self._write, "DELETE FROM tokens WHERE expires_at <= ?", (self._now().timestamp(),))

    def _find(self, digest: str) -> tuple[str, str, str, float] | None:
        with self._open() as connection:
            found: tuple[str, str, str, float] | None = connection.execute("SELECT * FROM tokens WHERE digest = ?", (digest,)).fetchone()
            return found

    def _write(self, statement: str, values: tuple[object, ...]) -> int:
        with self._open() as connection:
            return connection.execute(statement, values).rowcount

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=30)
        try:
            with connection:
                connection.execute(_SCHEMA)
                yield connection
        finally:
            connection.close()


def make_token(secret: bytes) -> str:
    """`act_`, 32 random bytes and their CRC-32, both in base 62. The checksum lets a scanner tell a token from noise."""
    body = _base62(int.from_bytes(secret, "big"), _SECRET_LETTERS)
    return f"{_PREFIX}{body}{_base62(zlib.crc32(body.encode()), _CHECK_LETTERS)}"


def well_formed(token: str) -> bool:
    """Whether the text can be a token at all."""
    body, check = token[len(_PREFIX) : -_CHECK_LETTERS], token[-_CHECK_LETTERS:]
    right_shape = token.startswith(_PREFIX) and len(body) == _SECRET_LETTERS and token.isascii()
    return right_shape and check == _base62(zlib.crc32(body.encode()), _CHECK_LETTERS)


def _base62(number: int, letters: int) -> str:
    text = ""
    while number:
        number, rest = divmod(number, 62)
        text = _ALPHABET[rest] + text
    return text.rjust(letters, "0")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
