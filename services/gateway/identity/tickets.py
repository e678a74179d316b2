"""Short-lived tokens for addresses: a browser cannot set headers on a WebSocket, so the token travels in the query. Pure.

`act_<claims>.<HMAC-SHA256>`, both in URL-safe base64. Bound to one resource, valid for minutes, never renewed.
"""

import base64
import binascii
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError

from services.gateway.identity.caller import Caller, unauthorized

PREFIX = "act_"
_MAX_LENGTH = 4096


class Tickets:
    """Makes and checks short-lived tokens with one key that all replicas share."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, caller: Caller, now: datetime, lifetime: timedelta) -> tuple[str, datetime]:
        """A token for `caller` (with its `resource`), and when it expires."""
        expires_at = (now + lifetime).replace(microsecond=0)
        claims = caller.model_dump(mode="json", exclude={"kind"}) | {"scopes": sorted(caller.scopes), "exp": int(expires_at.timestamp())}
        body = _encode(json.dumps(claims, sort_keys=True, separators=(",", ":")).encode())
        return f"{PREFIX}{body}.{_encode(self._mac(body))}", expires_at

    def caller(self, text: str, now: datetime) -> Caller:
        """Whom a token stands for. Raises Problem 401: it is forged, damaged or over."""
        body, _, mac = text.removeprefix(PREFIX).partition(".")
        if len(text) > _MAX_LENGTH or not hmac.compare_digest(_encode(self._mac(body)).encode(), mac.encode("utf-8", "replace")):
            raise unauthorized("this short-lived token is not valid here")
        try:
            claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            caller = Caller.model_validate(claims | {"kind": "ticket"})
            over = datetime.fromtimestamp(claims["exp"], UTC) <= now
        except (binascii.Error, ValueError, KeyError, TypeError, ValidationError) as error:
            raise unauthorized("this short-lived token cannot be read") from error
        if over:
            raise unauthorized("this short-lived token has expired: ask for a new one with POST /api/tokens")
        return caller

    def _mac(self, body: str) -> bytes:
        return hmac.new(self._key, b"agent-coder ticket\0" + body.encode("utf-8", "replace"), hashlib.sha256).digest()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
