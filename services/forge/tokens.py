"""Installation tokens: minted for one repository with the fewest permissions that a step needs, kept in memory, renewed 5 minutes early."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

EARLY = timedelta(minutes=5)
Mint = Callable[[int, dict[str, object]], Awaitable[tuple[str, datetime]]]


@dataclass(frozen=True)
class Token:
    """A token and when GitHub stops taking it. Its text is in no representation of it."""

    value: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True)
class Scope:
    """What a token is good for: one repository of one installation; None while its id is still to be looked up."""

    installation_id: int
    repository_id: int | None
    permissions: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, installation_id: int, repository_id: int | None, permissions: Mapping[str, str]) -> "Scope":
        """The scope with the permissions in one order."""
        return cls(installation_id, repository_id, tuple(sorted(permissions.items())))

    def request(self) -> dict[str, object]:
        """The body of `POST /app/installations/{id}/access_tokens`."""
        which: dict[str, object] = {} if self.repository_id is None else {"repository_ids": [self.repository_id]}
        return which | {"permissions": dict(self.permissions)}


class Tokens:
    """The tokens in use. Asked for at each step, so that a token that was dropped or ran out is minted anew."""

    def __init__(self, mint: Mint, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._mint = mint
        self._clock = clock
        self._kept: dict[Scope, Token] = {}
        self._locks: dict[Scope, asyncio.Lock] = {}

    async def get(self, scope: Scope) -> Token:
        """A token that is good for five minutes at least. Raises what minting raises."""
        async with self._locks.setdefault(scope, asyncio.Lock()):
            kept = self._kept.get(scope)
            if kept is None or kept.expires_at - EARLY <= self._clock():
                self._forget_old()
                value, expires_at = await self._mint(scope.installation_id, scope.request())
                kept = self._kept[scope] = Token(value, expires_at)
            return kept

    def drop(self, installation_id: int | None = None, token: Token | None = None) -> None:
        """Forget the tokens of an installation that was suspended or removed, or one token that GitHub refused."""
        self._kept = {s: t for s, t in self._kept.items() if s.installation_id != installation_id and t != token}

    def _forget_old(self) -> None:
        now = self._clock()
        self._kept = {s: t for s, t in self._kept.items() if t.expires_at > now}
        self._locks = {s: lock for s, lock in self._locks.items() if s in self._kept or lock.locked()}
