"""A followed turn as an HTTP answer: the AI SDK's UI-message stream, or plain text for a terminal.

The status is decided by the first thing that is worth showing, so that a refusal is a problem with a status and never an empty 200.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing

from services.gateway.chat.following import Following
from services.gateway.chat.plain import PlainText
from services.gateway.chat.turns import Asked
from services.gateway.chat.weave import SILENT, TERMINAL, Chunk
from services.gateway.context import Gateway
from services.gateway.feed import EventStream, ended
from services.gateway.identity.caller import Caller
from services.gateway.problems import Problem

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
DONE = b"data: [DONE]\n\n"
_HEARTBEAT = b": heartbeat\n\n"
_MOST_BYTES = 64_000


class Opening:
    """The chunks of a turn, looked at until the first one that is worth showing."""

    def __init__(self, moments: AsyncGenerator[list[Chunk], None]) -> None:
        self._moments = moments
        self._head: list[Chunk] = []
        self._coming: asyncio.Task[list[Chunk] | None] | None = None
        self._over = False

    async def look(self, seconds: float) -> None:
        """Wait for it, `seconds` at most. Raises Problem: the turn was refused before it showed anything."""
        until = time.monotonic() + seconds
        try:
            while not self._over and all(chunk["type"] in SILENT for chunk in self._head):
                if not await self._advance(until - time.monotonic()):
                    return
        except BaseException:
            await self.close()
            raise

    async def rest(self, heartbeat_seconds: float) -> AsyncGenerator[list[Chunk], None]:
        """All chunks, those that are there at once together; none when nothing came for a heartbeat. A fault is an error chunk now."""
        try:
            while self._head or not self._over:
                if self._head:
                    head, self._head = self._head, []
                    yield head
                    continue
                try:
                    if not await self._advance(heartbeat_seconds):
                        yield []
                except Problem as problem:
                    yield [{"type": "error", "errorText": problem.detail}]
                    return
        finally:
            await self.close()

    async def _advance(self, seconds: float) -> bool:
        """Whether the next chunks, or the end, came in time."""
        if self._coming is None:
            self._coming = asyncio.create_task(self._following())
        await asyncio.wait({self._coming}, timeout=max(0.0, seconds))
        if not self._coming.done():
            return False
        coming, self._coming = self._coming, None
        chunks = coming.result()
        if chunks is None:
            self._over = True
        else:
            self._head += chunks
        return True

    async def _following(self) -> list[Chunk] | None:
        return await anext(self._moments, None)

    async def close(self) -> None:
        """Follow no longer."""
        self._over = True
        if self._coming is not None:
            await ended([self._coming])
        await self._moments.aclose()


async def reply(here: Gateway, who: Caller, asked: Asked, room: AsyncExitStack, *, plain: bool) -> EventStream:
    """The answer that streams a turn; it keeps the room until nothing of it is left. Raises Problem while nothing was shown."""
    opening = Opening(Following(here.bus, who, asked, here.stopping).moments())
    await opening.look(here.settings.first_chunk_seconds)
    frames = (_lines if plain else _events)(here, opening, asked)
    headers = {"x-session-id": asked.session_id, "x-turn-id": asked.turn_id, **({} if plain else HEADERS)}
    held = room.pop_all()
    held.push_async_callback(opening.close)
    media_type = "text/plain; charset=utf-8" if plain else "text/event-stream"
    return EventStream(frames, here.settings.send_timeout_seconds, headers, media_type, held)


async def _events(here: Gateway, opening: Opening, _: Asked) -> AsyncGenerator[bytes, None]:
    async with aclosing(opening.rest(here.settings.heartbeat_seconds)) as moments:
        async for chunks in moments:
            over = bool(chunks) and chunks[-1]["type"] in TERMINAL
            for body in _joined([*map(_event, chunks), *([DONE] if over else [])] or [_HEARTBEAT]):
                yield body
            if over:
                return
    yield DONE


async def _lines(here: Gateway, opening: Opening, asked: Asked) -> AsyncGenerator[bytes, None]:
    text = PlainText(asked.session_id, asked.turn_id)
    async for chunks in opening.rest(here.settings.heartbeat_seconds):
        for body in _joined(map(text.take, chunks)):
            yield body


def _event(chunk: Chunk) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"


def _joined(said: Iterable[bytes]) -> Iterator[bytes]:
    """What is said at once in few writes, none of them so large that a slow client seems to take nothing."""
    held = b""
    for one in said:
        if held and len(held) + len(one) > _MOST_BYTES:
            yield held
            held = b""
        held += one
    if held:
        yield held
