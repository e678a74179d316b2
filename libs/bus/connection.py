"""One NATS connection of a service: publish with acknowledgement, requests with many replies, the JetStream calls in use.

The only module that speaks to nats-py's client. An append that the server did not acknowledge raises.
"""

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus.errors import Fenced, NoAnswer, Permanent, Retryable
from libs.settings import BusSettings

log = logging.getLogger(__name__)
WRONG_LAST_SEQUENCE = (10071, 10164)
Headers = dict[str, str]
MessageHandler = Callable[[Msg], Awaitable[None]]


@dataclass(frozen=True)
class Replies:
    """Where replies come in: `inbox` is the subject. To be closed when no more are wanted."""

    inbox: str
    close: Callable[[], object]


class Connection:
    """A connected client. `name` is the NATS user and the prefix of the inboxes that this user may read."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._mailbox = ""
        self._opening = asyncio.Lock()
        self._readers: dict[str, MessageHandler] = {}

    @classmethod
    async def open(cls, settings: BusSettings, name: str, on_reconnect: Callable[[], Awaitable[None]] | None = None) -> "Connection":
        """Connect as `name`, waiting for the server for `settings.connect_seconds`.

        Raises:
            NoAnswer: the server cannot be reached or refuses the credentials.
        """
        client = Client()
        try:
            await asyncio.wait_for(client.connect(**_options(settings, name, on_reconnect)), settings.connect_seconds)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise NoAnswer(f"no connection to NATS at {settings.nats_url} as {name}: {error}") from error
        return cls(client, name)

    async def close(self) -> None:
        """Flush and close."""
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            await self.client.flush(2)
        await self.client.close()

    def inbox(self) -> str:
        """A new inbox that only this user may read."""
        return str(self.client.new_inbox())

    async def send(self, subject: str, payload: bytes, headers: Headers | None = None, reply: str = "") -> None:
        """Publish without an acknowledgement: for what may be lost."""
        await self.client.publish(subject, payload, reply=reply, headers=headers)

    async def subscribe(self, subject: str, handler: MessageHandler, queue: str = "") -> Any:
        """Call `handler` for each message, one at a time."""
        return await self.client.subscribe(subject, queue=queue, cb=handler, pending_bytes_limit=256 * 1024 * 1024)

    async def replies(self, handler: MessageHandler) -> Replies:
        """An inbox of its own that costs no subscription of its own: all share one, whose messages are handed on by their last token.

        `handler` holds back the replies of everybody while it works.
        """
        async with self._opening:
            if not self._mailbox:
                mailbox = self.inbox()
                await self.subscribe(f"{mailbox}.*", self._hand_on)
                self._mailbox = mailbox
        token = secrets.token_hex(12)
        self._readers[token] = handler
        return Replies(f"{self._mailbox}.{token}", partial(self._readers.pop, token, None))

    async def _hand_on(self, message: Msg) -> None:
        reader = self._readers.get(message.subject.rsplit(".", 1)[-1])
        if reader is not None:
            await reader(message)

    async def call(self, subject: str, payload: bytes, headers: Headers | None = None, timeout_seconds: float = 10.0) -> Msg:
        """One request, one reply.

        Raises:
            NoAnswer: nobody listens, or nothing came back in time.
        """
        try:
            return await self.client.request(subject, payload, timeout=timeout_seconds, headers=headers)
        except (nats.errors.Error, TimeoutError) as error:
            raise NoAnswer(f"no answer on {subject}: {type(error).__name__}") from error

    async def publish(self, subject: str, payload: bytes, headers: Headers, stream: str) -> int:
        """Publish to `stream` and return the sequence that the server acknowledged.

        Raises:
            Fenced: the expected last sequence was not the last one (JetStream 10071).
            Retryable: no acknowledgement, or the stream cannot take the message.
        """
        reply = await self.call(subject, payload, headers)
        answer = json.loads(reply.data)
        error = answer.get("error")
        if error is None and answer["stream"] == stream:
            return int(answer["seq"])
        if error is None:
            raise Permanent(f"{subject} was stored on {answer['stream']}, not on {stream}: the streams are declared wrongly")
        if error.get("err_code") in WRONG_LAST_SEQUENCE:
            raise Fenced(error.get("description", ""))
        raise Retryable(f"{stream} refused {subject}: {error.get('description')}")

    async def api(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        """A JetStream API call; the answer as JSON, its `error` left in."""
        reply = await self.call(f"$JS.API.{subject}", json.dumps(request).encode())
        return dict(json.loads(reply.data))

    async def collect(self, subject: str, payload: bytes, timeout_seconds: float = 10.0) -> AsyncGenerator[Msg, None]:
        """One request, many replies, up to the caller to know the last one.

        Raises:
            NoAnswer: `timeout_seconds` passed between two replies.
        """
        queue: asyncio.Queue[Msg] = asyncio.Queue()
        replies = await self.replies(queue.put)
        try:
            await self.send(subject, payload, reply=replies.inbox)
            while True:
                try:
                    async with asyncio.timeout(timeout_seconds):
                        message = await queue.get()
                except TimeoutError as error:
                    raise NoAnswer(f"no answer on {subject}") from error
                yield message
        finally:
            replies.close()


def _options(settings: BusSettings, name: str, on_reconnect: Callable[[], Awaitable[None]] | None) -> dict[str, Any]:
    async def error_cb(error: Exception) -> None:
        log.warning("%s: %s", name, error)

    async def reconnected_cb() -> None:
        if on_reconnect is not None:
            await on_reconnect()

    return {
        "servers": [settings.nats_url],
        "user": name,
        "password": settings.password(name),
        "name": name,
        "inbox_prefix": f"_INBOX.{name}".encode(),
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.2,
        "ping_interval": 10,
        "pending_size": 64 * 1024 * 1024,
        "error_cb": error_cb,
        "reconnected_cb": reconnected_cb,
    }


def status_of(message: Msg) -> str | None:
    """The inline status of a server message (`100`, `404`, `408`, `409`, `503`), None for a message of somebody."""
    return message.headers.get("Status") if message.headers else None
