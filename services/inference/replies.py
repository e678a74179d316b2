"""Replies by request id, for an hour: the same request is answered from the record and paid for once.

Whoever asks first holds the key and gives signs of life on it; others wait for the record, and take the key over when the signs stop.
A reply is recorded before it is answered.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from libs.bus.errors import Fenced, Retryable
from libs.contracts.envelope import Message
from libs.contracts.inference import Completion
from services.inference.store import Records

log = logging.getLogger(__name__)
Work = Callable[[], Awaitable[Completion]]
_STORE_TRIES = 5


class Record(Message):
    """What stands under a request's key. `free` is what a failed or cancelled holder leaves."""

    state: Literal["running", "done", "free"]
    holder: str = ""
    beat: int = 0
    completion: Completion | None = None


class Replies:
    """Runs each request once."""

    def __init__(self, records: Records, beat_seconds: float = 2.0, lost_seconds: float = 8.0, poll_seconds: float = 0.2) -> None:
        self._records = records
        self._beat = beat_seconds
        self._lost = lost_seconds
        self._poll = poll_seconds

    async def once(self, request_id: str, work: Work) -> Completion:
        """The recorded reply (`replayed`), or that of `work`, which runs unless somebody else is at it. Its errors are not recorded."""
        key = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()
        found: Completion | int = 0  # most requests are new, so taking the key comes before looking at it
        while True:
            if isinstance(found, Completion):
                return found.model_copy(update={"replayed": True})
            hold = _Hold(self._records, key, found)
            try:
                await hold.put(Record(state="running", holder=hold.name))
            except Fenced:
                found = await self._wait(key)
                continue
            return await self._run(hold, work)

    async def _wait(self, key: str) -> Completion | int:
        """The recorded reply, or the revision to take the key over from: nobody holds it, or its holder has stopped giving signs."""
        seen, since = -1, time.monotonic()
        while True:
            found = await self._records.get(key)
            if found is None:
                return 0
            record, revision = Record.model_validate_json(found[0]), found[1]
            if record.completion is not None:
                return record.completion
            if record.state == "free":
                return revision
            if revision != seen:
                seen, since = revision, time.monotonic()
            elif time.monotonic() - since > self._lost:
                return revision
            await asyncio.sleep(self._poll)

    async def _run(self, hold: "_Hold", work: Work) -> Completion:
        beating = asyncio.create_task(hold.beat(self._beat))
        try:
            completion = await work()
        except BaseException:
            with contextlib.suppress(Retryable):
                await asyncio.shield(self._finish(hold, beating, Record(state="free", holder=hold.name)))
            raise
        await asyncio.shield(self._finish(hold, beating, Record(state="done", holder=hold.name, completion=completion)))
        return completion

    async def _finish(self, hold: "_Hold", beating: asyncio.Task[None], record: Record) -> None:
        """Put the last word under a key, through a restart of the server."""
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        for attempt in range(_STORE_TRIES):
            try:
                await hold.put(record)
            except Fenced:
                log.warning("request %s was taken over by another replica", hold.key[:12])
            except Retryable as error:
                if attempt + 1 == _STORE_TRIES:
                    raise
                log.warning("request %s is not stored yet: %s", hold.key[:12], error)
                await asyncio.sleep(self._poll)
                continue
            return


class _Hold:
    """A key held by one holder. A put whose acknowledgement was lost is found again by the holder's name."""

    def __init__(self, records: Records, key: str, revision: int) -> None:
        self._records = records
        self._revision = revision
        self.key = key
        self.name = secrets.token_hex(8)

    async def put(self, record: Record) -> None:
        """Put `record` after the last one of this holder; raises Fenced when somebody else has put since."""
        value = record.model_dump_json(exclude_none=True).encode()
        try:
            self._revision = await self._records.put(self.key, value, self._revision)
        except Fenced:
            found = await self._records.get(self.key)
            if found is None or Record.model_validate_json(found[0]).holder != self.name:
                raise
            self._revision = await self._records.put(self.key, value, found[1])

    async def beat(self, every_seconds: float) -> None:
        """Give signs of life until cancelled or taken over."""
        count = 0
        while True:
            await asyncio.sleep(every_seconds)
            count += 1
            try:
                await self.put(Record(state="running", holder=self.name, beat=count))
            except Fenced:
                return
            except Retryable as error:
                log.warning("no sign of life for request %s: %s", self.key[:12], error)
