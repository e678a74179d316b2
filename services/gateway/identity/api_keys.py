"""API keys: `ack_`, 32 random characters and a checksum of 6, so that a scanner finds a leaked one and knows it from a look-alike.

The bucket `API_KEYS` holds a record under the SHA-256 of each key and an index for each user; never the key itself.
"""

import hashlib
import secrets
import string
import time
import zlib
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from libs.bus import Fenced, Retryable, token
from libs.contracts.envelope import Time
from services.gateway.clients import Buckets
from services.gateway.identity.caller import Caller, Scope, unauthorized
from services.gateway.problems import Problem, not_found

PREFIX = "ack_"
BUCKET = "API_KEYS"
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM = 32
_CHECK = 6
_MAX_KEYS = 100
_TRIES = 20


class KeyRecord(BaseModel):
    """What is kept of a key."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    user: str
    name: str
    scopes: tuple[Scope, ...]
    plan: str | None = None
    hint: str
    created_at: Time
    expires_at: Time | None = None
    revoked_at: Time | None = None


class _Index(BaseModel):
    """The keys of one user: id to digest."""

    keys: dict[str, str] = {}


def new_key() -> str:
    """A fresh key."""
    body = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM))
    return PREFIX + body + checksum(body)


def checksum(body: str) -> str:
    """CRC-32 of the random part as 6 characters of base 62."""
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(_CHECK):
        value, digit = divmod(value, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def well_formed(text: str) -> bool:
    """Whether a text is a key by its form: prefix, length, characters, checksum."""
    body = text[len(PREFIX) :]
    if not text.startswith(PREFIX) or len(body) != _RANDOM + _CHECK or not set(body) <= set(_ALPHABET):
        return False
    return checksum(body[:_RANDOM]) == body[_RANDOM:]


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class ApiKeys:
    """Makes, checks, lists and revokes keys."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    async def make(self, caller: Caller, name: str, scopes: frozenset[Scope], expires_at: datetime | None) -> tuple[str, KeyRecord]:
        """A new key of the caller, shown this once. Raises Problem 409: the user has as many as are kept."""
        key = new_key()
        record = KeyRecord(
            id=f"key_{secrets.token_hex(8)}",
            tenant=caller.tenant,
            user=caller.user,
            name=name,
            scopes=tuple(sorted(scopes)),
            plan=caller.plan,
            hint=f"{key[:8]}…{key[-4:]}",
            created_at=datetime.now(UTC),
            expires_at=expires_at,
        )
        await self._put(_digest(key), record, 0)
        await self._add_to_index(caller, record.id, _digest(key))
        return key, record

    async def caller(self, text: str) -> Caller:
        """Whom a key stands for. Raises Problem 401: it is no key, unknown, revoked or expired."""
        if not well_formed(text):
            raise unauthorized("this API key is not known here")
        return await self._stands_for(_digest(text))

    async def recheck(self, caller: Caller) -> None:
        """Whether a credential that was good still is. Raises Problem 401: it was revoked or has expired since."""
        if caller.until is not None and caller.until <= time.time():
            raise unauthorized("this token has expired")
        if caller.key is not None:
            await self._stands_for(caller.key)

    async def _stands_for(self, digest: str) -> Caller:
        found = await self._record(digest)
        if found is None:
            raise unauthorized("this API key is not known here")
        record, _ = found
        if record.revoked_at is not None:
            raise unauthorized("this API key was revoked")
        if record.expires_at is not None and record.expires_at <= datetime.now(UTC):
            raise unauthorized("this API key has expired")
        until = record.expires_at.timestamp() if record.expires_at else None
        scopes = frozenset(record.scopes)
        return Caller(tenant=record.tenant, user=record.user, scopes=scopes, plan=record.plan, kind="key", until=until, key=digest)

    async def list(self, caller: Caller) -> list[KeyRecord]:
        """The caller's keys, newest first, the revoked ones too."""
        index, _ = await self._index(caller)
        found = [await self._record(digest) for digest in index.keys.values()]
        return sorted((f[0] for f in found if f is not None), key=lambda r: r.created_at, reverse=True)

    async def revoke(self, caller: Caller, key_id: str) -> None:
        """End a key at once. Raises Problem 404: the caller has no such key."""
        index, _ = await self._index(caller)
        for _ in range(_TRIES):
            found = await self._record(index.keys[key_id]) if key_id in index.keys else None
            if found is None:
                raise not_found("there is no such key", "GET /api/keys lists your keys")
            record, revision = found
            if record.revoked_at is not None:
                return
            try:
                await self._put(index.keys[key_id], record.model_copy(update={"revoked_at": datetime.now(UTC)}), revision)
                return
            except Fenced:
                continue
        raise Retryable("the key changes too often to be revoked")

    async def _record(self, digest: str) -> tuple[KeyRecord, int] | None:
        found = await self._buckets.kv(BUCKET).get(f"key.{digest}")
        return (KeyRecord.model_validate_json(found[0]), found[1]) if found else None

    async def _put(self, digest: str, record: KeyRecord, revision: int) -> None:
        await self._buckets.kv(BUCKET).put(f"key.{digest}", record.model_dump_json(exclude_none=True).encode(), revision)

    async def _index(self, caller: Caller) -> tuple[_Index, int]:
        found = await self._buckets.kv(BUCKET).get(_index_key(caller))
        return (_Index.model_validate_json(found[0]), found[1]) if found else (_Index(), 0)

    async def _add_to_index(self, caller: Caller, key_id: str, digest: str) -> None:
        for _ in range(_TRIES):
            index, revision = await self._index(caller)
            kept = index.keys if len(index.keys) < _MAX_KEYS else await self._without_dead(index)
            if len(kept) >= _MAX_KEYS:
                raise Problem(409, "too-many-keys", f"a user has at most {_MAX_KEYS} keys", "DELETE /api/keys/{id} those out of use")
            changed = _Index(keys={**kept, key_id: digest})
            try:
                await self._buckets.kv(BUCKET).put(_index_key(caller), changed.model_dump_json().encode(), revision)
                return
            except Fenced:
                continue
        raise Retryable("keys of this user are being made too often")

    async def _without_dead(self, index: _Index) -> dict[str, str]:
        now = datetime.now(UTC)
        kept = {}
        for key_id, digest in index.keys.items():
            found = await self._record(digest)
            if found and found[0].revoked_at is None and (found[0].expires_at is None or found[0].expires_at > now):
                kept[key_id] = digest
        return kept


def _index_key(caller: Caller) -> str:
    return f"of.{token(caller.tenant)}.{token(caller.user)}"
