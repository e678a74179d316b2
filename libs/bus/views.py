"""A view reads a stream in batches and keeps something of it elsewhere; the whole batch is acknowledged when it returns.

A view is idempotent by its own means: a batch whose acknowledgement was lost comes again.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import nats.errors

from libs.bus.connection import Connection, status_of
from libs.bus.delivery import Delivery, parse
from libs.bus.journal import BrokenEvent, decode
from libs.contracts.envelope import HEADER_CAUSATION
from libs.contracts.fold import Recorded

log = logging.getLogger(__name__)
_NS = 1_000_000_000


@dataclass(frozen=True)
class ViewSpec:
    """A batch reader. `events`: the handler gets `Recorded` run events (broken ones left out), else raw deliveries."""

    name: str
    stream: str
    handler: Callable[[list[Any]], Awaitable[None]]
    batch: int
    events: bool


class View:
    """Fetches batches from a durable consumer and hands each over, one at a time, in order."""

    def __init__(self, connection: Connection, durable: str, spec: ViewSpec) -> None:
        self._connection = connection
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{durable}"
        self._spec = spec
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._owed = 0

    async def run(self) -> None:
        """Read until cancelled; a batch that fails is put back and read again after a pause."""
        self._owed = 0
        inbox = self._connection.inbox()
        subscription = await self._connection.subscribe(inbox, self._queue.put)
        try:
            while True:
                batch = await self._fetch(inbox)
                if batch:
                    await self._hand_over(batch)
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def reset(self) -> None:
        """After a reconnect: what was asked is forgotten; wake the reader so that it asks anew."""
        await self._queue.put(None)

    async def _fetch(self, inbox: str) -> list[Delivery]:
        """What is there, up to a batch. Asks again only when the last request is used up: the server keeps 512 open ones and no more."""
        if self._owed == 0:
            request = {"batch": self._spec.batch, "expires": 30 * _NS, "idle_heartbeat": 5 * _NS}
            await self._connection.send(self._next, json.dumps(request).encode(), reply=inbox)
            self._owed = self._spec.batch
        found: list[Delivery] = []
        while len(found) < self._spec.batch:
            try:
                async with asyncio.timeout(0.005 if found else 12.0):  # not wait_for, which may swallow a cancellation before 3.12
                    message = await self._queue.get()
            except TimeoutError:
                self._owed = self._owed if found else 0
                return found
            status = None if message is None else status_of(message)
            if message is None or status not in (None, "100"):
                self._owed = 0
                return found
            if status is None:
                self._owed = max(0, self._owed - 1)
                found.append(parse(message, self._connection))
                if found[-1].pending == 0 or self._owed == 0:
                    return found
        return found

    async def _hand_over(self, batch: list[Delivery]) -> None:
        items = [r for d in batch if (r := _recorded(d))] if self._spec.events else batch
        try:
            if items:
                await self._spec.handler(items)
        except Exception:
            log.exception("view %s: a batch of %d from sequence %d is read again", self._spec.name, len(batch), batch[0].sequence)
            for delivery in batch:
                await delivery.nak(2.0)
            await asyncio.sleep(1.0)
            return
        for delivery in batch:
            await delivery.ack()


def _recorded(delivery: Delivery) -> Recorded | None:
    try:
        event = decode(delivery.subject, delivery.payload)
    except BrokenEvent as error:
        log.warning("sequence %d: %s", delivery.sequence, error)
        return None
    if event is None:
        return None
    cause = delivery.headers.get(HEADER_CAUSATION, "")
    return Recorded(sequence=delivery.sequence, at=delivery.at, causation=int(cause) if cause.isdigit() else None, event=event)
