"""Follow the messages of a subject from a place on. A plain subscription rings the bell, the stream is what is read: nothing is missed,
nothing comes twice, and a slow reader holds back nobody.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass
from datetime import datetime

import nats.errors
from nats.aio.msg import Msg

from libs.bus.connection import Connection, status_of
from libs.bus.errors import Retryable
from libs.bus.journal import parse_time

_BATCH = 64
_BATCH_BYTES = 2_000_000
_POLL_SECONDS = 2.0
_MOST_HEARD = 256


@dataclass(frozen=True)
class Stored:
    """A message with its place on the stream."""

    subject: str
    payload: bytes
    headers: dict[str, str]
    sequence: int
    at: datetime


class Tail:
    """Reads `subject` (it may hold wildcards) of `stream` after the sequence `after`; None starts with the next message that comes.

    Where `rings` is given, only subjects that end with one of its words are read at once; the others come with them, or a little later.
    """

    def __init__(self, connection: Connection, stream: str, subject: str, after: int | None = 0, rings: Collection[str] = ()) -> None:
        self._connection = connection
        self._rings = rings
        self._stream = stream
        self._subject = subject
        self._after = after
        self._bell = asyncio.Event()

    async def messages(self) -> AsyncGenerator[Stored, None]:
        """Messages in order, each once, until the reader stops. What the stream has dropped meanwhile is passed over."""
        subscription = await self._connection.subscribe(self._subject, self._ring)
        try:
            while True:
                self._bell.clear()
                try:
                    if self._after is None:
                        self._after = await self._last()
                    async with contextlib.aclosing(self._read()) as found:
                        async for message in found:
                            self._after = message.sequence
                            yield message
                except Retryable:
                    await asyncio.sleep(_POLL_SECONDS / 4)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._bell.wait()
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _last(self) -> int:
        request = json.dumps({"last_by_subj": self._subject}).encode()
        reply = await self._connection.call(f"$JS.API.DIRECT.GET.{self._stream}", request)
        return int((reply.headers or {})["Nats-Sequence"]) if status_of(reply) is None else 0

    async def _ring(self, message: Msg) -> None:
        if not self._rings or message.subject.rsplit(".", 1)[-1] in self._rings:
            self._bell.set()

    async def _read(self) -> AsyncGenerator[Stored, None]:
        while True:
            pending = 0
            async for message in self._batch():
                if isinstance(message, int):
                    pending = message
                else:
                    yield message
            if pending == 0:
                return

    async def _batch(self) -> AsyncGenerator[Stored | int, None]:
        """Messages of one request, then how many are left."""
        assert self._after is not None
        request = {"seq": self._after + 1, "next_by_subj": self._subject, "batch": _BATCH, "max_bytes": _BATCH_BYTES}
        replies = self._connection.collect(f"$JS.API.DIRECT.GET.{self._stream}", json.dumps(request).encode())
        async with contextlib.aclosing(replies) as found:
            async for reply in found:
                status, headers = status_of(reply), dict(reply.headers or {})
                if status is None:
                    yield Stored(
                        subject=headers["Nats-Subject"],
                        payload=reply.data,
                        headers=headers,
                        sequence=int(headers["Nats-Sequence"]),
                        at=parse_time(headers["Nats-Time-Stamp"]),
                    )
                    continue
                if status not in ("204", "404"):
                    raise Retryable(f"{self._stream} cannot be read: {status} {headers.get('Description', '')}")
                yield int(headers.get("Nats-Num-Pending", 0))
                return


class Heard(Tail):
    """What is stored, and from then on what comes, handed over as it is heard: that spares a question to the stream for each message.

    For messages that number themselves: around a reading they may come twice and out of order. Nothing is missed: the stream is read again
    after the first one that is heard, unless it `continues` what was read, when a slow reader had to let some pass, and when nothing was
    heard for a while.
    """

    def __init__(
        self, connection: Connection, stream: str, subject: str, continues: Callable[[bytes], bool] = lambda payload: False
    ) -> None:
        super().__init__(connection, stream, subject)
        self._continues = continues

    async def payloads(self) -> AsyncGenerator[bytes, None]:
        """The messages' payloads until the reader stops."""
        self._heard: deque[bytes] = deque()
        self._behind, listening = True, False
        subscription = await self._connection.subscribe(self._subject, self._hear)
        try:
            while True:
                if self._behind:
                    self._behind = False
                    async with contextlib.aclosing(self._stored()) as stored:
                        async for payload in stored:
                            yield payload
                self._bell.clear()
                if self._heard and not listening:
                    listening, self._behind = True, self._behind or not self._continues(self._heard[0])
                elif self._heard:
                    yield self._heard.popleft()
                elif not self._behind and not await self._rung():
                    self._behind = True
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _stored(self) -> AsyncGenerator[bytes, None]:
        try:
            async with contextlib.aclosing(self._read()) as found:
                async for message in found:
                    self._after = message.sequence
                    yield message.payload
        except Retryable:
            await asyncio.sleep(_POLL_SECONDS / 4)
            self._behind = True

    async def _rung(self) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                return await self._bell.wait()
        return False

    async def _hear(self, message: Msg) -> None:
        if len(self._heard) < _MOST_HEARD:
            self._heard.append(message.data)
        else:
            self._behind = True
        self._bell.set()
