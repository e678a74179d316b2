"""Tokens that stand for a row of the bucket MAIL: a handle of 112 bits and 128 bits of HMAC-SHA256 over it and the row, 48 letters.

Base 32 in any case, since mail systems change the case of local parts; a row that was changed, or a token that was, opens nothing.
"""

import base64
import contextlib
import hmac
import re

from libs.bus import Fenced, Kv

_HANDLE, _CODE = 14, 16
_TOKEN = re.compile(r"[a-z2-7]{48}")


class Grants:
    """Gives out tokens of one kind and opens them; no token of one kind opens another's row."""

    def __init__(self, kv: Kv, secret: bytes, kind: str) -> None:
        self._kv = kv
        self._kind = kind
        self._key = hmac.digest(secret, kind.encode(), "sha256")

    async def give(self, row: bytes) -> str:
        """The token of `row`; the same row has the same one."""
        handle = hmac.digest(self._key, b"handle" + row, "sha256")[:_HANDLE]
        with contextlib.suppress(Fenced):  # given out before: the handle follows from the row
            await self._kv.put(self._place(handle), row, expected_revision=0)
        return base64.b32encode(handle + self._code(handle, row)).decode().lower()

    async def open(self, token: str) -> bytes | None:
        """The row of a token; None when it was never given out."""
        small = token.lower()
        if not _TOKEN.fullmatch(small):
            return None
        raw = base64.b32decode(small.upper())
        found = await self._kv.get(self._place(raw[:_HANDLE]))
        row = found[0] if found else b""
        return row if hmac.compare_digest(raw[_HANDLE:], self._code(raw[:_HANDLE], row)) and row else None

    def _code(self, handle: bytes, row: bytes) -> bytes:
        return hmac.digest(self._key, b"code" + handle + row, "sha256")[:_CODE]

    def _place(self, handle: bytes) -> str:
        return f"{self._kind}.{handle.hex()}"
