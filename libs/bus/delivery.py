"""Delivery from a durable pull consumer: asks for no more than it can work on and keeps alive what it works on.

A message is acknowledged, put back with a delay, or terminated exactly once by whoever handles it; losing the process loses no message.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import nats.errors
from nats.aio.msg import Msg

from libs.bus.connection import Connection, status_of
from libs.bus.faults import DUPLICATE

log = logging.getLogger(__name__)
_NS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXPIRES_SECONDS = 30.0
_IDLE_SECONDS = 5.0


@dataclass
class Delivery:
    """One delivery of a stored message. `number` counts from 1; `sequence` is the message's place on `stream`."""

    subject: str
    payload: bytes
    headers: dict[str, str]
    stream: str
    consumer: str
    number: int
    sequence: int
    at: datetime
    pending: int
    _reply: str = field(repr=False)
    _connection: Connection = field(repr=False)

    async def ack(self) -> None:
        """Done; never deliver it again."""
        await self._answer(b"+ACK")

    async def nak(self, delay_seconds: float = 0.0) -> None:
        """Deliver it again after a delay."""
        await self._answer(b"-NAK " + json.dumps({"delay": int(delay_seconds * _NS)}).encode())

    async def term(self) -> None:
        """Never deliver it again, though it was not done."""
        await self._answer(b"+TERM")

    async def in_progress(self) -> None:
        """Still working: the server starts the waiting time anew."""
        await self._answer(b"+WPI")

    async def _answer(self, word: bytes) -> None:
        with contextlib.suppress(nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError):
            await self._connection.send(self._reply, word)


def parse(message: Msg, connection: Connection) -> Delivery:
    """A message of a consumer, its place read from the reply subject (JetStream ADR-1: `$JS.ACK.…`)."""
    parts = message.reply.split(".")
    if len(parts) >= 11:  # with domain and account
        parts = parts[:2] + parts[4:]
    stream, consumer, number, sequence, _, nanoseconds, pending = parts[2:9]
    return Delivery(
        subject=message.subject,
        payload=message.data,
        headers=dict(message.headers or {}),
        stream=stream,
        consumer=consumer,
        number=int(number),
        sequence=int(sequence),
        at=_EPOCH + timedelta(microseconds=int(nanoseconds) // 1000),
        pending=int(pending),
        _reply=message.reply,
        _connection=connection,
    )


class PullConsumer:
    """Feeds deliveries to a handler, at most `concurrency` at a time."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        durable: str,
        handler: Callable[[Delivery], Awaitable[None]],
        *,
        concurrency: int,
        ack_wait_seconds: float,
    ) -> None:
        self._connection = connection
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._handler = handler
        self._concurrency = concurrency
        self._heartbeat_seconds = ack_wait_seconds / 3
        self._requested = 0
        self._working: dict[asyncio.Task[None], Delivery] = {}
        self._last_heard = 0.0
        self._inbox = ""
        self._closed = False

    async def run(self) -> None:
        """Pull and hand over until cancelled; what was in work is cancelled as well and put back."""
        self._inbox = self._connection.inbox()
        subscription = await self._connection.subscribe(self._inbox, self._on_message)
        try:
            await asyncio.gather(self._keep_asking(), self._keep_alive())
        finally:
            self._closed = True
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()
            await self._put_back()

    async def _put_back(self) -> None:
        working = dict(self._working)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        for task, delivery in working.items():
            if task.cancelled():
                await delivery.nak()

    async def _keep_asking(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - self._last_heard > 2 * _IDLE_SECONDS:  # lost, never answered, or the server was restarted
                self._requested = 0
                self._last_heard = loop.time()
            await self._ask()
            await asyncio.sleep(_IDLE_SECONDS / 5)

    async def _ask(self) -> None:
        free = self._concurrency - len(self._working) - self._requested
        if self._closed or free <= 0 or (self._requested and free < self._concurrency // 4):
            return
        self._requested += free
        self._last_heard = max(self._last_heard, asyncio.get_running_loop().time())
        request = {"batch": free, "expires": int(_EXPIRES_SECONDS * _NS), "idle_heartbeat": int(_IDLE_SECONDS * _NS)}
        try:
            await self._connection.send(self._next, json.dumps(request).encode(), reply=self._inbox)
        except nats.errors.Error as error:
            self._requested = 0
            log.warning("%s cannot be asked: %s", self._next, error)

    async def reset(self) -> None:
        """Ask anew: after a reconnect the server has forgotten what was asked."""
        self._requested = 0
        await self._ask()

    async def _on_message(self, message: Msg) -> None:
        self._last_heard = asyncio.get_running_loop().time()
        status = status_of(message)
        if status is not None:
            await self._on_status(status, message)
            return
        self._requested = max(0, self._requested - 1)
        delivery = parse(message, self._connection)
        task = asyncio.create_task(self._work(delivery))
        self._working[task] = delivery
        task.add_done_callback(self._finished)

    async def _on_status(self, status: str, message: Msg) -> None:
        headers = message.headers or {}
        if status == "100":
            return
        undelivered = headers.get("Nats-Pending-Messages")
        self._requested = max(0, self._requested - int(undelivered)) if undelivered else 0
        if status in ("408", "404"):
            await self._ask()
        else:
            log.debug("%s: %s %s", self._next, status, headers.get("Description", ""))

    async def _work(self, delivery: Delivery) -> None:
        try:
            await asyncio.gather(*(self._handler(delivery) for _ in range(2 if DUPLICATE else 1)))
        except Exception:
            log.exception("%s: handling %s failed outside of the handler; it is delivered again", delivery.consumer, delivery.subject)
            await delivery.nak(5.0)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._working.pop(task, None)
        if not self._closed and (
            self._requested == 0 or self._concurrency - len(self._working) - self._requested >= self._concurrency // 4
        ):
            task.get_loop().create_task(self._ask())

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            for delivery in list(self._working.values()):
                await delivery.in_progress()
