"""Limits and wishes of recipients, in rows of the bucket MAIL: mails of a run, mails to one address within an hour, who wants none."""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from pydantic import Field

from libs.bus import Fenced, Kv, Retryable, token
from libs.contracts.envelope import Message, Time
from services.mailer.reply_address import plain

HOUR = timedelta(hours=1)
_TRIES = 20
RowT = TypeVar("RowT", bound=Message)


class Thread(Message):
    """The mails of one run, oldest first: id, recipient, Message-ID."""

    mails: tuple[tuple[str, str, str], ...] = ()

    def first_to(self, recipient: str) -> str | None:
        """The Message-ID of our first mail to somebody."""
        return next((message_id for _, to, message_id in self.mails if to == recipient), None)


class Sent(Message):
    """What went to one address within the last hour: id and time."""

    mails: tuple[tuple[str, Time], ...] = ()


class Suppressed(Message):
    """Somebody who wants no mail, since when."""

    since: Time | None = Field(default=None)


class Quota:
    """Counts mails; the same mail counts once."""

    def __init__(self, kv: Kv, *, per_run: int, per_recipient_hour: int) -> None:
        self._kv = kv
        self._per_run = per_run
        self._per_hour = per_recipient_hour

    async def join(self, run_id: str, mail_id: str, recipient: str, message_id: str) -> Thread | None:
        """The mails of a run with this one in its place; None when the run has had its share."""

        def add(thread: Thread) -> Thread | None:
            if any(known == mail_id for known, _, _ in thread.mails):
                return thread
            if len(thread.mails) >= self._per_run:
                return None
            return Thread(mails=(*thread.mails, (mail_id, plain(recipient), message_id)))

        return await self._change(f"run.{token(run_id)}", Thread, add)

    async def wait(self, mail_id: str, recipient: str, now: datetime) -> float:
        """Seconds until `recipient` may get this mail; 0 when it may go now, which counts it."""
        first: list[datetime] = []

        def add(sent: Sent) -> Sent | None:
            recent = tuple((known, at) for known, at in sent.mails if now - at < HOUR)
            if any(known == mail_id for known, _ in recent):
                return sent
            if len(recent) >= self._per_hour:
                first[:] = [recent[0][1]]
                return None
            return Sent(mails=(*recent, (mail_id, now)))

        if await self._change(f"hour.{_digest(recipient)}", Sent, add) is not None:
            return 0.0
        return max(1.0, (first[0] + HOUR - now).total_seconds())

    async def suppress(self, recipient: str, now: datetime) -> None:
        """Send nothing to `recipient` any more."""
        await self._kv.put(f"suppressed.{_digest(recipient)}", Suppressed(since=now).model_dump_json().encode())

    async def suppressed(self, recipient: str) -> datetime | None:
        """Since when `recipient` wants no mail; None when it may have some."""
        found = await self._kv.get(f"suppressed.{_digest(recipient)}")
        return Suppressed.model_validate_json(found[0]).since if found else None

    async def _change(self, key: str, kind: type[RowT], change: Callable[[RowT], RowT | None]) -> RowT | None:
        """The row after `change`; None when `change` refuses. Raises Retryable when others keep changing it."""
        for _ in range(_TRIES):
            found = await self._kv.get(key)
            before = kind.model_validate_json(found[0]) if found else kind()
            after = change(before)
            if after is None or after == before:
                return after
            try:
                await self._kv.put(key, after.model_dump_json().encode(), expected_revision=found[1] if found else 0)
            except Fenced:
                continue
            return after
        raise Retryable(f"{key} is changed by too many at once")


def _digest(address: str) -> str:
    return hashlib.sha256(plain(address).encode("utf-8", "backslashreplace")).hexdigest()[:32]
